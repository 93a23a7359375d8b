"""The journal of a run: one JSON object per line.

Lines with ``step`` or ``evaluation`` contain numbers. Each step and each evaluation has one line, which does
not depend on interruptions of the run. Values that depend on the machine are under ``timing``. Lines with
``checkpoint`` form the hash chain (:mod:`rankless.runs.chain`). Lines with ``event`` record events.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from rankless.files import reading
from rankless.files.writing import keep_beside, write_atomically
from rankless.printing import finite

_TAIL = 1 << 16  # bytes
_LONGEST = 1 << 30  # maximum bytes of a line, enough for the scores of a million classes


class Journal:
    """A journal opened for appending at the start of a run or after ``step`` steps.

    Lines of later steps are removed, because they will be written again. With ``unscored``, the evaluation
    after ``step`` is removed, too. ``left_out`` is the number of damaged lines that were removed. If there
    were any, ``original`` is a copy of the original journal. ``waiting`` contains the bytes that could not be
    written yet.
    """

    def __init__(self, path: Path, step: int, *, unscored: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.left_out, self.original, self.waiting = path, 0, path, b""
        if path.exists():
            lines, _, self.left_out = _kept(path, step, unscored=unscored)
            if self.left_out:
                self.original = keep_beside(path)
            write_atomically(path, "".join(lines))
        # Without a buffer, so that bytes that did not fit on a full disk are not written again on close.
        self.file = path.open("ab", buffering=0)

    def write(self, **entry: Any) -> None:
        """Append one line."""
        self.append(line(entry))

    def append(self, lines: bytes) -> None:
        """Append complete lines, after those that could not be written before."""
        self.waiting += lines
        while self.waiting:
            self.waiting = self.waiting[self.file.write(self.waiting) :]

    def close(self) -> None:
        self.file.close()


def flush(path: Path) -> None:
    """Wait until all lines of a journal, written by any process, are on disk."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        os.fsync(file.fileno())


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Iterate over the entries of a journal, skipping damaged lines."""
    return (entry for _, entry in _lines(path) if entry is not None)


def step_seconds(path: Path) -> list[float]:
    """Return the duration of each step in seconds."""
    return [entry["timing"]["seconds"] for entry in read(path) if "step" in entry]


class Follower:
    """A reader of a growing journal. Each call of :meth:`entries` returns the new entries."""

    def __init__(self, path: Path) -> None:
        self.path, self._offset, self._file = path, 0, 0

    def was_cut(self) -> bool:
        """Check whether a resumed run has replaced the file. If so, :meth:`entries` starts over."""
        state = self.path.stat()
        cut = bool(self._offset) and (state.st_ino != self._file or state.st_size < self._offset)
        self._offset, self._file = 0 if cut else self._offset, state.st_ino
        return cut

    def entries(self) -> Iterator[dict[str, Any]]:
        """Yield the entries since the last call, except an incomplete last line."""
        with io.BufferedReader(reading.opened(self.path)) as file:
            file.seek(self._offset)
            while (line := file.readline(_LONGEST)).endswith(b"\n"):
                self._offset += len(line)
                if (entry := _entry(line.decode("utf-8", "replace"))) is not None:
                    yield entry


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Yield every line except an incomplete last one, with its entry, or with None if it is damaged."""
    with io.BufferedReader(reading.opened(path)) as file:
        while line := file.readline(_LONGEST):
            whole = line.endswith(b"\n")
            if not whole and len(line) == _LONGEST:
                while (rest := file.readline(_LONGEST)) and not rest.endswith(b"\n"):
                    pass
                yield "", None
                continue
            text = line.decode("utf-8", "replace")
            entry = _entry(text)
            if entry is not None:
                yield text if whole else text + "\n", entry
            elif whole and text.strip():
                yield text, None


def _kept(path: Path, step: int, *, unscored: bool) -> tuple[list[str], int, int]:
    """Return the lines up to ``step``, how many are steps or evaluations, and how many lines are damaged."""
    lines, damaged, numbers, last = list[str](), 0, 0, [0, 0]
    for text, entry in _lines(path):
        if entry is None:
            damaged += 1
        elif (at := step_of(entry)) <= step - (unscored and "evaluation" in entry):
            lines.append(text)
            kind = "evaluation" in entry
            if at > last[kind] and "checkpoint" not in entry:
                numbers, last[kind] = numbers + 1, at
    return lines, numbers, damaged


def soundness(path: Path, step: int, *, unscored: bool) -> tuple[int, int, int]:
    """Rate a copy of the journal for a run that continues after ``step``. Higher is better.

    Copies with more steps and evaluations rate higher, then those with fewer damaged lines, then longer ones.
    """
    try:
        lines, numbers, damaged = _kept(path, step, unscored=unscored)
    except FileNotFoundError:
        return 0, 0, 0
    except OSError:
        return -1, 0, 0
    return numbers, -damaged, len(lines)


def _entry(text: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):  # ValueError: not JSON, or an integer with thousands of digits
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("timing", {}), dict):
        return None
    steps = [entry[key] for key in ("step", "evaluation", "checkpoint") if key in entry]
    if any(type(step) is not int or step < 0 for step in steps):
        return None
    if "evaluation" in entry and not isinstance(entry.get("scores"), dict):
        return None
    if "step" in entry:  # infinite and NaN numbers, such as some gradient norms in fp16, are written as null
        for numbers in (entry, entry.get("parts")):
            if isinstance(numbers, dict):
                numbers.update({key: math.inf for key, value in numbers.items() if value is None})
    return entry


def tail(path: Path) -> list[dict[str, Any]]:
    """Return a journal's last entries, including at least one step, without reading the whole file."""
    with reading.opened(path) as file:
        end, reach = file.seek(0, os.SEEK_END), _TAIL
        while True:
            start = max(end - reach, 0)
            file.seek(start)
            lines = file.read(end - start).split(b"\n")[bool(start) :]
            entries = [entry for line in lines if (entry := _entry(line.decode("utf-8", "replace")))]
            if not start or any("step" in entry for entry in entries):
                return entries
            reach *= 8  # the scores of many classes may be longer


def append(path: Path, **entry: Any) -> None:
    """Append one line to a journal that no process has open, replacing an incomplete last line."""
    with path.open("a+b", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(end - _TAIL, 0)
            file.seek(start)
            behind = file.read(end - start).rfind(b"\n") + 1
            end = start + behind
            if behind:
                break
        file.truncate(end)
        file.write(line(entry))


def death(path: Path) -> str | None:
    """Return the text of a journal's last entry if it records the death of a process, otherwise None."""
    try:
        entries = tail(path)
    except OSError:
        return None
    return str(entries[-1].get("text")) if entries and entries[-1].get("event") == "death" else None


def ending(path: Path) -> str | None:
    """Return a sentence about why the run ended, or None if the journal is missing or empty."""
    try:
        entries = tail(path)
    except OSError:
        return None
    if not entries:
        return None
    for entry in reversed(entries):
        kind = entry.get("event")
        if kind in ("death", "error"):
            return str(entry.get("text", kind))
        if kind in ("stop", "end"):
            return f"it {'stopped on request' if kind == 'stop' else 'finished'} after step {entry.get('at')}"
        if kind in ("start", "resume") or "step" in entry or "evaluation" in entry:
            break
    return "it ended without recording a reason; its launcher was killed, or the machine stopped"


def step_of(entry: dict[str, Any]) -> int:
    """Return the step of an entry, or 0 for an event."""
    return int(entry.get("step", entry.get("evaluation", entry.get("checkpoint", 0))))


def last_step(path: Path) -> int:
    """Return the last step with an entry in a journal, or 0 if there is none."""
    return max(map(step_of, tail(path)), default=0)


def numbers(path: Path) -> list[dict[str, Any]]:
    """Return the entries of steps and evaluations without timing. They are equal in all runs of a recipe."""
    return [
        {key: value for key, value in entry.items() if key != "timing"}
        for entry in read(path)
        if "step" in entry or "evaluation" in entry
    ]


def line(entry: dict[str, Any]) -> bytes:
    """Encode an entry as a line of the file."""
    return (json.dumps(finite(entry), separators=(",", ":")) + "\n").encode()
