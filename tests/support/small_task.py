"""A regression on random vectors, as small as a task can be, and its training on a rank of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankless.engine import loop
from rankless.engine.state import TrainingState
from rankless.engine.totals import Flags, Numbers
from rankless.errors import UserError
from rankless.hardware.computing import computes_like
from rankless.recipe.schema import Recipe
from rankless.runs.directory import RunDirectory
from rankless.structures import LossSum
from rankless.world.process_group import World


class Regression:
    """Tests override what they are about."""

    class_names: tuple[str, ...] = ()
    score_name = "score"
    images = 16

    def model(self) -> nn.Module:
        return nn.Linear(4, 1)

    def training_data(self) -> Any:
        return self

    evaluation_data = training_data

    def __len__(self) -> int:
        return self.images

    def item(self, index: int, epoch: int) -> Tensor:
        return torch.randn(4, generator=torch.Generator().manual_seed(100 * epoch + index))

    def collate(self, items: Any) -> Tensor:
        return torch.stack(list(items))

    def loss(self, model: nn.Module, batch: Tensor) -> LossSum:
        return LossSum((model(batch) - 1).square().sum(), torch.tensor(float(len(batch))))

    def predict(self, model: nn.Module, batch: Tensor) -> list[float]:
        return [float(value) for value in model(batch).flatten()]

    def score(self, predictions: Any) -> dict[str, Any]:
        return {"score": -float(sum(map(abs, predictions)))}


def train(world: World, task: Any, recipe: Recipe, folder: str, **options: Any) -> bool | list[str]:
    """Whether all steps are done, or the problems."""
    try:
        with computes_like(recipe):
            run = RunDirectory(Path(folder))
            return loop.train(recipe, run, world, task=task, **{"resume": False, **options})
    except UserError as error:
        return list(error.problems)


def steps(state: TrainingState, count: int, batch: Callable[[int, int], Any]) -> Iterator[Numbers]:
    """The numbers of each step; ``batch(step, leaf)`` is a micro-batch."""
    state.training_mode()
    for step in range(count):
        state.begin(step)
        own = state.world.own_micro_batches(state.recipe.batch.micro_batches)
        drawn = (batch(step, leaf) for leaf in own)
        yield loop.update(state, step, state.compute(step, drawn, Flags()))
