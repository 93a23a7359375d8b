"""Train as one rank of a cluster's launcher, such as torchrun, srun, mpirun or Ray.

This module sets up the process before PyTorch is imported; ``member_run`` trains.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable

from rankless.errors import UserError
from rankless.hardware.processes import die_with_parent, name_process
from rankless.launch.environments import Environment
from rankless.launch.job import Wanted
from rankless.launch.rank_log import RankOutput


def train(environment: Environment, read_options: Callable[[], Wanted]) -> int:
    """Train as a rank that a launcher has started, and return the exit code.

    ``read_options`` must fix the instruction set before it imports PyTorch.
    """
    environment.export()
    # Silence PyTorch's warnings about connections from addresses without a name.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # Slurm's proctrack/linuxproc sends no signals to processes with a space in their names.
    name_process(f"rank-{environment.rank}")
    faulthandler.enable()
    if environment.leaves_orphans:
        die_with_parent()
    output = RankOutput(environment.rank)
    try:
        try:
            wanted: Wanted | UserError = read_options()
        except UserError as error:  # raised once the ranks have met
            wanted = error
        from rankless.launch.member_run import MemberRun  # imports PyTorch

        return MemberRun(environment, wanted, output).train()
    finally:
        output.to_terminal()
