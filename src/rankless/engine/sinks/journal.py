"""The journal as a sink: every step, evaluation and event becomes a line of ``journal.jsonl``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankless.engine.sinks.sink import RunStart, Sink
from rankless.runs.directory import RunDirectory
from rankless.runs.journal import Journal
from rankless.structures import Scores


class JournalSink(Sink):
    """Writes the journal.

    Args:
        journal: open, cut to the step from which the run goes on.
        run: whose journal it is.
    """

    def __init__(self, journal: Journal, run: RunDirectory) -> None:
        self.journal, self.run = journal, run

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

    def close(self) -> None:
        """Close the file."""
        self.journal.close()

    def _write(self, **entry: Any) -> None:
        with self.run.writing(self.run.journal):
            self.journal.write(**entry)
