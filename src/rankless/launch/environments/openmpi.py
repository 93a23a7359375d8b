"""Open MPI's ``mpirun`` and ``mpiexec``."""

from __future__ import annotations

from collections.abc import Mapping

from rankless.errors import UserError
from rankless.launch.environments.environment import Environment, is_set

_RANK, _SIZE = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"


class OpenMPI(Environment):
    """``OMPI_COMM_WORLD_*``; several machines need the user's ``MASTER_ADDR``.

    A world of one is nobody's rank: our own launcher makes one of as many devices as there are.
    """

    name = "Open MPI"

    @classmethod
    def is_here(cls, variables: Mapping[str, str]) -> bool:
        return is_set(variables, (_RANK, _SIZE)) and variables[_SIZE].strip() != "1"

    def _read(self) -> None:
        self.rank, self.world_size = self.number(_RANK), self.number(_SIZE)
        self.local_rank = self.number("OMPI_COMM_WORLD_LOCAL_RANK")
        self.local_world_size = self.number("OMPI_COMM_WORLD_LOCAL_SIZE")

    def _address(self) -> str:
        raise UserError(
            "Open MPI: there are ranks on several machines, and nothing says where rank 0 is; expected its "
            "address in MASTER_ADDR: mpirun -x MASTER_ADDR=HOST …, with the first host of the host list"
        )

    def _port_seed(self) -> str:
        # Releases 4 and 5 name a job differently; both names are the same for all its ranks.
        return self.variables.get("PMIX_NAMESPACE") or self.variables.get("OMPI_MCA_ess_base_jobid", "")
