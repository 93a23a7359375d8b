"""The table of a run: a row for each epoch, and for each evaluation in between, under a header."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rankless.runs.pace import Pace, speed_text

_HEADER_EVERY = 40
"""Rows between two headers: on a long run the first one has left the screen."""
_SCORES = 3
"""So many scores have a column at most; the journal, the report and the end of the run have all of them."""
_GAP = "  "
_VALIDATION = "val loss"


class Rows:
    """Collects steps until an epoch or an evaluation ends, and formats what came of them.

    Args:
        epochs: of the whole run.
        steps: of the whole run.
        images: of a step.
        best: the score by which the best weights are chosen, as in ``evaluate.best``.
        width: columns of the terminal; a row is narrower.
        scores: the names of those that are to come, which have a column from the start.

    Attributes:
        pace: of the steps of the row under way.
    """

    def __init__(
        self,
        epochs: int,
        steps: int,
        images: int,
        best: str = "auto",
        width: int = 80,
        scores: Sequence[str] = (),
    ) -> None:
        self.epochs, self.steps, self.images, self.best = epochs, max(steps, 1), images, best
        self.width = width
        self._header: list[str] = []
        self._to_come = self._columns(scores)
        self._since_header = 0
        self._epoch = 0.0
        self.pace = Pace()
        self._clear()

    def _clear(self) -> None:
        """Begin a row."""
        self.pace = Pace(begins=self.pace.begins)
        self._loss = self._lr = 0.0
        self._parts: dict[str, float] = {}
        self._steps = 0
        self._whole: int | None = None  # the epoch that the last step finished

    def step(self, entry: Mapping[str, Any]) -> list[str]:
        """Take the journal's entry of a step; the lines of an epoch that has ended without an evaluation."""
        lines = self.end()
        before, self._epoch = self._epoch, float(entry["epoch"])
        # The first step after a resume is compared with nothing: it may be in the midst of an epoch.
        if math.floor(self._epoch) > math.floor(before) and (before or self._is_first_epoch(entry)):
            self._whole = math.floor(self._epoch)
        self._steps += 1
        self._loss += float(entry["loss"])
        for name, value in entry["parts"].items():
            self._parts[name] = self._parts.get(name, 0.0) + float(value)
        self.pace.add(entry["timing"]["seconds"], entry["timing"]["waited"])
        self._lr = float(entry["lr"])
        return lines

    @property
    def loss(self) -> float:
        """The mean of the steps of the row under way, of which there is one at least."""
        return self._loss / self._steps

    @property
    def parts(self) -> dict[str, float]:
        """The means of the loss's parts."""
        return {name: total / self._steps for name, total in self._parts.items()}

    def _is_first_epoch(self, entry: Mapping[str, Any]) -> bool:
        """Whether the run's first step was its first epoch, or several of a few images."""
        return int(entry["step"]) == 1

    def scores(self, step: int, scores: Mapping[str, Any], is_best: bool) -> list[str]:
        """The lines of an evaluation after ``step`` steps."""
        plain: dict[str, Any] = {
            name: value
            for name, value in scores.items()
            if isinstance(value, float | None) and (name, value) != ("loss", None)
        }
        shown = {
            name: _loss(plain["loss"]) if name == _VALIDATION else _score(plain[name])
            for name in self._columns(plain)
        }
        if not self._steps:  # made up for after a resume
            self._epoch = step / self.steps * self.epochs
        return self._row(shown, is_best)

    def _columns(self, scores: Collection[str]) -> list[str]:
        """The columns of scores with these names."""
        plain = [name for name in scores if name != "loss"]
        first = sorted(plain, key=lambda name: name != self.best)[:_SCORES]  # stable: the task's order
        return [*([_VALIDATION] if "loss" in scores else []), *(name for name in plain if name in first)]

    def end(self) -> list[str]:
        """The lines of an epoch that has ended, if there is one without an evaluation."""
        return self._row({}, False) if self._whole is not None else []

    def _row(self, scores: dict[str, str], is_best: bool) -> list[str]:
        loss = _loss(self.loss) if self._steps else "–"
        per_second = self.pace.images_per_second(self.images)
        speed = "–" if per_second is None else speed_text(per_second)
        rate = f"{self._lr:.2e}" if self._steps else "–"
        names = list(scores) or self._header[2:-3] or self._to_come
        cells = ["epoch", "loss", *names, "lr", "images/s", "best"]
        values = [self._label(), loss, *(scores.get(name, "") for name in names), rate, speed]
        values.append("*" if is_best else "")
        self._clear()
        while sum(map(self._width, cells)) + len(_GAP) * (len(cells) - 1) >= self.width and len(cells) > 5:
            del cells[-4], values[-4]  # the last of the scores
        lines = []
        if cells != self._header or self._since_header >= _HEADER_EVERY:
            self._header, self._since_header = cells, 0
            lines.append(self._line(cells, cells))
        self._since_header += 1
        return [*lines, self._line(cells, values)]

    def _label(self) -> str:
        """The epoch: ``3/10``, or ``2.57`` in the midst of one."""
        epoch = min(self._whole if self._whole is not None else self._epoch, self.epochs)
        whole = abs(epoch - round(epoch)) < 1e-6
        return f"{round(epoch)}/{self.epochs}" if whole else f"{epoch:.2f}"

    def _line(self, names: Sequence[str], values: Sequence[str]) -> str:
        cells = (f"{value:>{self._width(name)}}" for name, value in zip(names, values, strict=True))
        return _GAP.join(cells).rstrip()

    def _width(self, name: str) -> int:
        epoch = max(7, len(f"{self.epochs}/{self.epochs}"))
        return max(len(name), {"epoch": epoch, "loss": 8, "lr": 8, "best": 4}.get(name, 6))


def _loss(value: float) -> str:
    """At most eight characters."""
    return f"{value:.4g}" if 1e-3 <= abs(value) < 1e4 else f"{value:.2e}"


def _score(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.4g}"
