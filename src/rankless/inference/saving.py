"""Write the files of a prediction: annotated images, crops, heat maps, and files with all results."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rankless.data.images.image_file import Pixels
from rankless.errors import UserError, one_of
from rankless.files.outputs import LIST, Outputs
from rankless.inference import formats
from rankless.inference.finder import Finder
from rankless.inference.formats import KINDS, Labeling
from rankless.inference.heatmaps import overlaid
from rankless.inference.pipeline import Outcome
from rankless.inference.prediction_journal import Entry, Journal
from rankless.inference.results import DetectionResult
from rankless.inference.sources import JPEG

DEFAULT = ("annotated", "json")
_SINGLE = {
    "json": ("predictions.json",),
    "jsonl": ("predictions.jsonl",),
    "coco": ("coco_images.json", "coco_results.json"),
    "label-studio": ("label_studio.json", "label_studio_config.xml"),
    "cvat": ("cvat.xml", "cvat_labels.json"),
    "csv": ("predictions.csv",),
    "counts": ("counts.csv",),
}
_YOLO_NAMES = "yolo/classes.txt"
_FOLDERS = ("yolo", "voc", "crops", "heatmaps")
_UNUSABLE = re.compile("[\0-\x1f\x7f/\\\\]")  # characters that are not allowed in the name of a folder


def refuse_unfit(kinds: frozenset[str], finder: Finder) -> None:
    """Raise an error if the requested files cannot be written for the model's task."""
    lacking, why = finder.unfit()
    if unfit := [name for name in KINDS if name in kinds & lacking]:
        expected = one_of(name for name in KINDS if name not in lacking)
        raise UserError(f"--save contains {', '.join(unfit)}, but {why}; expected {expected}")


@dataclass
class Rendering:
    """The journal entry for an image, and the files to write for it."""

    outcome: Outcome
    entry: Entry | None = None
    best: float = 0.0
    drawn: Image.Image | None = None
    files: list[tuple[str, bytes]] = field(default_factory=list)


def taken_stems(kinds: frozenset[str]) -> list[str]:
    """Return stems that no image's files may have, because another file has this name."""
    return [Path(_YOLO_NAMES).stem] if "yolo" in kinds else []


def render(outcome: Outcome, finder: Finder, kinds: frozenset[str], name: str) -> Rendering:
    """Draw and encode the results for one image. This function is called from several threads."""
    source, image, stem = outcome.source, outcome.image, Path(name).stem
    if image is None:
        return Rendering(outcome)
    where: dict[str, Any] = {"source": source.name}
    if source.frame is not None:
        stem = f"{stem}-{source.frame:06}"
        where |= {"frame": source.frame, "time": round(source.time or 0.0, 3)}
    size = {"width": image.shape[-1], "height": image.shape[-2]}
    made = Rendering(outcome)
    pixels = image.permute(1, 2, 0).contiguous().numpy()
    result = finder.result(outcome.answer, pixels, source.name)
    made.best = finder.best(outcome.answer)
    made.drawn = result.draw() if "annotated" in kinds else None
    if "crops" in kinds:
        made.files += crops(result, stem, Path(name).suffix)
    if (level := finder.level(outcome.answer, pixels)) is not None:
        made.files.append((f"heatmaps/{stem}.png", _encoded(overlaid(pixels, level), ".png")))
    shown = {"output": stem} | ({"annotated": name} if made.drawn is not None else {})
    if made.drawn is not None and source.frame is None:
        made.files.append((name, _encoded(made.drawn, Path(name).suffix)))
    made.entry = Entry(stem, {**where, **shown, **size, **result.entry()})
    return made


def crops(result: DetectionResult, stem: str, suffix: str) -> Iterator[tuple[str, bytes]]:
    """Yield the path and the bytes of each object's crop, best first.

    Each class has its own folder, so a classifier can be trained on the crops.
    """
    height, width = result.image.shape[:2]
    suffix = suffix if suffix.lower() in JPEG else ".png"
    for number, ((x1, y1, x2, y2), name) in enumerate(
        zip(result.xyxy.tolist(), result.names, strict=True), 1
    ):
        left, top = min(max(math.floor(x1), 0), width - 1), min(max(math.floor(y1), 0), height - 1)
        right, bottom = max(left + 1, math.ceil(x2)), max(top + 1, math.ceil(y2))
        cut: Pixels = np.ascontiguousarray(result.image[top:bottom, left:right])
        folder = _UNUSABLE.sub("_", name).strip()
        folder = f"_{folder.lstrip('.')}" if not folder or folder.startswith(".") else folder
        yield f"crops/{folder}/{stem}-{number}{suffix}", _encoded(Image.fromarray(cut), suffix)


def write_formats(
    journal: Journal,
    out: Path,
    kinds: frozenset[str],
    class_names: Sequence[str],
    outputs: Outputs,
    model: str,
) -> list[str]:
    """Write the results in the journal in each requested format, and return notes.

    Pre-annotations name ``model`` as their source.
    """
    labeling = Labeling(journal, class_names, model)
    writers: dict[str, Callable[[Path], None]] = {
        "label_studio.json": labeling.write_tasks,
        "label_studio_config.xml": labeling.write_interface,
        "cvat.xml": labeling.write_cvat,
        "cvat_labels.json": labeling.write_cvat_labels,
        "predictions.json": lambda file: formats.write_json(journal, file),
        "predictions.jsonl": lambda file: formats.write_jsonl(journal, file),
        "coco_images.json": lambda file: formats.write_coco_images(journal, file, class_names),
        "coco_results.json": lambda file: formats.write_coco_results(journal, file),
        "predictions.csv": lambda file: formats.write_csv(journal, file),
        "counts.csv": lambda file: formats.write_counts(journal, file, class_names),
    }
    if "yolo" in kinds:
        write(outputs, out / _YOLO_NAMES, formats.yolo_names(class_names).encode())
        for stem, image in journal:
            write(outputs, out / f"yolo/{stem}.txt", formats.yolo_text(image).encode())
    if "voc" in kinds:
        for stem, image in journal:
            write(outputs, out / f"voc/{stem}.xml", formats.voc_xml(image))
    for name in single_files(kinds):
        outputs.include([out / name])
        with outputs.writing(out / name) as file:
            writers[name](file)
    return list(labeling.notes(kinds))


def single_files(kinds: frozenset[str]) -> list[str]:
    """Return the names of the files that contain the results for all images."""
    return [name for kind in KINDS if kind in kinds for name in _SINGLE.get(kind, ())]


def write(outputs: Outputs, path: Path, content: bytes) -> None:
    """Write a file for one image. The file's name was not yet known when ``outputs`` was created."""
    outputs.include([path])
    with outputs.writing(path, durable=False) as file:
        file.write_bytes(content)


def remove_others(outputs: Outputs, out: Path) -> list[Path]:
    """Remove files from an earlier prediction that were not replaced, and return their paths."""
    folders = [out, *(out / name for name in _FOLDERS if (out / name).is_dir())]
    if (out / "crops").is_dir():
        folders += sorted(folder for folder in (out / "crops").iterdir() if (folder / LIST).is_file())
    return [file for folder in folders for file in outputs.remove_others(folder)]


def _encoded(image: Image.Image, suffix: str) -> bytes:
    buffer = io.BytesIO()
    if suffix.lower() in JPEG:
        image.save(buffer, "JPEG", quality=92)
    else:
        image.save(buffer, "PNG")
    return buffer.getvalue()
