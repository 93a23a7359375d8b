"""What a host is and has, as far as a training depends on it: asked of every host before the start."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

from rankless.engine.environment import describe
from rankless.errors import UserError
from rankless.hardware.cores import usable_cores
from rankless.launch import opening
from rankless.recipe.load import from_json
from rankless.runs.directory import RunDirectory, damage
from rankless.tasks import data_digest


def facts(recipe: str, run: Path) -> dict[str, Any]:
    """What this host is and has.

    Args:
        recipe: as JSON, with the path of the data here; empty asks nothing about data.
        run: the run directory.

    Returns:
        JSON-ready; ``problems`` lists what would keep a training from starting here.
    """
    device = opening.device()
    problems: list[str] = []
    digest = None
    if recipe:
        try:
            digest = data_digest(from_json(recipe))
        except UserError as error:
            problems += error.problems
    return {
        "host": platform.node(),
        "machine": _machine(),
        "environment": describe(device),
        "device": device.type,
        "devices": opening.cards(),
        "cores": usable_cores(),
        "data": digest,
        "problems": problems,
    }


def holds(run: Path) -> dict[str, Any]:
    """What this host has of a run.

    Returns:
        Whether its directory ``exists`` and is a run's (``has_run``), and the ``step`` of its newest whole
        checkpoint, None without one.
    """
    directory = RunDirectory(run)
    steps = directory.steps()
    whole = (step for step in reversed(steps) if damage(directory.step_directory(step)) is None)
    return {
        "exists": os.path.lexists(run),
        "has_run": directory.recipe.exists() or bool(steps),
        "step": next(whole, None),
    }


def _machine() -> str:
    """The same for two names of one machine, unless they are containers with a network each."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/net').stat().st_ino}"
    return ""
