"""A small detection format of the tests' own, and data sets of it with known content.

One file says everything, so that a test can put any fault anywhere::

    {"names": ["cat", "dog"], "splits": {"train": [{"file": "a.png", "boxes": [[x1, y1, x2, y2, label]]}]}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rankless.curation import converting, data_set
from rankless.data import formats
from rankless.data.formats import registry
from rankless.data.formats.writing import ImageFiles, file_names
from rankless.data.index import scan
from rankless.data.index.annotations import Annotations
from rankless.data.index.raw import Raw
from rankless.errors import UserError

NAMES = ["cat", "dog", "eel"]


TITLE, LAYOUT = "small boxes", "a 'boxes.json'"


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this file a page of the formats, ``small``, which is asked first."""
    known = ("small", *registry.NAMES)
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(Path(__file__).parent)])
    monkeypatch.setattr(registry, "_PAGES", {"small": Path(__file__).stem, **registry._PAGES})
    monkeypatch.setattr(registry, "NAMES", known)
    monkeypatch.setattr(data_set, "NAMES", known)
    monkeypatch.setattr(converting, "WRITABLE", ("small", *registry.WRITABLE))


def recognize(root: Path) -> str:
    return "it has 'boxes.json'" if (root / "boxes.json").is_file() else ""


def splits(root: Path) -> list[str]:
    return list(_content(root)["splits"])


def _content(root: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads((root / "boxes.json").read_text())
    return made


def read(root: Path, split: str) -> Raw:
    content = _content(root)
    if split not in content["splits"]:
        raise UserError(f"{root}: no split '{split}'")
    entries = content["splits"][split]
    files = [str(root / entry["file"]) for entry in entries]
    rows = [(number, *box) for number, entry in enumerate(entries) for box in entry["boxes"]]
    table = np.array(rows, np.float64).reshape(len(rows), -1) if rows else np.zeros((0, 6))
    nothing = np.zeros((len(files), 2), np.int32)
    raw = Raw(
        paths=files,
        sizes=nothing,
        stated=nothing.copy(),
        annotated_in=[str(root / "boxes.json")] * len(files),
        image=table[:, 0].astype(np.int64),
        boxes=table[:, 1:5],
        labels=table[:, 5].astype(np.int64),
        flags=np.zeros(len(rows), np.uint8),
        areas=np.full(len(rows), np.nan, np.float32),
        lines=np.arange(1, len(rows) + 1),
        names=content["names"],
    )
    return scan.with_headers(raw)


def write(out: Path, splits: Mapping[str, Annotations], files: ImageFiles) -> list[str]:
    content: dict[str, Any] = {"names": [], "splits": {}}
    for split, whole in splits.items():
        content["names"] = list(whole.class_names)
        entries = []
        for number, name in enumerate(file_names(whole)):
            files.put(whole, number, out / split / name)
            rows = whole.rows(number)
            boxes = [
                [*box, label]
                for box, label in zip(whole.boxes[rows].tolist(), whole.labels[rows].tolist(), strict=True)
            ]
            entries.append({"file": f"{split}/{name}", "boxes": boxes})
        content["splits"][split] = entries
    (out / "boxes.json").write_text(json.dumps(content))
    return []


def write_image(file: Path, seed: int, size: tuple[int, int] = (60, 40)) -> None:
    """An image of its own for every seed; ``size`` is width and height."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)


def detection(
    root: Path, splits: Mapping[str, Sequence[Sequence[Sequence[float]]]], names: Sequence[str] = NAMES
) -> Path:
    """A data set: split to images, an image to its boxes ``[x1, y1, x2, y2, label]``."""
    root.mkdir(parents=True)
    content: dict[str, Any] = {"names": list(names), "splits": {}}
    seed = 0
    for split, images in splits.items():
        entries = []
        for number, boxes in enumerate(images):
            seed += 1
            name = f"images/{split}-{number:03}.png"
            write_image(root / name, seed)
            entries.append({"file": name, "boxes": [list(box) for box in boxes]})
        content["splits"][split] = entries
    (root / "boxes.json").write_text(json.dumps(content))
    return root


def classes(root: Path, counts: Mapping[str, Mapping[str, int]]) -> Path:
    """Class folders: split to class to number of images."""
    seed = 0
    for split, of_class in counts.items():
        for name, count in of_class.items():
            for number in range(count):
                seed += 1
                write_image(root / split / name / f"{number:03}.png", seed, (32, 24))
    return root
