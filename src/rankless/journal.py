"""The journal of a run: one JSON object a line.

Numbers (lines with ``step`` or ``evaluation``) are the same however the run was disturbed and resumed, and
stand there once each; what depends on the machine is under ``timing``. Lines with ``event`` tell what
happened.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankless import reading
from rankless.files import write_atomically


class Journal:
    """Appends to a journal, which begins or goes on after ``step`` steps.

    Args:
        path: the file; made with its folder when missing.
        step: numbers of later steps are removed; they are about to be made again.
    """

    def __init__(self, path: Path, step: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            kept = [line for line in read(path) if step_of(line) <= step]
            write_atomically(path, "".join(_line(line) for line in kept))
        # Without a buffer: what a full disk refused must not come again when the file is closed.
        self.file = path.open("ab", buffering=0)

    def write(self, **entry: Any) -> None:
        """Append one line.

        Raises:
            OSError: the disk is full.
        """
        rest = _line(entry).encode()
        while rest:
            rest = rest[self.file.write(rest) :]

    def flush(self) -> None:
        """Wait until all lines are on the disk."""
        os.fsync(self.file.fileno())

    def close(self) -> None:
        """No more lines."""
        self.file.close()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The entries of a journal; a last line that a crash tore is left out."""
    with reading.opened_text(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(entry, dict):
                yield entry


def step_of(entry: dict[str, Any]) -> int:
    """The step whose number this is; 0 for an event."""
    return int(entry.get("step", entry.get("evaluation", 0)))


def numbers(path: Path) -> list[dict[str, Any]]:
    """The entries that two runs of one recipe have in common: no events, no timing."""
    return [
        {key: value for key, value in entry.items() if key != "timing"}
        for entry in read(path)
        if "step" in entry or "evaluation" in entry
    ]


def _line(entry: dict[str, Any]) -> str:
    return json.dumps(entry, separators=(",", ":")) + "\n"
