"""Predict in Python programs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from rankless.arguments import classes_of, several
from rankless.data.images.image_file import UnreadableImage
from rankless.errors import UserError, counted, listed
from rankless.hardware.computing import float32_like
from rankless.inference.finder import PredictOptions
from rankless.inference.inputs import ImageLike, source_of
from rankless.inference.model_loading import Opened, open_finders
from rankless.inference.pipeline import Source, outcomes, threads
from rankless.inference.results import Result, Results
from rankless.task_kinds import BUILT_IN


def load(
    target: str | os.PathLike[str],
    overrides: str | Sequence[str] = (),
    *,
    confidence: float | None = None,
    classes: str | Sequence[str | int] = (),
    device: str | None = None,
    batch: int | None = None,
) -> Predictor:
    """Load a trained detector or classifier for prediction.

    Args:
        target: a run directory (its best weights are used) or a weights file.
        overrides: changes to the recipe of the weights, ``key=value``, such as ``evaluate.iou=0.5``.
        confidence: minimum score, 0..1. The default is 0.25 for detections, and 0 for a classifier, which
            reports its best five classes.
        classes: names or ids of the classes to detect. By default, all classes are detected.
        device: a torch device, or several such as ``cuda:0,cuda:1``. By default, all GPUs are used, or the
            CPU if there are none.
        batch: batch size. The default is 16 on a GPU. On a CPU, where it does not affect the results, the
            default is 1, or 4 for Darknet's networks in :meth:`Predictor.predict`.

    Raises:
        UserError: there are no weights, or the options do not fit them. The error lists all problems.

    Examples:
        >>> model = rankless.load("runs/digits")
        >>> (result,) = model.predict("digits:val:1000")
        >>> result.names, result.xyxy.shape, result.scores.min() > 0.25
    """
    asked = PredictOptions(confidence, classes_of(classes), device, tuple(several(overrides)), None, batch)
    return Predictor(open_finders(Path(target), asked))


class Predictor:
    """A trained model for prediction, as returned by :func:`rankless.load`.

    Attributes:
        class_names: one name per class id.
        task: ``detect`` or ``classify``.
        weights: the weights file.
    """

    def __init__(self, opened: Opened) -> None:
        finder = opened.finders[0]
        if opened.recipe.task not in BUILT_IN:
            raise UserError(
                f"{opened.path}: its task is '{opened.recipe.task}', which is not built in; use "
                "rankless.predict(…, task=…)"
            )
        self._opened, self._finder = opened, finder
        self.class_names: tuple[str, ...] = tuple(finder.class_names)
        self.task, self.weights = opened.recipe.task, opened.path

    def predict(self, images: ImageLike | Iterable[ImageLike]) -> Results:
        """Predict on one or more images.

        Args:
            images: an image or an iterable of images. An image is a path, a built-in scene
                (``digits:val:3``), a PIL image, a NumPy array (uint8 RGB (H, W, 3) or gray (H, W)), or a
                tensor (3, H, W) of uint8 or floats in 0..1. OpenCV's images are BGR and must be converted
                with ``image[..., ::-1]``.

        Returns:
            A list with one :class:`DetectionResult` or :class:`ClassificationResult` per image.

        Raises:
            UserError: an item is not an image, or cannot be read. The error lists all unreadable files.
        """
        results, unreadable = Results(), []
        for result in self._results(images, self._opened.patient_batch):
            if isinstance(result, UnreadableImage):
                unreadable.append(result)
            else:
                results.append(result)
        if unreadable:
            raise UserError(problem for error in unreadable for problem in error.problems)
        return results

    def stream(self, images: Iterable[ImageLike]) -> Iterator[Result]:
        """Predict on many images, with only a few of them in memory at a time.

        Args:
            images: see :meth:`predict`.

        Yields:
            The results in the order of the images.

        Raises:
            UnreadableImage: an image cannot be read. The error is raised in place of its result.
        """
        for result in self._results(images, self._opened.batch):
            if isinstance(result, UnreadableImage):
                raise result
            yield result

    def _results(
        self, images: ImageLike | Iterable[ImageLike], batch: int
    ) -> Iterator[Result | UnreadableImage]:
        if isinstance(images, str | os.PathLike | Image.Image) or (
            isinstance(images, np.ndarray | torch.Tensor) and images.ndim < 4
        ):
            images = [images]
        sources: Iterable[Source] = (source_of(one, number) for number, one in enumerate(images))
        with float32_like(self._opened.recipe.precision), threads() as pool:
            for one in outcomes(self._opened, sources, pool, batch):
                if one.image is None:
                    yield UnreadableImage(one.source.name, one.reason)
                else:
                    pixels = one.image.permute(1, 2, 0).contiguous().numpy()
                    yield self._finder.result(one.answer, pixels, one.source.name)

    def __repr__(self) -> str:
        classes = f"{counted(len(self.class_names), 'class', 'classes')}: {listed(self.class_names)}"
        return f"<Predictor {self.weights}, {self.task}, {classes}>"
