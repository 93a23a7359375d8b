"""Data as people bring it, in the README's layouts: images of shapes that a small network can learn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

NAMES = ("cat", "dog")
_TINTS = {"daisy": (150, 150, 0), "rose": (150, 0, 0), "tulip": (0, 0, 150)}
_COLORS = ((240, 70, 60), (60, 120, 250))


def scene(rng: np.random.Generator, size: tuple[int, int]) -> tuple[Image.Image, list[tuple[int, ...]]]:
    """A noisy image of width × height with one to three shapes, and (label, x1, y1, x2, y2) of each.

    A cat is a red disc and a dog a blue square.
    """
    width, height = size
    image = Image.fromarray(rng.integers(60, 120, (height, width, 3), dtype=np.uint8))
    draw, boxes = ImageDraw.Draw(image), []
    columns = rng.permutation(3)[: rng.integers(1, 4)]  # shapes never overlap
    for column in columns:
        label, side = int(rng.integers(2)), int(rng.integers(width // 6, width // 3 - 2))
        x = int(column * width // 3 + rng.integers(0, width // 3 - side))
        y = int(rng.integers(0, height - side))
        (draw.ellipse if label == 0 else draw.rectangle)(
            (x, y, x + side - 1, y + side - 1), fill=_COLORS[label]
        )
        boxes.append((label, x, y, x + side, y + side))
    return image, boxes


def boxes_in_yolo(root: Path, train: int, val: int, size: tuple[int, int] = (128, 96)) -> Path:
    """The README's layout: a data.yaml, images/SPLIT/NAME.jpg, labels/SPLIT/NAME.txt."""
    rng = np.random.default_rng(5)
    for split, count in (("train", train), ("val", val)):
        for kind in ("images", "labels"):
            (root / kind / split).mkdir(parents=True)
        for number in range(count):
            image, boxes = scene(rng, size)
            image.save(root / "images" / split / f"{number:04}.jpg", quality=92)
            lines = [
                f"{label} {(x1 + x2) / 2 / size[0]} {(y1 + y2) / 2 / size[1]} "
                f"{(x2 - x1) / size[0]} {(y2 - y1) / size[1]}\n"
                for label, x1, y1, x2, y2 in boxes
            ]
            (root / "labels" / split / f"{number:04}.txt").write_text("".join(lines))
    names = ", ".join(NAMES)
    (root / "data.yaml").write_text(f"train: images/train\nval: images/val\nnames: [{names}]\n")
    return root


def folders_of_classes(root: Path, count: int, side: int = 64) -> Path:
    """A folder per class, and no splits: yellow discs, red squares and blue crosses."""
    rng = np.random.default_rng(6)
    for name in ("daisy", "rose", "tulip"):
        (root / name).mkdir(parents=True)
        for number in range(count // 3 + 1):
            image = Image.fromarray(rng.integers(60, 120, (side, side, 3), dtype=np.uint8))
            draw, extent = ImageDraw.Draw(image), int(rng.integers(side // 3, side // 2))
            x, y = (int(rng.integers(0, side - extent)) for _ in range(2))
            color = tuple(int(part) for part in rng.integers(40, 100, 3) + _TINTS[name])
            corners = (x, y, x + extent, y + extent)
            if name == "daisy":
                draw.ellipse(corners, fill=color)
            elif name == "rose":
                draw.rectangle(corners, fill=color)
            else:
                draw.line(corners, fill=color, width=5)
                draw.line((x + extent, y, x, y + extent), fill=color, width=5)
            image.save(root / name / f"{number:04}.png")
    return root


@pytest.fixture(scope="session")
def boxes() -> Callable[..., Path]:
    """``boxes(root, train, val)`` makes a data set for detectors."""
    return boxes_in_yolo


@pytest.fixture(scope="session")
def folders() -> Callable[..., Path]:
    """``folders(root, count)`` makes a data set for classifiers."""
    return folders_of_classes
