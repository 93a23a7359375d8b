"""Ranks that an earlier run has left behind: they hold memory, GPUs and ports."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rankless.errors import counted
from rankless.launch.doctor.check import Check, error, ok

_RANK = re.compile(r"rank[ -]\d+|loader server")
# What starts ranks in a container may be its first process.
_LAUNCHER = re.compile(rb"rankless|torch|slurm|srun|mpi|orted|prted|hydra|ray")
_REAPERS = ("systemd", "init", "tini", "dumb-init", "docker-init")


@dataclass(frozen=True)
class Process:
    """A process as the kernel describes it."""

    id: int
    parent: int
    name: str
    command: bytes
    user: int


def processes(root: Path = Path("/proc")) -> list[Process]:
    """All processes that can be seen."""
    found = []
    for folder in root.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            name, rest = stat.partition("(")[2].rpartition(")")[::2]
            state, parent = rest.split()[:2]
            if state != "Z":
                command = (folder / "cmdline").read_bytes()
                found.append(Process(int(folder.name), int(parent), name, command, folder.stat().st_uid))
        except (OSError, ValueError):  # gone meanwhile
            continue
    return found


def leftovers(found: Iterable[Process] | None = None, user: int | None = None) -> Check:
    """Ranks of this user whose launcher is gone.

    Args:
        found: the machine's processes.
        user: whose; this process's if not given.
    """
    user = os.getuid() if user is None else user
    every = {process.id: process for process in (processes() if found is None else found)}
    ranks = [one for one in every.values() if one.user == user and _RANK.fullmatch(one.name)]
    left = [rank for rank in ranks if _is_adopted(every.get(rank.parent))]
    if left:
        numbers = " ".join(str(rank.id) for rank in left)
        names = ", ".join(sorted({rank.name for rank in left}))
        value = f"{counted(len(left), 'process', 'processes')} without a launcher ({names})"
        return error("leftover ranks", value, f"kill {numbers}; kill -9 {numbers} if they stay")
    return ok("leftover ranks", f"none; {counted(len(ranks), 'rank')} at work" if ranks else "none")


def _is_adopted(parent: Process | None) -> bool:
    """Whether a process is the child of nobody who started it."""
    if parent is None:  # outside of this container
        return False
    is_reaper = parent.id == 1 or parent.name in _REAPERS
    return is_reaper and not _LAUNCHER.search(parent.command)
