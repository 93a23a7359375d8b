"""Detection of the launcher that started this process as a rank; each kind of launcher has a class.

:meth:`~.environment.Environment.export` sets PyTorch's environment variables for every launcher. The rest of
the package reads only these variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from rankless.errors import UserError
from rankless.launch.environments.environment import Environment, job_named
from rankless.launch.environments.mpi import PMI, OpenMPI
from rankless.launch.environments.slurm import Slurm
from rankless.launch.environments.standard import Ray, Standard

# The innermost launcher comes first: torchrun may run under srun, and so may mpirun.
_KINDS: tuple[type[Environment], ...] = (Ray, Standard, OpenMPI, Slurm, PMI)


def detect(variables: Mapping[str, str] = os.environ) -> Environment | None:
    """Return the launcher that started this process as a rank; None without a launcher."""
    for kind in _KINDS:
        if kind.is_here(variables):
            return kind(variables)
    return None


def refuse(what: str, instead: str, variables: Mapping[str, str] = os.environ) -> None:
    """Raise an error if a launcher started this process as one of several ranks.

    Only rank 0's error has a message.
    """
    environment = detect(variables)
    if environment and environment.world_size > 1:
        text = (
            f"{what}: starts ranks by itself, but a launcher has started this process as one of "
            f"{environment.world_size} ({environment.name}); {instead}"
        )
        raise UserError([] if environment.rank else text)


def speaks(variables: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process prints messages common to all ranks: it is rank 0 or has no launcher."""
    try:
        environment = detect(variables)
    except UserError:
        return True
    return environment is None or environment.rank == 0


def job(variables: Mapping[str, str] = os.environ) -> str:
    """Return the job's name, which survives restarts and requeues; "" if it has none."""
    named = (job_named(variables), *(kind.job_of(variables) for kind in _KINDS))
    return next(filter(None, named), "")
