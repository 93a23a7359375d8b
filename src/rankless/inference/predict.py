"""Prediction: from a run or a weights file and some images to annotated images and one JSON file.

Images go the way that evaluation took, one at a time: what is found in an image never depends on its
neighbors. Boxes are in pixels of the image as it is shown, i.e. after its EXIF rotation. Scoring lets one
box carry several classes, as COCO's practice is; here it carries its best. What classifiers do otherwise is
in :mod:`rankless.inference.predict_classify`.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
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
from rankless.files.outputs import Outputs
from rankless.geometry.letterbox import in_source, whole
from rankless.inference.predict_classify import ClassFinder
from rankless.models.checkpoints import weights
from rankless.runs.directory import weights_of
from rankless.structures import DetectionItem
from rankless.tasks.detect import SCENE_SIZE, Detect
from rankless.tasks.memory_check import refuse_giant_image

MOST_SCENES = 10_000  # each becomes an image in the output folder
_SCENES = re.compile(r"digits:(train|val):(\d+)(?:-(\d+))?")
_JPEG = frozenset({".jpg", ".jpeg", ".jpe", ".jfif"})


@dataclass(frozen=True)
class ImageReport:
    """What was found in one image.

    Attributes:
        source: the image's path or scene.
        annotated: the image with its boxes drawn.
        width, height: of the image, in pixels.
        detections: best first; ``box`` (xyxy in pixels), ``score``, ``label`` and ``name`` of each.
        classes: of a classifier, in place of detections: ``score``, ``label`` and ``name`` of the best five.
    """

    source: str
    annotated: Path
    width: int
    height: int
    detections: list[dict[str, Any]]
    classes: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class PredictionReport:
    """What :func:`predict` did.

    Attributes:
        out: where the annotated images and ``predictions.json`` lie.
        weights: the weights file used.
        images: one report per image that could be read, in the order of the sources.
        failed: source and reason of each image that could not.
        removed: annotated images of an earlier call in the same folder, which ``predictions.json`` no longer
            lists.
    """

    out: Path
    weights: Path
    images: list[ImageReport] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    removed: list[Path] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0, or 1 if an image could not be read."""
        return 1 if self.failed else 0

    def predictions(self) -> list[dict[str, Any]]:
        """What ``predictions.json`` holds."""
        return [
            {
                "source": sample.source,
                "annotated": sample.annotated.name,
                "width": sample.width,
                "height": sample.height,
                **({"classes": sample.classes} if sample.classes else {"detections": sample.detections}),
            }
            for sample in self.images
        ]

    def as_json(self) -> dict[str, Any]:
        """The report as plain data: images with what was found, and failures with their reasons."""
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
    out: Path,
    confidence: float | None = None,
    device: str | None = None,
    force: bool = False,
) -> PredictionReport:
    """Find objects in images, or what the images show.

    Args:
        target: a run directory (its best weights are used) or a weights file.
        sources: images, folders (searched with their subfolders), glob patterns, or built-in scenes as
            ``digits:val:0-7``.
        out: a folder for the annotated images and ``predictions.json``; made if need be. What an earlier
            call wrote there is replaced or removed; anything else stays (see :mod:`rankless.files.outputs`).
        confidence: what scores lower is left out, 0..1; not given it is 0.25 for detections, and of a
            classifier the best five stay.
        device: a torch device; the first GPU if there is one, else the CPU.
        force: replace other files in ``out``, too.

    Raises:
        UserError: no weights, a source without images, an output folder that cannot be used, or files in it
            that are not to be replaced; all of them, and nothing is changed then. An image
            that cannot be read is no such fault: it is listed in the report and the others go on.
    """
    if confidence is not None and not 0 <= confidence <= 1:
        raise UserError(f"confidence is {confidence:g}: expected a number from 0 to 1")
    found, place, (path, loaded) = _all_or_errors(
        lambda: find(sources), lambda: _device(device), lambda: _loaded(target)
    )
    names = _output_names(found, out)
    listing = out / "predictions.json"
    outputs = Outputs([*(out / name for name in names), listing], verb="predict", force=force)
    outputs.refuse_inputs([*found, path])
    report = PredictionReport(out, path)
    finder = _finder(loaded, confidence, place, str(path))
    for source, name in zip(found, names, strict=True):
        try:
            image, view = _read(source, finder)
        except samples.UnreadableImage as error:
            report.failed.append((source, error.reason))
            continue
        rows, marks = finder.find(view)
        height, width = image.shape[-2:]
        kinds = ([], rows) if isinstance(finder, ClassFinder) else (rows, [])
        _write_annotated(image, marks, outputs, out / name)
        report.images.append(ImageReport(source, out / name, width, height, *kinds))
    lines = ",\n".join(json.dumps(prediction) for prediction in report.predictions())  # an image a line
    with outputs.writing(listing) as file:
        file.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    report.removed.extend(outputs.remove_others(out))
    return report


def _all_or_errors(
    find: Callable[[], list[str]],
    device: Callable[[], torch.device],
    load: Callable[[], tuple[Path, weights.Weights]],
) -> tuple[list[str], torch.device, tuple[Path, weights.Weights]]:
    """What each gives.

    Raises:
        UserError: what all of them raise, together.
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


def _loaded(target: Path) -> tuple[Path, weights.Weights]:
    path = weights_of(target)
    return path, weights.load(path)


def find(sources: Sequence[str]) -> list[str]:
    """Every image that ``sources`` mean, in order, each once; a folder's images are sorted by path.

    Raises:
        UserError: sources that mean no image, all of them.
    """
    found: dict[str, str] = {}
    faults = []
    for source in sources:
        matches = list(_expand(source))
        if not matches:
            faults.append(_nothing(source))
        for match in matches:
            found.setdefault(os.path.realpath(match), match)
    if faults or not sources:
        raise UserError(
            faults or "no images given; name files, folders, patterns or built-in scenes (digits:val:0-7)"
        )
    return list(found.values())


def _expand(source: str) -> Iterator[str]:
    path = Path(source)
    if path.is_dir():
        yield from _in_folder(path)
    elif path.is_file():
        yield source
    elif scenes := _SCENES.fullmatch(source):
        first, last = int(scenes[2]), int(scenes[3] or scenes[2])
        many = last - first >= MOST_SCENES  # told by `_nothing`, with what else is wrong
        for index in () if many else range(first, last + 1):
            yield f"digits:{scenes[1]}:{index}"
    else:
        for match in sorted(glob.glob(source, recursive=True)):  # noqa: PTH207 - takes absolute patterns too
            if Path(match).is_dir():
                yield from _in_folder(Path(match))
            elif Path(match).suffix.lower() in samples.EXTENSIONS:
                yield match


def _in_folder(folder: Path) -> list[str]:
    paths = (path for path in folder.rglob("*") if path.suffix.lower() in samples.EXTENSIONS)
    return sorted(str(path) for path in paths if path.is_file())


def _nothing(source: str) -> str:
    if Path(source).is_dir():
        kinds = ", ".join(sorted(samples.EXTENSIONS))
        return f"'{source}': no images in this folder or below (looked for {kinds})"
    if source.startswith("digits:"):
        return (
            f"'{source}': expected built-in scenes as digits:val:3 or digits:val:0-7, "
            f"at most {MOST_SCENES:,} at a time"
        )
    if glob.has_magic(source):
        return f"'{source}': no image matches this pattern"
    return f"'{source}': no such file or folder"


def _output_names(found: Sequence[str], out: Path) -> list[str]:
    """A file name for each annotated image: PNG except for JPEG; ``-2``, ``-3`` … where two are alike."""
    folder = Path(os.path.realpath(out))
    inside = [source for source in found if folder in Path(os.path.realpath(source)).parents]
    if inside:
        raise UserError(
            f"'{inside[0]}' ({len(inside)} of the images) lies in the output folder {out}, where annotated "
            "images would replace it or be taken for sources; give another folder with --out"
        )
    taken: set[str] = set()
    names = []
    for source in found:
        path = Path(source)
        scene = _SCENES.fullmatch(source) and not path.exists()
        stem = source.replace(":", "-") if scene else path.stem
        suffix = path.suffix if path.suffix.lower() in _JPEG else ".png"
        name, number = stem + suffix, 1
        while name.casefold() in taken:
            number += 1
            name = f"{stem}-{number}{suffix}"
        taken.add(name.casefold())
        names.append(name)
    return names


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
    """A trained detector at work on ``place``."""

    def __init__(
        self, loaded: weights.Weights, confidence: float | None, place: torch.device, source: str
    ) -> None:
        recipe = loaded.recipe
        recipe = replace(
            recipe,
            evaluate=replace(recipe.evaluate, confidence=0.25 if confidence is None else float(confidence)),
        )
        self.task = Detect(recipe, class_names=loaded.class_names)
        model = self.task.model()
        refuse_giant_image(self.task.size, source, self.task.spec.activations(self.task.size))
        weights.load_into(model, loaded.state, source)
        self.model, self.place = model.to(place).eval(), place
        self.shown = Shown(self.task.size, recipe.data.fit, recipe.data.detail)

    def scene(self, split: str, index: int) -> Tensor:
        """A scene of the built-in data, uint8 (3, H, W)."""
        # As in training: validation scenes are every seed's.
        seed = self.task.recipe.seed if split == "train" else 0
        return DigitScenes(split, index + 1, seed, SCENE_SIZE).read(index).image

    def find(self, view: Decoded) -> tuple[list[dict[str, Any]], list[Mark]]:
        """What is in an image, in its own pixels, and what to draw on it; each box with its best class."""
        placed, where = whole(view.image, self.task.size, self.task.recipe.data.fit)
        where = in_source(where, view.reduced, view.source)
        item = DetectionItem(placed, torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), 0, where)
        with torch.inference_mode():
            (found,) = self.task.predict(self.model, self.task.collate([item]).to(self.place))
        best: dict[Rectangle, tuple[float, int]] = {}
        for box, score, label in zip(
            found.boxes.tolist(), found.scores.tolist(), found.labels.tolist(), strict=True
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


def _finder(
    loaded: weights.Weights, confidence: float | None, place: torch.device, source: str
) -> _DetectionFinder | ClassFinder:
    """What finds things in images as the weights' task does."""
    if loaded.recipe.task == "detect":
        return _DetectionFinder(loaded, confidence, place, source)
    if loaded.recipe.task == "classify":
        return ClassFinder(loaded, confidence or 0.0, place, source)
    raise UserError(
        f"{source}: was trained for the task '{printable(loaded.recipe.task)}'; prediction knows "
        "'detect' and 'classify'"
    )


def _read(source: str, finder: _DetectionFinder | ClassFinder) -> tuple[Tensor, Decoded]:
    """The whole image to draw on, uint8 (3, H, W), and as the network gets it: reduced as in training."""
    scene = _SCENES.fullmatch(source)
    if scene is None or Path(source).exists():
        image = samples.read(Path(source))
        height, width = image.shape[-2:]
        if finder.shown.reduction(height, width) > 1:
            return image, samples.read_for(Path(source), finder.shown)
    else:
        image = finder.scene(scene[1], int(scene[2]))
    return image, Decoded(image, 1, (image.shape[1], image.shape[2]))


def _write_annotated(image: Tensor, marks: Sequence[Mark], outputs: Outputs, path: Path) -> None:
    """Draw and write one image."""
    sample = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    kind: dict[str, Any] = {"format": "PNG"}
    if path.suffix.lower() in _JPEG:
        kind = {"format": "JPEG", "quality": 92}
    with outputs.writing(path, durable=False) as file:
        annotate(sample, marks).save(file, **kind)
