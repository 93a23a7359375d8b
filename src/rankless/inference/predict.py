"""Prediction: annotated images and a JSON file from a run or a weights file and some images.

Images are preprocessed as in evaluation, one at a time: the detections in an image never depend on other
images. Boxes are in pixels of the image after its EXIF rotation. In evaluation a box may have several
classes, as is usual on COCO; here it has its best. Classifiers are in
:mod:`rankless.inference.predict_classify`, tasks of the user's own in
:mod:`rankless.inference.predict_custom`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from rankless.data.datasets.builtin import DigitScenes
from rankless.data.images import image_file as samples
from rankless.data.images.drawing import Mark, Rectangle, annotate
from rankless.data.images.image_file import Decoded, Shown
from rankless.errors import UserError, printable
from rankless.files.numbered import numbered_folder, removed_on_error
from rankless.files.outputs import Outputs, refuse_filled
from rankless.geometry.letterbox import in_source, whole
from rankless.inference.predict_classify import ClassFinder
from rankless.inference.predict_custom import CustomFinder
from rankless.inference.sources import JPEG, SCENES, find, output_names
from rankless.models.checkpoints import weights
from rankless.runs.directory import weights_of
from rankless.structures import DetectionItem
from rankless.tasks.custom import absolute, name_of, refuse_unasked
from rankless.tasks.detect import SCENE_SIZE, Detect
from rankless.tasks.memory_check import refuse_giant_image

_LOOKED_AT = 0.05
"""Scores from here on are known even if ``confidence`` is higher, to say what a lower one would find."""


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
        images: one report per readable image, in the order of the sources.
        failed: source and reason of each unreadable image.
        removed: annotated images of an earlier call in the same folder, which ``predictions.json`` no longer
            lists.
        best: the highest score of any prediction, found or left out; 0.0 where none is known.
    """

    out: Path
    weights: Path
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
        lambda: find(sources), lambda: _device(device), lambda: _loaded(target, task)
    )
    finder = _finder(loaded, confidence, chosen, str(path))
    if out is not None:
        return _written(found, finder, PredictionReport(out, path), force=force)
    out = numbered_folder(Path("predictions"), "--out")
    with removed_on_error(out):
        return _written(found, finder, PredictionReport(out, path), force=force)


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


def _loaded(target: Path, task: type | str | None) -> tuple[Path, weights.Weights]:
    path = weights_of(target)
    loaded = weights.load(path)
    if task is None:
        refuse_unasked(loaded.recipe.task, path)
        return path, loaded
    return path, replace(loaded, recipe=replace(loaded.recipe, task=absolute(name_of(task))))


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


class _DetectionFinder:
    """Predicts with a trained detector."""

    def __init__(
        self, loaded: weights.Weights, confidence: float | None, device: torch.device, source: str
    ) -> None:
        recipe = loaded.recipe
        self.confidence, self.best = 0.25 if confidence is None else float(confidence), 0.0
        # What scores lower never displaces what scores higher: more candidates change nothing above it.
        lowest = min(self.confidence, _LOOKED_AT)
        recipe = replace(recipe, evaluate=replace(recipe.evaluate, confidence=lowest))
        self.task = Detect(recipe, class_names=loaded.class_names)
        model = self.task.model()
        refuse_giant_image(self.task.size, source, self.task.spec.activations(self.task.size))
        weights.load_into(model, loaded.state, source)
        self.model, self.device = model.to(device).eval(), device
        self.shown = Shown(self.task.size, recipe.data.fit, recipe.data.detail)

    def scene(self, split: str, index: int) -> Tensor:
        """Return a scene of the built-in data, uint8 (3, H, W)."""
        # As in training: validation scenes do not depend on the seed.
        seed = self.task.recipe.seed if split == "train" else 0
        return DigitScenes(split, index + 1, seed, SCENE_SIZE).read(index).image

    def find(self, view: Decoded) -> tuple[list[dict[str, Any]], list[Mark]]:
        """Detect objects, each with its best class, in pixels of the image; return rows and what to draw."""
        placed, where = whole(view.image, self.task.size, self.task.recipe.data.fit)
        where = in_source(where, view.reduced, view.source)
        item = DetectionItem(placed, torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), 0, where)
        with torch.inference_mode():
            (found,) = self.task.predict(self.model, self.task.collate([item]).to(self.device))
        self.best = max([self.best, *found.scores[:1].tolist()])
        chosen = found.scores > self.confidence
        best: dict[Rectangle, tuple[float, int]] = {}
        for box, score, label in zip(
            *(one[chosen].tolist() for one in (found.boxes, found.scores, found.labels)), strict=True
        ):
            best.setdefault(tuple(box), (score, label))  # best first
        names = self.task.class_names
        rows = [
            {
                "box": [round(side, 2) for side in box],
                "score": round(score, 4),
                "label": label,
                "name": names[label],
            }
            for box, (score, label) in best.items()
        ]
        marks = [Mark(box, f"{names[label]}: {score:.0%}", label) for box, (score, label) in best.items()]
        return rows, marks


_Finder = _DetectionFinder | ClassFinder | CustomFinder


def _finder(loaded: weights.Weights, confidence: float | None, device: torch.device, source: str) -> _Finder:
    """Return the finder of the weights' task."""
    if loaded.recipe.task == "detect":
        return _DetectionFinder(loaded, confidence, device, source)
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
