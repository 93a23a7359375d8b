"""Prediction: annotated images and a JSON file from a run or a weights file and some images.

Images are preprocessed as in evaluation, one at a time: the detections in an image never depend on other
images. Boxes are in pixels of the image after its EXIF rotation. In evaluation a box may have several
classes, as is usual on COCO; here its best class alone enters NMS, so a box whose best class was suppressed
is not shown under its second. Detectors are in :mod:`rankless.inference.predict_detect`, classifiers in
:mod:`rankless.inference.predict_classify`, tasks of the user's own in
:mod:`rankless.inference.predict_custom`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from rankless.data.images import image_file as samples
from rankless.data.images.drawing import annotate
from rankless.data.images.image_file import Decoded
from rankless.errors import UserError, printable
from rankless.files.numbered import numbered_folder, removed_on_error
from rankless.files.outputs import Outputs, refuse_filled
from rankless.inference.predict_classify import ClassFinder
from rankless.inference.predict_custom import CustomFinder
from rankless.inference.predict_detect import BoxFinder
from rankless.inference.sources import JPEG, SCENES, find, output_names
from rankless.models.checkpoints import weights
from rankless.recipe import load
from rankless.recipe.precision import autocast, resolve
from rankless.recipe.schema import Recipe
from rankless.recipe.used import refuse_unused_in_prediction
from rankless.runs.directory import weights_of
from rankless.tasks.custom import absolute, name_of, refuse_unasked
from rankless.world.compat import set_tf32


@dataclass(frozen=True)
class ImageReport:
    """The predictions for one image.

    Attributes:
        source: the image's path or scene.
        annotated: the image with its boxes drawn; None where a task of the user's own draws nothing.
        width, height: of the image, in pixels.
        detections: best first; ``box`` (xyxy in pixels), ``score``, ``label`` and ``name`` of each.
        classes: for a classifier, in place of detections: ``score``, ``label`` and ``name`` of the best five.
        prediction: of a task of the user's own, in place of both.
    """

    source: str
    annotated: Path | None
    width: int
    height: int
    detections: list[dict[str, Any]]
    classes: list[dict[str, Any]] = field(default_factory=list)
    prediction: dict[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        found: dict[str, Any] = {"detections": self.detections}
        if self.prediction is not None:
            found = {"prediction": self.prediction}
        elif self.classes:
            found = {"classes": self.classes}
        drawn = {"annotated": self.annotated.name} if self.annotated else {}
        return {"source": self.source, **drawn, "width": self.width, "height": self.height, **found}


@dataclass
class PredictionReport:
    """The result of :func:`predict`.

    Attributes:
        out: the folder of the annotated images and ``predictions.json``.
        weights: the weights file.
        precision: of the forward pass: that of the file's recipe, as in evaluation.
        images: one report per readable image, in the order of the sources.
        failed: source and reason of each unreadable image.
        removed: annotated images of an earlier call in the same folder, which ``predictions.json`` no longer
            lists.
        best: the highest score of any prediction, found or left out; 0.0 where none is known.
    """

    out: Path
    weights: Path
    precision: str = "fp32"
    images: list[ImageReport] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    removed: list[Path] = field(default_factory=list)
    best: float = 0.0

    @property
    def exit_code(self) -> int:
        """Return 0, or 1 if an image could not be read."""
        return 1 if self.failed else 0

    def predictions(self) -> list[dict[str, Any]]:
        """Return the content of ``predictions.json``."""
        return [image.as_json() for image in self.images]

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain data: images with predictions, and failures with reasons."""
        return {
            "weights": str(self.weights),
            "computed_in": self.precision,
            "out": str(self.out),
            "images": self.predictions(),
            "failed": [{"source": source, "reason": reason} for source, reason in self.failed],
            "removed": [file.name for file in self.removed],
        }


def predict(
    target: Path,
    sources: Sequence[str],
    *,
    out: Path | None = None,
    confidence: float | None = None,
    device: str | None = None,
    overrides: Sequence[str] = (),
    force: bool = False,
    task: type | str | None = None,
) -> PredictionReport:
    """Detect objects in images, classify them, or ask a task of the user's own about them.

    Args:
        target: a run directory (its best weights are used) or a weights file.
        sources: images, folders (searched with their subfolders), glob patterns, or built-in scenes as
            ``digits:val:0-7``.
        out: a new or empty folder for the annotated images and ``predictions.json``; None makes a new one,
            ``predictions``, ``predictions-2`` …
        confidence: predictions with a lower score are discarded, 0..1; by default 0.25 for detections; a
            classifier's best five classes are reported.
        device: a torch device; the first GPU if there is one, else the CPU.
        overrides: ``key=value``, changes to the recipe of the weights, as in ``evaluate.iou=0.5``.
        force: take an ``out`` that is not empty: results of an earlier call are replaced or removed, other
            files stay unless they are in the way (see :mod:`rankless.files.outputs`).
        task: a task of your own, as for :func:`rankless.train`; one that only the weights' recipe names is
            not run.

    Raises:
        UserError: no weights, a source without images, an output folder that cannot be used, or files in it
            that must not be replaced; lists all of them and changes nothing. Unreadable images are not an
            error: they are listed in the report.
    """
    if confidence is not None and not 0 <= confidence <= 1:
        raise UserError(f"confidence is {confidence:g}: expected a number from 0 to 1")
    found, chosen, (path, loaded) = _all_or_errors(
        lambda: find(sources), lambda: _device(device), lambda: _loaded(target, task, overrides)
    )
    recipe = loaded.recipe
    loaded = replace(
        loaded, recipe=replace(recipe, precision=resolve(recipe.precision, chosen, recipe.cpu_isa))
    )
    finder = _finder(loaded, confidence, chosen, str(path))
    precision = loaded.recipe.precision
    with _computing(loaded.recipe, chosen):
        if out is not None:
            return _written(found, finder, PredictionReport(out, path, precision), force=force)
        out = numbered_folder(Path("predictions"), "--out")
        with removed_on_error(out):
            return _written(found, finder, PredictionReport(out, path, precision), force=force)


def _written(
    sources: list[str], finder: _Finder, report: PredictionReport, *, force: bool
) -> PredictionReport:
    """Predict on every source and write the results into the report's folder."""
    out, names = report.out, output_names(sources, report.out)
    listing = out / "predictions.json"
    outputs = Outputs([*(out / name for name in names), listing], verb="predict", force=force)
    outputs.refuse_inputs([*sources, report.weights])
    if not force:
        refuse_filled(out)
    for source, name in zip(sources, names, strict=True):
        try:
            image, view = _read(source, finder)
        except samples.UnreadableImage as error:
            report.failed.append((source, error.reason))
        else:
            report.images.append(_annotated(source, image, view, finder, outputs, out / name))
    report.best = finder.best
    lines = ",\n".join(json.dumps(prediction) for prediction in report.predictions())  # one image per line
    with outputs.writing(listing) as file:
        file.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    report.removed.extend(outputs.remove_others(out))
    return report


def _all_or_errors(
    find: Callable[[], list[str]],
    device: Callable[[], torch.device],
    load: Callable[[], tuple[Path, weights.Weights]],
) -> tuple[list[str], torch.device, tuple[Path, weights.Weights]]:
    """Return the results of all three.

    Raises:
        UserError: the errors of all of them together.
    """
    problems: list[str] = []
    made: list[Any] = []
    for part in (find, device, load):
        try:
            made.append(part())
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(problems)
    return made[0], made[1], made[2]


def _loaded(target: Path, task: type | str | None, overrides: Sequence[str]) -> tuple[Path, weights.Weights]:
    path = weights_of(target)
    loaded = weights.load(path)
    if task is not None:
        loaded = replace(loaded, recipe=replace(loaded.recipe, task=absolute(name_of(task))))
    else:
        refuse_unasked(loaded.recipe.task, path)
    if overrides:
        refuse_unused_in_prediction(overrides, loaded.recipe.task)
        loaded = replace(loaded, recipe=load.changed(loaded.recipe, overrides))
    return path, loaded


@contextmanager
def _computing(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Inside, the forward pass has the recipe's precision, as in evaluation."""
    restore = set_tf32(recipe.precision == "tf32")
    try:
        with torch.inference_mode(), autocast(recipe.precision, device):
            yield
    finally:
        restore()


def _device(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"device '{name}' cannot be used ({reason}); expected cpu, cuda or cuda:N") from None
    return device


_Finder = BoxFinder | ClassFinder | CustomFinder


def _finder(loaded: weights.Weights, confidence: float | None, device: torch.device, source: str) -> _Finder:
    """Return the finder of the weights' task."""
    if loaded.recipe.task == "detect":
        return BoxFinder(loaded, confidence, device, source)
    if loaded.recipe.task == "classify":
        return ClassFinder(loaded, confidence or 0.0, device, source)
    if confidence is not None:
        raise UserError(
            f"--confidence is {confidence:g}, but the task '{printable(loaded.recipe.task)}' decides itself "
            "what it reports; leave it out"
        )
    return CustomFinder(loaded, device, source)


def _read(source: str, finder: _Finder) -> tuple[Tensor, Decoded]:
    """Read an image to draw on, uint8 (3, H, W), and for the network, reduced as in training."""
    scene = SCENES.fullmatch(source)
    if scene is None or Path(source).exists():
        image = samples.read(Path(source))
        height, width = image.shape[-2:]
        if not isinstance(finder, CustomFinder) and finder.shown.reduction(height, width) > 1:
            return image, samples.read_for(Path(source), finder.shown)
    else:
        image = finder.scene(scene[1], int(scene[2]))
    return image, Decoded(image, 1, (image.shape[1], image.shape[2]))


def _annotated(
    source: str, image: Tensor, view: Decoded, finder: _Finder, outputs: Outputs, path: Path
) -> ImageReport:
    """Predict on one image (3, H, W), and draw and write the predictions."""
    height, width = image.shape[-2:]
    if isinstance(finder, CustomFinder):
        prediction, drawn = finder.answer(image)
        if drawn is not None:
            _save(drawn, outputs, path)
        return ImageReport(source, path if drawn else None, width, height, [], prediction=prediction)
    rows, marks = finder.find(view)
    _save(annotate(Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()), marks), outputs, path)
    classes = isinstance(finder, ClassFinder)
    return ImageReport(source, path, width, height, *(([], rows) if classes else (rows, [])))


def _save(image: Image.Image, outputs: Outputs, path: Path) -> None:
    kind: dict[str, Any] = {"format": "PNG"}
    if path.suffix.lower() in JPEG:
        kind = {"format": "JPEG", "quality": 92}
    with outputs.writing(path, durable=False) as file:
        image.save(file, **kind)
