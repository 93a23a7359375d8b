"""The base class of the predictors. Each kind of task has its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rankless.data.images.image_file import Decoded, Pixels, Shown
from rankless.errors import UserError
from rankless.models.weights_files import weights
from rankless.recipe.schema import Data, Recipe
from rankless.tasks import open_task, trained
from rankless.tasks.memory_check import refuse_giant_image

MOST_AT_ONCE = 4096


@dataclass(frozen=True)
class PredictOptions:
    """The options of a prediction; see :func:`rankless.predict`."""

    confidence: float | None = None
    classes: Sequence[str | int] = ()
    device: str | None = None
    overrides: Sequence[str] = ()
    task: type | str | None = None
    batch: int | None = None

    def __post_init__(self) -> None:
        if self.confidence is not None and not 0 <= self.confidence <= 1:
            raise UserError(f"confidence is {self.confidence:g}; expected a number from 0 to 1")
        if self.batch is not None and not 1 <= self.batch <= MOST_AT_ONCE:
            raise UserError(
                f"batch is {self.batch}; expected a whole number of images from 1 to {MOST_AT_ONCE:,}"
            )


class Finder:
    """A predictor that uses a trained model.

    Attributes:
        class_names: one name per class id; empty if the task has none.
        shown: how images are decoded for the network.
        fused: whether the model needs neither autocast nor batch-invariant kernels.
        heat: set to compute heat maps.
    """

    class_names: tuple[str, ...] = ()
    shown = Shown((0, 0), detail=0)  # in full size
    fused = False
    heat = False
    model: nn.Module

    def __init__(
        self, loaded: weights.Weights, asked: PredictOptions, device: torch.device, source: str
    ) -> None:
        raise NotImplementedError

    def _load(self, recipe: Recipe, loaded: weights.Weights, device: torch.device, source: str) -> Any:
        """Load the model of a built-in task, and return the task. Messages mention ``source``."""
        task: Any = open_task(recipe, loaded.class_names, exported=trained.is_exported(loaded))
        self.class_names, self.device = task.class_names, device
        refuse_giant_image(task.size, source, task.activations)
        self.model = trained.model(task, loaded, source).to(device).eval()
        return task

    def unfit(self) -> tuple[frozenset[str], str]:
        """Return the kinds of results that this predictor does not have, and the reason."""
        return frozenset(), ""

    def scene(self, data: Data, split: str, index: int) -> Tensor:
        """Return an image of built-in data, uint8 (3, H, W)."""
        raise NotImplementedError

    def item(self, view: Decoded) -> Any:
        """Place a decoded image on the network's input."""
        return view.image

    def answers(self, items: Sequence[Any], batch: int) -> Sequence[Any]:
        """Predict on images. A batch of fewer than ``batch`` images is filled with copies of the last one."""
        raise NotImplementedError

    def best(self, answer: Any) -> float:
        """Return the highest score, even if it is below the confidence threshold."""
        return 0.0

    def result(self, answer: Any, image: Pixels, source: str) -> Any:
        """Return the result of an image (H, W, 3); see :mod:`.results`."""
        return answer

    def level(self, answer: Any, image: Pixels) -> Pixels | None:
        """Return the heat map, uint8 (H, W), of an image (H, W, 3), or None if it was not requested."""
        return None
