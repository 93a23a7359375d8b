"""A sink that draws curves below a notebook cell that trains."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from typing import Any

from rankless.engine.sinks.sink import RunStart, Sink
from rankless.extras import needed
from rankless.printing import clock
from rankless.report.collected import Collected
from rankless.structures import Scores

_SHARE = 0.05  # maximum fraction of the time spent on drawing between evaluations
_WAIT = 1.0  # minimum seconds between two drawings
_WIDTH = 960  # displayed width of the image in pixels


class NotebookSink(Sink):
    """Shows the losses, scores and remaining time as an image, drawn from the run's journal."""

    def start(self, run: RunStart) -> None:
        needed("matplotlib", "plot", "the curves in this notebook")
        self._run, self._first, self._steps = Collected(run.run), run.first, run.steps
        self._epochs, self._seconds = int(run.recipe["epochs"]), 0.0
        self._progress, self._next, self._shown = "", 0.0, None

    def step(self, entry: Mapping[str, Any]) -> None:
        """Draw the curves if enough time has passed since the last drawing."""
        done = int(entry["step"])
        self._seconds += entry["timing"]["seconds"]
        left = (self._steps - done) * self._seconds / max(done - self._first, 1)
        epoch = min(entry["epoch"], self._epochs)
        self._progress = (
            f"epoch {epoch:.2f}/{self._epochs}  step {done:,}/{self._steps:,}  {clock(left)} left"
        )
        if time.monotonic() >= self._next:
            self._draw()

    def scores(self, step: int, scores: Scores, is_best: bool) -> None:
        self._draw()

    def close(self) -> None:
        self._draw()

    def _draw(self) -> None:
        from IPython.display import Image, display

        from rankless.report.plot import figure, save

        began, file = time.monotonic(), io.BytesIO()
        if not self._progress:
            return
        made = figure([self._run.refresh()], details=False)
        made.text(0.99, 0.985, self._progress, ha="right", va="top", family="monospace")
        for axes in made.axes:
            axes.set_xlim(0, self._steps)
        save(made, file, "png")
        image = Image(file.getvalue(), format="png", width=_WIDTH, alt=f"curves: {self._progress}")
        if self._shown is None:
            self._shown = display(image, display_id=True)
        else:
            self._shown.update(image)
        now = time.monotonic()
        self._next = now + max(_WAIT, (now - began) / _SHARE)
