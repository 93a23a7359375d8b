"""Small data sets with known content: boxes as COCO JSON, and class folders."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

NAMES = ["cat", "dog", "eel"]


def write_image(file: Path, seed: int, size: tuple[int, int] = (60, 40)) -> None:
    """An image of its own for every seed; ``size`` is width and height."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)


def detection(
    root: Path, splits: Mapping[str, Sequence[Sequence[Sequence[float]]]], names: Sequence[str] = NAMES
) -> Path:
    """A data set: split to images, an image to its boxes ``[x1, y1, x2, y2, label]``."""
    (root / "annotations").mkdir(parents=True)
    categories = [{"id": label, "name": name} for label, name in enumerate(names)]
    seed = 0
    for split, images in splits.items():
        entries = []
        for number, boxes in enumerate(images):
            seed += 1
            write_image(root / f"images/{split}-{number:03}.png", seed)
            for x1, y1, x2, y2, label in boxes:
                box = [x1, y1, x2 - x1, y2 - y1]
                entries.append({"id": len(entries), "image_id": number, "category_id": label, "bbox": box})
        listed = [{"id": n, "file_name": f"images/{split}-{n:03}.png"} for n in range(len(images))]
        content = {"images": listed, "annotations": entries, "categories": categories}
        (root / f"annotations/instances_{split}.json").write_text(json.dumps(content))
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
