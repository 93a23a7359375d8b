"""MPI launchers: Open MPI's ``mpirun``, and launchers with PMI.

Launchers with PMI are MPICH's and Intel MPI's ``mpiexec`` (Hydra), MVAPICH, Cray's PALS, and PMIx's ``prun``.
None of them provides the address of rank 0, so several machines need the user's ``MASTER_ADDR``. A single MPI
process does not count as a rank: there, Rankless starts a rank for each device.
"""

from __future__ import annotations

from collections.abc import Mapping

from rankless.launch.environments.environment import Environment, is_set

_OPEN_RANK, _OPEN_SIZE = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"
_RANKS = ("PMI_RANK", "PMIX_RANK")
_SIZES = ("PMI_SIZE", "WORLD_SIZE")  # PMIx sets no size: the user sets WORLD_SIZE
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
    """Open MPI, detected by ``OMPI_COMM_WORLD_*``."""

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
        # Releases 5 and 4 use different variables.
        return self.variables.get("PMIX_NAMESPACE") or self.variables.get("OMPI_MCA_ess_base_jobid", "")


class PMI(Environment):
    """A launcher with PMI, detected by ``PMI_RANK`` and ``PMI_SIZE`` or their variants."""

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
