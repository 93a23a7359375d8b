"""The launchers of MPI: Open MPI's ``mpirun``, and those with PMI.

Those are MPICH's and Intel MPI's ``mpiexec`` (Hydra), MVAPICH, Cray's PALS, and PMIx's ``prun``. Neither says
where rank 0 is: several machines need the user's ``MASTER_ADDR``. A world of one is nobody's rank: our own
launcher makes one of as many devices as there are.
"""

from __future__ import annotations

from collections.abc import Mapping

from rankless.launch.environments.environment import Environment, is_set

_OPEN_RANK, _OPEN_SIZE = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"
_RANKS = ("PMI_RANK", "PMIX_RANK")
_SIZES = ("PMI_SIZE", "WORLD_SIZE")  # PMIx gives no size: the user adds WORLD_SIZE
_LOCAL_RANKS = (
    "MPI_LOCALRANKID",
    "PMI_LOCAL_RANK",
    "PALS_LOCAL_RANKID",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "LOCAL_RANK",
)
_LOCAL_SIZES = (
    "MPI_LOCALNRANKS",
    "PMI_LOCAL_SIZE",
    "PALS_LOCAL_SIZE",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "LOCAL_WORLD_SIZE",
)


class OpenMPI(Environment):
    """``OMPI_COMM_WORLD_*``."""

    name = "Open MPI"
    address_hint = "mpirun -x MASTER_ADDR=HOST …, with the first host of the host list"

    @classmethod
    def is_here(cls, variables: Mapping[str, str]) -> bool:
        return is_set(variables, (_OPEN_RANK, _OPEN_SIZE)) and variables[_OPEN_SIZE].strip() != "1"

    def _read(self) -> None:
        self.rank, self.world_size = self.number(_OPEN_RANK), self.number(_OPEN_SIZE)
        self.local_rank = self.number("OMPI_COMM_WORLD_LOCAL_RANK")
        self.local_world_size = self.number("OMPI_COMM_WORLD_LOCAL_SIZE")

    def _port_seed(self) -> str:
        # Releases 4 and 5 name a job differently; both names are the same for all its ranks.
        return self.variables.get("PMIX_NAMESPACE") or self.variables.get("OMPI_MCA_ess_base_jobid", "")


class PMI(Environment):
    """``PMI_RANK`` and ``PMI_SIZE``, or what these launchers call them."""

    name = "MPI (PMI)"
    address_hint = "mpiexec -genv MASTER_ADDR HOST …, with the first host of the host list"

    @classmethod
    def is_here(cls, variables: Mapping[str, str]) -> bool:
        size = next((variables[name] for name in _SIZES if variables.get(name)), "1")
        return any(is_set(variables, (name,)) for name in _RANKS) and size.strip() != "1"

    def _read(self) -> None:
        self.rank, self.world_size = self.number(*_RANKS), self.number(*_SIZES)
        self.local_rank = self.number(*_LOCAL_RANKS)
        self.local_world_size = self.number(*_LOCAL_SIZES)

    def _port_seed(self) -> str:
        names = ("PMI_JOBID", "PMIX_NAMESPACE", "PALS_APID")
        return next(filter(None, map(self.variables.get, names)), None) or ""
