"""Launchers that set PyTorch's environment variables, such as torchrun, Kubeflow and Ray Train."""

from __future__ import annotations

from collections.abc import Mapping

from rankless.errors import UserError
from rankless.launch.environments.environment import LOOPBACK, Environment, is_set

RAY_WORKER = "RANKLESS_RAY_WORKER"
"""Variable that a Ray Train worker sets for its rank in addition to PyTorch's variables."""


class Standard(Environment):
    """Any launcher that sets ``RANK`` and ``WORLD_SIZE``, and MASTER_ADDR and MASTER_PORT if needed."""

    name = "RANK and WORLD_SIZE"

    @classmethod
    def is_here(cls, variables: Mapping[str, str]) -> bool:
        return is_set(variables, ("RANK", "WORLD_SIZE"))

    def _read(self) -> None:
        self.leaves_orphans = "TORCHELASTIC_RUN_ID" in self.variables  # torchrun
        self.rank, self.world_size = self.number("RANK"), self.number("WORLD_SIZE")
        # Kubeflow's PyTorchJob starts one rank per machine and sets none of these. A script under srun or
        # mpirun often sets only RANK and WORLD_SIZE itself.
        local = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
        sizes = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
        self.local_rank = self.number(*local) if self.first(*local) else 0
        self.local_world_size = self.number(*sizes) if self.first(*sizes) else self.local_rank + 1
        if self.first("TORCHELASTIC_RESTART_COUNT"):
            self.restart = self.number("TORCHELASTIC_RESTART_COUNT")
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not self.variables.get(name)]
        if missing and self.world_size > 1:
            raise UserError(
                f"{' and '.join(missing)}: not set, but RANK and WORLD_SIZE are ({self.rank} of "
                f"{self.world_size}); expected where rank 0 can be reached: start the ranks with torchrun, "
                "which sets all of them, or unset RANK and WORLD_SIZE"
            )

    @property
    def address(self) -> str:
        return self.variables.get("MASTER_ADDR", LOOPBACK)


class Ray(Standard):
    """A worker of Ray Train that starts one rank (:mod:`rankless.launch.submit.ray`).

    Ray may kill the worker at any time; its rank then ends, too.
    """

    name = "Ray Train"

    @classmethod
    def is_here(cls, variables: Mapping[str, str]) -> bool:
        return bool(variables.get(RAY_WORKER)) and super().is_here(variables)

    def _read(self) -> None:
        super()._read()
        self.leaves_orphans = True
