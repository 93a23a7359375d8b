"""Replay a run from its journal, as training shows it in the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rankless.engine.sinks.sink import RunStart
from rankless.engine.sinks.terminal import Terminal
from rankless.runs.overview import steps_of
from rankless.runs.scoring import is_better, name_of_best

_STARTS = ("start", "resume")


class Replay:
    """A context manager that shows the lines of a journal as training does in the terminal.

    ``last`` is the last event that started or ended the run, or None before the first one. ``step`` is the
    number of completed steps.
    """

    def __init__(
        self, run: Path, recipe: Mapping[str, Any], device: str, *, in_threads: bool = False
    ) -> None:
        self.run, self.recipe, self.device, self.in_threads = run, recipe, device, in_threads
        self.last: str | None = None
        self.step = 0
        self._terminal: Terminal | None = None
        self._start: dict[str, Any] | None = None  # a start before its number of steps is known
        self._best: float | None = None

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal:
            self._terminal.close()

    def take(self, line: str) -> None:
        """Show one line. Damaged lines, and lines of earlier versions that lack values, are ignored."""
        with suppress(ValueError, LookupError, TypeError, AttributeError):
            self._take(json.loads(line))

    def _take(self, entry: dict[str, Any]) -> None:
        if "event" in entry:
            self._event(entry)
        elif "step" in entry:
            self._begin(steps_of(self.recipe, [entry]))
            self.step = int(entry["step"])
            if self._terminal:
                self._terminal.step({"parts": {}, **entry})
        elif "evaluation" in entry:
            self._begin(int(entry["evaluation"]))
            self._scores(entry)

    def _event(self, entry: dict[str, Any]) -> None:
        name, at = str(entry["event"]), int(entry.get("at", 0))
        if name in _STARTS:
            self.__exit__()
            self._terminal, self._start = None, entry
            if entry.get("steps"):
                self._begin(int(entry["steps"]))
        elif self._terminal:
            self._terminal.event(name, at, str(entry.get("text", "")))
        if name in (*_STARTS, "end", "stop", "error", "death"):
            self.last = name

    def _begin(self, steps: int | None) -> None:
        if self._start is None:
            return
        entry, self._start = self._start, None
        batch = self.recipe.get("batch") or {}
        workers = self.recipe.get("workers")
        self._terminal = Terminal(
            int(batch.get("images", 64)),
            self.device,
            workers if isinstance(workers, int) else None,
            in_threads=self.in_threads,
        )
        first, world = int(entry.get("at", 0)), int(entry.get("world_size", 1))
        self._terminal.start(RunStart(self.run, self.recipe, first, steps or 0, world))

    def _scores(self, entry: dict[str, Any]) -> None:
        scores, best = entry["scores"], str((self.recipe.get("evaluate") or {}).get("best", "auto"))
        name = name_of_best(best, scores)
        score = scores.get(name) if name else None
        is_best = name is not None and score is not None and is_better(name, score, self._best)
        self._best = score if is_best else self._best
        if self._terminal:
            self._terminal.scores(int(entry["evaluation"]), scores, is_best)
