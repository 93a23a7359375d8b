"""A run in TensorBoard: event files in the run directory's ``tensorboard``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankless.engine.sinks.numbers import flat, of_scores, of_step
from rankless.engine.sinks.sink import RunStart, Sink
from rankless.structures import Scores


class TensorBoardSink(Sink):
    """Writes scalars, the recipe and what happened."""

    def start(self, run: RunStart) -> None:
        """Open a file; TensorBoard drops the steps of earlier ones that are about to come again."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(run.run / "tensorboard", purge_step=run.first + 1 if run.first else None)
        rows = [f"| {key} | {value.replace('|', ' ')} |" for key, value in flat(run.recipe)]
        self._add_text("recipe", "\n".join(["| key | value |", "|---|---|", *rows]), run.first)

    def step(self, entry: Mapping[str, Any]) -> None:
        """Write the scalars of a step."""
        self._add(of_step(entry), entry["step"])

    def scores(self, step: int, scores: Scores, is_best: bool) -> None:
        """Write the scalars of an evaluation."""
        self._add(of_scores(scores), step)
        self._writer.flush()

    def event(self, name: str, step: int, text: str) -> None:
        """Write a text."""
        self._add_text(f"events/{name}", text, step)

    def close(self) -> None:
        """Close the file."""
        self._writer.close()

    def _add(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def _add_text(self, name: str, text: str, step: int) -> None:
        self._writer.add_text(name, text, step)
