"""The interface of a task: everything the engine needs, and everything a user writes for a new task.

The engine never handles boxes. It draws items, collates them, computes a loss as a sum and a count, and
passes predictions on to be scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn

from rankless.recipe.schema import Recipe
from rankless.structures import LossSum, Scores


class Examples(Protocol):
    """A data set for the engine. It must be picklable, because loader processes receive a copy.

    Optional members:

    - ``notes``: sentences about clipped or omitted data, printed when a run starts.
    - ``items(line, step)``: returns all items of a micro-batch of a step, for data with items that depend on
      the step or on each other; it is called instead of ``item``. ``line`` is a list of (epoch, index), and
      the result is a list of the same length. In an evaluation the step is 0.
    - ``evaluation_order()``: returns the order in which images are batched for prediction, int64 (N,), or
      None. The images are scored in the order of their indices.
    - ``digest``: a string that changes with the data; a run resumed with other data reports the change.
    - ``files()``: returns the paths of the files with the images; each start records their digests, so that
      an audit names a changed file.
    - ``facts(step)``: returns additional entries for the journal's line of a step, JSON-ready. They must
      depend only on the step.
    """

    def __len__(self) -> int:
        """Return the number of images."""
        ...

    def item(self, index: int, epoch: int) -> Any:
        """Return image ``index`` in ``epoch``; it must depend only on these arguments and the seed."""
        ...


class Batch(Protocol):
    """The result of ``collate``.

    Optional members:

    - ``unreadable``: a list of :class:`rankless.structures.Unreadable`, the images that are replaced in
      training or cannot be scored. The engine counts them and ends a run that has too many.
    - ``readable()``: returns the batch without these images, or None if no image is left. The validation loss
      is computed on it.
    """

    def to(self, device: torch.device) -> Batch:
        """Return the batch with its tensors on ``device``."""
        ...


class Task(Protocol):
    """A model, a loss, predictions and their scores.

    Attributes:
        class_names: the class names, written into every weights file; may be empty.
        score_name: the entry of ``score`` that chooses the best checkpoint, unless the recipe names another
            (``evaluate.best``); a higher score is better.

    Optional members:

    - ``validation_loss``: if True, every evaluation also computes ``loss`` on the evaluation data, with the
      model in evaluation mode and without gradients; its mean is the score ``loss``. If ``predict`` and
      ``loss`` call the model with the same tensor, the model computes it only once, so neither may change its
      output in place.
    - ``report_details(predictions)``: returns additional details for the report, JSON-ready, with some of the
      keys in docs/report.md. It is called with the same predictions as ``score`` if the scores are the best
      so far. Its errors do not end training.
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
        """Return one prediction per image of the batch, on the CPU. This is called without gradients."""
        ...

    def score(self, predictions: Sequence[Any]) -> Scores:
        """Score the predictions of all evaluation images, in the order of the images."""
        ...
