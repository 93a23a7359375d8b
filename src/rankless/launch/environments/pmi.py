"""Launchers with PMI: MPICH's and Intel MPI's ``mpiexec`` (Hydra), MVAPICH, Cray's PALS, PMIx's ``prun``."""

from __future__ import annotations

from collections.abc import Mapping

from rankless.errors import UserError
from rankless.launch.environments.environment import Environment, is_set

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


class PMI(Environment):
    """``PMI_RANK`` and ``PMI_SIZE``; several machines need the user's ``MASTER_ADDR``.

    A world of one is nobody's rank: our own launcher makes one of as many devices as there are.
    """

    name = "MPI (PMI)"

    @classmethod
    def is_here(cls, variables: Mapping[str, str]) -> bool:
        size = next((variables[name] for name in _SIZES if variables.get(name)), "1")
        return any(is_set(variables, (name,)) for name in _RANKS) and size.strip() != "1"

    def _read(self) -> None:
        self.rank, self.world_size = self.number(*_RANKS), self.number(*_SIZES)
        self.local_rank = self.number(*_LOCAL_RANKS)
        self.local_world_size = self.number(*_LOCAL_SIZES)

    def _address(self) -> str:
        raise UserError(
            "MPI (PMI): there are ranks on several machines, and nothing says where rank 0 is; expected its "
            "address in MASTER_ADDR: mpiexec -genv MASTER_ADDR HOST …, with the first host of the host list"
        )

    def _port_seed(self) -> str:
        return (
            next(filter(None, map(self.variables.get, ("PMI_JOBID", "PMIX_NAMESPACE", "PALS_APID"))), "")
            or ""
        )
