"""What the tests of saving have in common: a sink, a world of one, and a task with large checkpoints."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from rankless.engine.saver import Saver
from rankless.engine.sinks.sink import Sink
from rankless.recipe.schema import Batch, Checkpoint, Optim, Recipe
from rankless.structures import LossSum

ALONE: Any = SimpleNamespace(
    is_first=True, rank=0, size=1, broadcast=lambda value: value, all_gather=lambda value: [value]
)


class Messages(Sink):
    """Collects what a person would read."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def event(self, name: str, step: int, text: str) -> None:
        self.texts.append(text)


def messages_of(saver: Saver) -> list[str]:
    (sink,) = saver.sinks._built_in
    assert isinstance(sink, Messages)
    return sink.texts


class Wide:
    """A task whose checkpoints have 1.4 MB: 480 kB of weights and twice that of AdamW's."""

    class_names = ()
    score_name = "score"

    def __init__(self, recipe: Recipe) -> None:
        pass

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 20000), nn.Linear(20000, 1))

    def training_data(self) -> Any:
        return Numbers()

    evaluation_data = training_data

    def collate(self, items: Any) -> Tensor:
        return torch.stack(list(items))

    def loss(self, model: nn.Module, batch: Tensor) -> LossSum:
        return LossSum(model(batch).square().sum(), torch.tensor(float(len(batch))))

    def predict(self, model: nn.Module, batch: Tensor) -> list[float]:
        return [float(value) for value in model(batch)[:, 0]]

    def score(self, predictions: Any) -> dict[str, float]:
        return {"score": -float(sum(map(abs, predictions)))}


class Numbers:
    def __len__(self) -> int:
        return 16

    def item(self, index: int, epoch: int) -> Tensor:
        return torch.randn(4, generator=torch.Generator().manual_seed(100 * epoch + index))


RECIPE = Recipe(
    batch=Batch(images=8, micro=4),
    epochs=4,
    precision="fp32",
    optim=Optim(name="adamw", lr=0.001),
    checkpoint=Checkpoint(every=2, keep=2),
)
