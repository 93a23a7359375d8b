"""Predict with a custom task."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from rankless.data.datasets.detection import open_images
from rankless.errors import UserError, printable
from rankless.inference.finder import Finder, PredictOptions
from rankless.inference.formats import KINDS, OF_ANY_TASK
from rankless.models.weights_files import weights
from rankless.printing import finite
from rankless.randomness import GENERATORS, kept_generators, seed_generators
from rankless.recipe.schema import Data
from rankless.tasks.checks import check_model
from rankless.tasks.custom import open_custom
from rankless.user_code import explained

_METHOD = "predict_image"


class CustomResult(NamedTuple):
    """The prediction for an image, and the annotated image, if any."""

    prediction: dict[str, Any]
    drawn: Image.Image | None

    def entry(self) -> dict[str, Any]:
        return {"prediction": self.prediction}

    def draw(self) -> Image.Image | None:
        return self.drawn


class CustomFinder(Finder):
    """A predictor that uses a trained custom task.

    The task needs a method ``predict_image(model, image)``. It receives an image, uint8 RGB (3, H, W) on the
    CPU, and returns a dict for ``predictions.json``. Optionally, a method ``draw(image, prediction)`` returns
    the annotated image, uint8 RGB (3, h, w).
    """

    def __init__(
        self, loaded: weights.Weights, asked: PredictOptions, device: torch.device, source: str
    ) -> None:
        self.name, self.seed = printable(loaded.recipe.task), loaded.recipe.seed
        if asked.confidence is not None:
            raise UserError(
                f"--confidence is {asked.confidence:g}, but the task '{self.name}' itself decides which "
                "results to report; remove --confidence"
            )
        with _user_errors():
            self.task: Any = open_custom(loaded.recipe)
            if not callable(getattr(self.task, _METHOD, None)):
                raise UserError(
                    f"the task '{self.name}' has no method {_METHOD}(self, model, image); add one that "
                    "returns a dict (see docs/own-task.md), or run `rankless evaluate` to score the weights"
                )
            model = self.task.model()
        check_model(self.task, model)
        weights.load_into(model, loaded.state, source)
        self.model = model.to(device).eval()

    def unfit(self) -> tuple[frozenset[str], str]:
        return frozenset(KINDS) - OF_ANY_TASK, f"'{self.name}' is a custom task"

    def scene(self, data: Data, split: str, index: int) -> Tensor:
        return open_images(data, split, index + 1).read(index).image

    def answers(self, items: Sequence[Tensor], batch: int) -> list[CustomResult]:
        return [self.answer(image) for image in items]

    def answer(self, image: Tensor) -> CustomResult:
        """Return the prediction for an image, uint8 (3, H, W)."""
        with _user_errors(), torch.inference_mode(), GENERATORS, kept_generators():
            seed_generators(self.seed, "predict")  # so that the other images have no effect
            prediction = self.task.predict_image(self.model, image)
            self._check(prediction)
            if not callable(getattr(self.task, "draw", None)):
                return CustomResult(finite(prediction), None)
            drawn = self.task.draw(image, prediction)
        fits = isinstance(drawn, Tensor) and drawn.dtype == torch.uint8 and drawn.ndim == 3
        if not fits or drawn.shape[0] != 3:
            shape = f"{drawn.dtype} of shape {tuple(drawn.shape)}" if isinstance(drawn, Tensor) else ""
            found = shape or type(drawn).__name__
            raise UserError(
                f"draw() of the task '{self.name}' returned {found}; expected a uint8 tensor (3, H, W)"
            )
        pixels = drawn.cpu().permute(1, 2, 0).contiguous().numpy()
        return CustomResult(finite(prediction), Image.fromarray(pixels))

    def _check(self, prediction: Any) -> None:
        if not isinstance(prediction, dict):
            raise UserError(
                f"{_METHOD}() of the task '{self.name}' returned {type(prediction).__name__}; expected a dict"
            )
        try:
            json.dumps(prediction)
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{_METHOD}() of the task '{self.name}' returned a value that JSON cannot represent "
                f"({error}); convert tensors and NumPy values with float()"
            ) from None


@contextmanager
def _user_errors() -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if (sentence := explained(error)) is None:
            raise
        raise sentence from error
