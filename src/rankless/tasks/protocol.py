"""What a task is: all that the engine asks of it, and all that a user writes to train something new.

The engine never sees a box. It draws items, collates them, asks for a loss as a sum and a count, and hands
predictions back to be scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn

from rankless.recipe.schema import Recipe
from rankless.structures import LossSum, Scores


class Examples(Protocol):
    """A data set as the engine sees it. Must pickle: loader processes receive a copy.

    It may also have:

    - ``notes``: sentences about what was clipped or left out; they are told when a run begins.
    - ``items(line, step)``: the items of a whole micro-batch of a step, a list as long as ``line`` of (epoch,
      index), for data whose items depend on the step or on each other; it is then called in place of
      ``item``. In an evaluation the step is 0.
    - ``evaluation_order()``: the order in which images are cut into batches to be predicted, int64 (N,), or
      None; they are scored in their own.
    - ``digest``: a text that is another one when the data is; a run that goes on with other data says so.
    - ``facts(step)``: what the journal's line of a step says besides, a dict that JSON can hold; a function
      of the step.
    """

    def __len__(self) -> int:
        """How many images."""
        ...

    def item(self, index: int, epoch: int) -> Any:
        """Image ``index`` as it looks in ``epoch``: a function of the two and of the seed alone."""
        ...


class Batch(Protocol):
    """What ``collate`` makes of a list of items.

    It may have ``unreadable``, a list of :class:`rankless.structures.Unreadable`: images that are
    replaced in training, or that cannot be scored. The engine counts them and ends a run with too many.
    """

    def to(self, device: torch.device) -> Batch:
        """The batch with its tensors on ``device``."""
        ...


class Task(Protocol):
    """A model, a loss, what to predict and how to score it.

    Attributes:
        class_names: written into every weights file; may be empty.
        score_name: the entry of ``score`` by which the best checkpoint is chosen; more is better.
    """

    class_names: tuple[str, ...]
    score_name: str

    def __init__(self, recipe: Recipe) -> None: ...

    def model(self) -> nn.Module:
        """The bare model on the CPU, freshly initialized from torch's global generator."""
        ...

    def training_data(self) -> Examples: ...

    def evaluation_data(self) -> Examples: ...

    def collate(self, items: Sequence[Any]) -> Batch: ...

    def loss(self, model: nn.Module, batch: Any) -> LossSum:
        """The loss of one micro-batch, summed over its images."""
        ...

    def predict(self, model: nn.Module, batch: Any) -> list[Any]:
        """One prediction per image of the batch, on the CPU and picklable; called without gradients."""
        ...

    def score(self, predictions: Sequence[Any]) -> Scores:
        """Scores of the predictions of the whole evaluation data, in the order of its images."""
        ...
