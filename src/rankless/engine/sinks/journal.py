"""The journal as a sink: every step, evaluation and event becomes a line of ``journal.jsonl``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankless.engine.sinks.sink import RunStart, Sink
from rankless.runs.directory import RunDirectory
from rankless.runs.journal import Journal, line
from rankless.structures import Scores


class JournalSink(Sink):
    """Writes the journal.

    Args:
        journal: open, cut to the step from which the run goes on; None where it cannot be written, which
            only a run with ``copies`` survives.
        run: whose journal it is.
        copies: whether others keep copies. Then lines are kept for :meth:`take`, and what a full disk
            refuses is tried again with the next line.

    Attributes:
        problem: why the newest lines could not be written, None if they were.
    """

    def __init__(self, journal: Journal | None, run: RunDirectory, *, copies: bool = False) -> None:
        self.journal, self.run, self.copies = journal, run, copies
        self.problem: str | None = None
        self._lines: list[bytes] = []

    def start(self, run: RunStart) -> None:
        """Write a line for the start."""
        reason = {"reason": run.reason} if run.reason else {}
        self._write(
            event="resume" if run.first else "start", at=run.first, world_size=run.world_size, **reason
        )

    def step(self, entry: Mapping[str, Any]) -> None:
        """Write a line for a step."""
        self._write(**entry)

    def scores(self, step: int, scores: Scores, is_best: bool) -> None:
        """Write a line for an evaluation."""
        self._write(evaluation=step, scores=scores)

    def event(self, name: str, step: int, text: str) -> None:
        """Write a line for an event."""
        self._write(event=name, at=step, text=text)

    def take(self) -> bytes:
        """The lines since the last call, for the copies."""
        lines, self._lines = b"".join(self._lines), []
        return lines

    def close(self) -> None:
        """Close the file."""
        if self.journal:
            self.journal.close()

    def _write(self, **entry: Any) -> None:
        if self.copies:
            self._lines.append(line(entry))
            self.problem = _append(self.journal, self._lines[-1])
        elif self.journal:
            with self.run.writing(self.run.journal):
                self.journal.write(**entry)


class JournalCopy(Sink):
    """Another machine's journal, to which lines come from rank 0 at every save.

    Args:
        journal: open, cut to the step from which the run goes on; None where it cannot be written.

    Attributes:
        problem: why the newest lines could not be written, None if they were.
    """

    def __init__(self, journal: Journal | None) -> None:
        self.journal = journal
        self.problem: str | None = None

    def append(self, lines: bytes) -> None:
        """Write lines; what a full disk refuses is tried again with the next ones."""
        self.problem = _append(self.journal, lines)

    def close(self) -> None:
        """Close the file."""
        if self.journal:
            self.journal.close()


def _append(journal: Journal | None, lines: bytes) -> str | None:
    if journal is None:
        return None  # reported at the start
    try:
        journal.append(lines)
    except OSError as error:
        return str(error)
    return None
