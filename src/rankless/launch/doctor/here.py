"""All checks of one machine: this one, or a host, where its process runs them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rankless.errors import UserError
from rankless.launch.doctor import machine, networking, storage
from rankless.launch.doctor.check import Check, error, ok, run
from rankless.launch.doctor.leftovers import leftovers
from rankless.recipe.schema import Recipe

_LIMIT = 30.0  # seconds, imports included
DATA_LIMIT = 300.0
"""Seconds that the data may take to be read the first time."""


def checks(directory: Path, threads: int = 1) -> list[Check]:
    """Look at this machine.

    Args:
        directory: the run directory, which need not be there.
        threads: that a rank uses.
    """
    return run(
        {
            "software": machine.software,
            "CPU": machine.processor,
            "cores": partial(machine.cores, threads=threads),
            "memory": machine.memory,
            "GPU": machine.gpus,
            "/dev/shm": machine.shared_memory,
            "ulimit -n": machine.open_files,
            "ulimit -l": machine.locked_memory,
            "own name": networking.own_name,
            "interfaces": networking.addresses,
            "chosen interface": networking.chosen_interface,
            "port": networking.rendezvous_port,
            "disk": partial(storage.space, directory),
            "run directory": partial(storage.writing, directory),
            "leftover ranks": leftovers,
        },
        _LIMIT,
    )


def data(recipe: Recipe) -> Check:
    """Whether the data can be read."""

    def look() -> Check:
        from rankless.tasks import data_digest

        try:
            return of_data(recipe.data.root, data_digest(recipe), [])
        except UserError as problem:
            return of_data(recipe.data.root, None, list(problem.problems))

    return run({"data": look}, DATA_LIMIT)[0]


def of_data(root: str, digest: str | None, problems: list[str]) -> Check:
    """What became of reading the data.

    Args:
        root: where it lies.
        digest: of what was read; None where there are no files.
        problems: that prevented it from being read.
    """
    if problems:
        return error("data", "; ".join(problems), f"rankless data check {root}")
    return ok("data", f"{root}, digest {digest[:12]}" if digest else root)
