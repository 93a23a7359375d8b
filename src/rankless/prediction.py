"""Prediction: from a run or a weights file and some pictures to annotated pictures and one JSON file.

Pictures come onto the input as in training, one at a time: what is found in a picture never
depends on its neighbours. Boxes are in pixels of the picture as it is shown, i.e. after its EXIF rotation.
Scoring lets one box carry several classes, as COCO's practice is; here it carries its best.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from rankless.data import pictures
from rankless.data.builtin import DigitScenes
from rankless.data.letterbox import whole
from rankless.drawing import Mark, Rectangle, annotate
from rankless.errors import UserError
from rankless.models import weights
from rankless.recipe import Recipe
from rankless.run_directory import weights_of, write_atomically
from rankless.tasks.detect import SCENE_SIZE, Detect
from rankless.types import DetectionItem, Detections

MOST_SCENES = 10_000  # each becomes a picture in the output folder
_SCENES = re.compile(r"digits:(train|val):(\d+)(?:-(\d+))?")
_JPEG = frozenset({".jpg", ".jpeg", ".jpe", ".jfif"})


@dataclass(frozen=True)
class PictureReport:
    """What was found in one picture.

    Attributes:
        source: the picture's path or scene.
        annotated: the picture with its boxes drawn.
        width, height: of the picture, in pixels.
        detections: best first; ``box`` (xyxy in pixels), ``score``, ``label`` and ``name`` of each.
    """

    source: str
    annotated: Path
    width: int
    height: int
    detections: list[dict[str, Any]]


@dataclass(frozen=True)
class PredictionReport:
    """What :func:`predict` did.

    Attributes:
        out: where the annotated pictures and ``predictions.json`` lie.
        weights: the weights file used.
        pictures: one report per picture that could be read, in the order of the sources.
        failed: source and reason of each picture that could not.
    """

    out: Path
    weights: Path
    pictures: list[PictureReport] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0, or 1 if a picture could not be read."""
        return 1 if self.failed else 0

    def predictions(self) -> list[dict[str, Any]]:
        """What ``predictions.json`` holds."""
        return [
            {
                "source": picture.source,
                "annotated": picture.annotated.name,
                "width": picture.width,
                "height": picture.height,
                "detections": picture.detections,
            }
            for picture in self.pictures
        ]

    def as_json(self) -> dict[str, Any]:
        """The report as plain data: pictures with what was found, and failures with their reasons."""
        return {
            "weights": str(self.weights),
            "out": str(self.out),
            "pictures": self.predictions(),
            "failed": [{"source": source, "reason": reason} for source, reason in self.failed],
        }


def predict(
    target: Path, sources: Sequence[str], *, out: Path, confidence: float = 0.25, device: str | None = None
) -> PredictionReport:
    """Find objects in pictures.

    Args:
        target: a run directory (its best weights are used) or a weights file.
        sources: pictures, folders (searched with their subfolders), glob patterns, or built-in scenes as
            ``digits:val:0-7``.
        out: a folder for the annotated pictures and ``predictions.json``; made if need be.
        confidence: detections scored lower are left out, 0..1.
        device: a torch device; the first GPU if there is one, else the CPU.

    Raises:
        UserError: no weights, a source without pictures, or an output folder that cannot be used. A picture
            that cannot be read is no such fault: it is listed in the report and the others go on.
    """
    if not 0 <= confidence <= 1:
        raise UserError(f"confidence is {confidence:g}: expected a number from 0 to 1")
    found = find(sources)
    place = _device(device)
    path = weights_of(target)
    loaded = weights.load(path)
    report = PredictionReport(out, path)
    names = _output_names(found, out)
    task, model = _detector(loaded, confidence, place, str(path))
    _make_folder(out)
    for source, name in zip(found, names, strict=True):
        try:
            image = _read(source, loaded.recipe)
        except pictures.UnreadablePicture as error:
            report.failed.append((source, error.reason))
            continue
        detections = _detect(task, model, image, place)
        report.pictures.append(_report(source, image, detections, loaded.class_names, out / name))
    lines = ",\n".join(json.dumps(prediction) for prediction in report.predictions())  # a picture a line
    write_atomically(out / "predictions.json", f"[\n{lines}\n]\n")
    return report


def find(sources: Sequence[str]) -> list[str]:
    """Every picture that ``sources`` mean, in order, each once; a folder's pictures are sorted by path.

    Raises:
        UserError: sources that mean no picture, all of them.
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
            faults or "no pictures given; name files, folders, patterns or built-in scenes (digits:val:0-7)"
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
            elif Path(match).suffix.lower() in pictures.EXTENSIONS:
                yield match


def _in_folder(folder: Path) -> list[str]:
    paths = (path for path in folder.rglob("*") if path.suffix.lower() in pictures.EXTENSIONS)
    return sorted(str(path) for path in paths if path.is_file())


def _nothing(source: str) -> str:
    if Path(source).is_dir():
        kinds = ", ".join(sorted(pictures.EXTENSIONS))
        return f"'{source}': no pictures in this folder or below (looked for {kinds})"
    if source.startswith("digits:"):
        return (
            f"'{source}': expected built-in scenes as digits:val:3 or digits:val:0-7, "
            f"at most {MOST_SCENES:,} at a time"
        )
    if glob.has_magic(source):
        return f"'{source}': no picture matches this pattern"
    return f"'{source}': no such file or folder"


def _output_names(found: Sequence[str], out: Path) -> list[str]:
    """A file name for each annotated picture: PNG except for JPEG; ``-2``, ``-3`` … where two are alike."""
    folder = out.resolve()
    inside = [source for source in found if folder in Path(source).resolve().parents]
    if inside:
        raise UserError(
            f"'{inside[0]}' ({len(inside)} of the pictures) lies in the output folder {out}, where annotated "
            "pictures would replace it or be taken for sources; give another folder with --out"
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


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{out}: cannot be the output folder: {error.strerror}; give another with --out"
        ) from None


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


def _detector(
    loaded: weights.Weights, confidence: float, device: torch.device, source: str
) -> tuple[Detect, nn.Module]:
    recipe = loaded.recipe
    if recipe.task != "detect":
        raise UserError(f"{source}: was trained for the task '{recipe.task}'; prediction knows 'detect' only")
    recipe = replace(recipe, evaluate=replace(recipe.evaluate, confidence=float(confidence)))
    task = Detect(recipe, class_names=loaded.class_names)
    model = task.model()
    weights.load_into(model, loaded.state, source)
    return task, model.to(device).eval()


def _read(source: str, recipe: Recipe) -> Tensor:
    """The picture, uint8 (3, H, W)."""
    scene = _SCENES.fullmatch(source)
    if scene is None or Path(source).exists():
        return pictures.read(Path(source))
    split, index = scene[1], int(scene[2])
    seed = recipe.seed if split == "train" else 0  # as in training: validation scenes are every seed's
    return DigitScenes(split, index + 1, seed, SCENE_SIZE).picture(index).image


def _detect(task: Detect, model: nn.Module, image: Tensor, device: torch.device) -> Detections:
    placed, where = whole(image, task.size, task.recipe.data.fit)
    item = DetectionItem(placed, torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), 0, where)
    with torch.inference_mode():
        (found,) = task.predict(model, task.collate([item]).to(device))
    return found


def _report(
    source: str, image: Tensor, found: Detections, class_names: Sequence[str], annotated: Path
) -> PictureReport:
    """Draw, write and describe what was found in one picture."""
    best: dict[Rectangle, tuple[float, int]] = {}
    for box, score, label in zip(
        found.boxes.tolist(), found.scores.tolist(), found.labels.tolist(), strict=True
    ):
        best.setdefault(tuple(box), (score, label))  # best first
    rows = [(box, score, label) for box, (score, label) in best.items()]
    picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    marks = [Mark(box, f"{class_names[label]}: {score:.0%}", label) for box, score, label in rows]
    options: dict[str, Any] = {"quality": 92} if annotated.suffix.lower() in _JPEG else {}
    try:
        annotate(picture, marks).save(annotated, **options)
    except OSError as error:
        raise UserError(f"{annotated}: cannot be written: {error.strerror or error}") from None
    detections = [
        {
            "box": [round(side, 2) for side in box],
            "score": round(score, 4),
            "label": label,
            "name": class_names[label],
        }
        for box, score, label in rows
    ]
    return PictureReport(source, annotated, picture.width, picture.height, detections)
