"""The interface between the engine and a task, which custom tasks implement.

The engine never handles boxes. It requests items, collates them, computes a loss as a sum and a count, and
passes the predictions back to the task for scoring.
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
    - ``items(line, step)``: returns all items of one micro-batch, for data whose items depend on the step or
      on each other. It is called instead of ``item``. ``line`` is a list of pairs (epoch, index), and the
      result is a list of the same length. In an evaluation, the step is 0.
    - ``evaluation_order()``: returns the order in which images are batched for prediction, int64 (N,), or
      None. The images are scored in the order of their indices.
    - ``digest``: a string that changes with the data. If it changed, a resumed run prints a warning.
    - ``files()``: returns the paths of the image files. Each start records the files' digests, so that an
      audit can name a changed file.
    - ``facts(step)``: returns additional JSON-ready entries for a step's line in the journal. They must
      depend only on the step.
    """

    def __len__(self) -> int:
        """Return the number of images."""
        ...

    def item(self, index: int, epoch: int) -> Any:
        """Return image ``index`` as seen in ``epoch``. It may depend only on these arguments and the seed."""
        ...


class Batch(Protocol):
    """The result of ``collate``.

    Optional members:

    - ``unreadable``: a list of :class:`rankless.structures.Unreadable`, the images that training replaces and
      evaluation does not score. The engine counts them and ends a run with too many.
    - ``readable()``: returns the batch without its unreadable images, or None if all are unreadable. The
      validation loss is computed on the result.
    """

    def to(self, device: torch.device) -> Batch:
        """Return the batch with its tensors on ``device``."""
        ...


class Task(Protocol):
    """A model, a loss, predictions and their scores.

    Attributes:
        class_names: the class names, stored in every weights file. May be empty.
        score_name: the score that selects the best checkpoint, unless the recipe names another one
            (``evaluate.best``). A higher score is better.

    Optional members:

    - ``validation_loss``: if True, every evaluation also computes ``loss`` on the evaluation data, with the
      model in evaluation mode and without gradients. Its mean is the score ``loss``. If ``predict`` and
      ``loss`` call the model with the same tensor, the model runs only once, so neither may change its output
      in place.
    - ``report_details(predictions)``: returns additional JSON-ready details for the report, with keys from
      docs/report.md. It is called with the same predictions as ``score`` if the scores are the best so far.
      An exception in it does not end training.
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
        """Return one prediction per image of the batch, on the CPU. Gradients are disabled."""
        ...

    def score(self, predictions: Sequence[Any]) -> Scores:
        """Score the predictions of all evaluation images, in the order of the images."""
        ...
