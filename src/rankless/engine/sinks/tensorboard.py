"""A sink that writes event files for TensorBoard to ``tensorboard`` in the run directory."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from typing import Any

from rankless.engine.sinks.numbers import flat, of_scores, of_step
from rankless.engine.sinks.sink import RunStart, Sink
from rankless.randomness import GENERATORS
from rankless.structures import Scores


class TensorBoardSink(Sink):
    """Writes scalars, the recipe, the network's graph and events."""

    def start(self, run: RunStart) -> None:
        """Open a new file. TensorBoard drops the steps of earlier files that will be repeated."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(run.run / "tensorboard", purge_step=run.first + 1 if run.first else None)
        rows = [f"| {key} | {value.replace('|', ' ')} |" for key, value in flat(run.recipe)]
        self._writer.add_text("recipe", "\n".join(["| key | value |", "|---|---|", *rows]), run.first)
        if not run.first:
            self._add_graph(run.recipe)

    def step(self, entry: Mapping[str, Any]) -> None:
        self._add(of_step(entry), entry["step"])

    def scores(self, step: int, scores: Scores, is_best: bool) -> None:
        self._add(of_scores(scores), step)
        self._writer.flush()

    def event(self, name: str, step: int, text: str) -> None:
        self._writer.add_text(f"events/{name}", text, step)

    def close(self) -> None:
        self._writer.close()

    def _add_graph(self, recipe: Mapping[str, Any]) -> None:
        """Trace the recipe's network with a black image, and add the graph or the reason for a failure."""
        import torch

        from rankless.recipe.load import from_json
        from rankless.tasks import open_task

        with GENERATORS, torch.random.fork_rng(devices=[]), warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # warnings about traced code that depends on the image's size
            try:
                task: Any = open_task(from_json(json.dumps(recipe)))
                image = torch.zeros(1, 3, *task.size)
                traced = torch.jit.trace(task.model().eval(), image, check_trace=False, strict=False)
                self._writer.add_graph(traced, image)
            except Exception as error:  # PyTorch cannot trace every network, or it is the user's own
                said = str(error).strip().partition("\n")[0]
                self._writer.add_text("graph", f"no graph, because the network cannot be traced ({said})", 0)

    def _add(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
