"""The interface of a task: all that the engine needs, and all that a user writes to train something new.

The engine never sees a box. It draws items, collates them, computes a loss as a sum and a count, and passes
predictions to be scored.
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

    - ``notes``: sentences about what was clipped or left out; they are printed when a run starts.
    - ``items(line, step)``: the items of a whole micro-batch of a step, a list as long as ``line`` of (epoch,
      index), for data whose items depend on the step or on each other; it is called instead of
      ``item``. In an evaluation the step is 0.
    - ``evaluation_order()``: the order in which images are batched for prediction, int64 (N,), or None;
      they are scored in the order of their indices.
    - ``digest``: a text that changes with the data; a run that is resumed with other data reports it.
    - ``facts(step)``: additional entries for the journal's line of a step, JSON-ready; a function of the
      step.
    """

    def __len__(self) -> int:
        """Return the number of images."""
        ...

    def item(self, index: int, epoch: int) -> Any:
        """Return image ``index`` in ``epoch``, which depends only on these two and the seed."""
        ...


class Batch(Protocol):
    """The result of ``collate``.

    It may have ``unreadable``, a list of :class:`rankless.structures.Unreadable`: images that are
    replaced in training, or that cannot be scored. The engine counts them and ends a run with too many.
    And ``readable()``, the batch without them, or None where none is left: the validation loss is computed of
    that.
    """

    def to(self, device: torch.device) -> Batch:
        """Return the batch with its tensors on ``device``."""
        ...


class Task(Protocol):
    """A model, a loss, predictions and their scores.

    Attributes:
        class_names: written into every weights file; may be empty.
        score_name: the entry of ``score`` by which the best checkpoint is chosen unless the recipe names
            another (``evaluate.best``); more is better.

    It may also have ``validation_loss = True``: then every evaluation computes ``loss`` of the evaluation
    data too, with the model in evaluation mode and without gradients, and its mean is the score ``loss``.
    Where ``predict`` and ``loss`` call the model with the same tensor it computes it once, so neither may
    change its output in place.

    And ``report_details(predictions)``, given the same as ``score`` when its scores are the best so far: what
    the report shows beyond them, JSON-ready, with some of the keys in docs/report.md. Its errors end no
    training.
    """

    class_names: tuple[str, ...]
    score_name: str

    def __init__(self, recipe: Recipe) -> None: ...

    def model(self) -> nn.Module:
        """Build the bare model on the CPU, freshly initialized from torch's global generator."""
        ...

    def training_data(self) -> Examples: ...

    def evaluation_data(self) -> Examples: ...

    def collate(self, items: Sequence[Any]) -> Batch: ...

    def loss(self, model: nn.Module, batch: Any) -> LossSum:
        """Compute the loss of one micro-batch, summed over its images."""
        ...

    def predict(self, model: nn.Module, batch: Any) -> list[Any]:
        """Return one prediction per image of the batch, on the CPU; called without gradients."""
        ...

    def score(self, predictions: Sequence[Any]) -> Scores:
        """Score the predictions of the whole evaluation data, in the order of its images."""
        ...
