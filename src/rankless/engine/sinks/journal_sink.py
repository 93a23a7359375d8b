"""Sinks that write every step, evaluation and event as a line of ``journal.jsonl``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rankless.engine.sinks.sink import RunStart, Sink
from rankless.runs import journal as journals
from rankless.runs.chain import Numbers
from rankless.runs.directory import RunDirectory
from rankless.runs.journal import Journal, line
from rankless.structures import Scores


class JournalCopy(Sink):
    """A copy of the journal, which receives lines from rank 0 at every save.

    ``journal`` is None if it cannot be written. ``problem`` is the reason why the newest lines could not be
    written, or None.
    """

    def __init__(self, journal: Journal | None) -> None:
        self.journal = journal
        self.problem: str | None = None

    def append(self, lines: bytes) -> None:
        """Write lines. If the disk is full, they are written with the next lines."""
        if self.journal is None:  # already reported at the start
            return
        try:
            self.journal.append(lines)
        except OSError as error:
            self.problem = str(error)
        else:
            self.problem = None

    def take(self) -> bytes:
        """Return the lines written since the last call, for sending to copies. A copy returns none."""
        return b""

    def close(self) -> None:
        if self.journal:
            self.journal.close()


class JournalSink(JournalCopy):
    """The journal of rank 0.

    If other machines keep ``copies``, ``journal`` may be None, and a full disk does not end the run.
    ``numbers`` is a running digest of all numbers, and ``links`` contains the digests of hash-chain lines.
    """

    def __init__(self, journal: Journal | None, run: RunDirectory, *, copies: bool = False) -> None:
        super().__init__(journal)
        self.run, self.copies = run, copies
        self._lines: list[bytes] = []
        self.numbers, self.links = Numbers(), set[str]()
        for entry in journals.read(journal.path) if journal else ():
            self._count(entry)

    def start(self, run: RunStart) -> None:
        reason = {"reason": run.reason} if run.reason else {}
        event = "resume" if run.first else "start"
        size = {"steps": run.steps, "world_size": run.world_size}
        self._write(event=event, at=run.first, **size, **reason, timing=_now())

    def step(self, entry: Mapping[str, Any]) -> None:
        self._write(**entry)

    def scores(self, step: int, scores: Scores, is_best: bool) -> None:
        self._write(evaluation=step, scores=scores)

    def event(self, name: str, step: int, text: str) -> None:
        self._write(event=name, at=step, text=text, timing=_now())

    def checkpoint(self, entry: Mapping[str, Any]) -> None:
        """Write a hash-chain line unless the journal already contains it."""
        if entry["link"] not in self.links:
            self._write(**entry)

    def take(self) -> bytes:
        lines, self._lines = b"".join(self._lines), []
        return lines

    def _count(self, entry: Mapping[str, Any]) -> None:
        self.numbers.add(entry)
        if "link" in entry:
            self.links.add(entry["link"])

    def _write(self, **entry: Any) -> None:
        self._count(entry)
        if self.copies:
            self._lines.append(line(entry))
            self.append(self._lines[-1])
        elif self.journal:
            with self.run.writing(self.run.journal):
                self.journal.write(**entry)


def _now() -> dict[str, float]:
    return {"time": round(time.time(), 1)}
