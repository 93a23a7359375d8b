"""Train as one rank of a cluster's launcher: torchrun, srun, mpirun, Ray, …

This module sets up the process, before PyTorch is imported; ``member_run`` is the training.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankless.errors import UserError
from rankless.hardware.processes import die_with_parent, name_process
from rankless.launch.environments.environment import Environment
from rankless.launch.rank_log import RankOutput
from rankless.recipe.schema import Recipe


@dataclass(frozen=True)
class Asked:
    """The user's options for one rank.

    Attributes:
        recipe: its instruction set is in use; None where only other machines have the run to resume.
        name: the name of a new run.
        devices: the number of ranks that the user expects; None accepts any.
        run: the run directory; None chooses one.
        resume: resume the run in ``run``.
        sinks: names of the user's sinks.
    """

    recipe: Recipe | None
    name: str
    devices: int | None = None
    run: Path | None = None
    resume: bool = False
    sinks: Sequence[str] = ()


def train(environment: Environment, ask: Callable[[], Asked]) -> int:
    """Train as the rank that a launcher has made of this process; rank 0 prints how it went.

    Args:
        environment: the launcher's description of this rank.
        ask: reads the options and fixes the instruction set; PyTorch has not been imported before.

    Returns:
        The exit code: 0, 85 when any rank was asked to stop and all have saved, 130 after Ctrl-C, 75 when
        another rank was lost, 1 when the ranks could not go on, 2 after an error, which rank 0 has raised.
    """
    environment.export()
    # PyTorch warns of every connection from an address that has no name.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # Where Slurm tracks processes by /proc (proctrack/linuxproc), no name with a space gets a signal.
    name_process(f"rank-{environment.rank}")
    faulthandler.enable()
    if environment.leaves_orphans:
        die_with_parent()
    output = RankOutput(environment.rank)
    try:
        try:
            asked: Asked | UserError = ask()
        except UserError as error:  # raised when the ranks have met
            asked = error
        from rankless.launch.member_run import MemberRun  # imports PyTorch

        return MemberRun(environment, asked, output).train()
    finally:
        output.to_terminal()
