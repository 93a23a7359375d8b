"""What the tests of saving have in common: a sink, a world of one, and a task with large checkpoints."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import nn

from rankless.engine.saver import Saver
from rankless.engine.sinks.sink import Sink, Sinks
from rankless.recipe.schema import Batch, Checkpoint, Optim, Recipe
from rankless.runs.directory import RunDirectory
from support.small_task import Regression

ALONE: Any = SimpleNamespace(
    is_first=True, rank=0, size=1, broadcast=lambda value: value, all_gather=lambda value: [value]
)


class Messages(Sink):
    """Collects what a person would read."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def event(self, name: str, step: int, text: str) -> None:
        self.texts.append(text)


def saver_of(state: Any, folder: Path, keep: int) -> Saver:
    state.recipe, state.world = Recipe(checkpoint=Checkpoint(every=1, keep=keep)), ALONE
    state.task = Regression()
    return Saver(RunDirectory(folder), state, Sinks([Messages()]), 0)


def messages_of(saver: Saver) -> list[str]:
    (sink,) = saver.sinks._built_in
    assert isinstance(sink, Messages)
    return sink.texts


class Wide(Regression):
    """A task whose checkpoints have 1.4 MB: 480 kB of weights and twice that of AdamW's."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 20000), nn.Linear(20000, 1))


RECIPE = Recipe(
    batch=Batch(images=8, micro=4),
    epochs=4,
    precision="fp32",
    optim=Optim(name="adamw", lr=0.001),
    checkpoint=Checkpoint(every=2, keep=2),
)
