"""The data sets of ``same_budget.py``: small PNG images with YOLO labels, described by a ``data.yaml``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw

from rankless.data.builtin.digits import DigitScenes
from rankless.data.builtin.digits.scenery import Draws, background, color
from rankless.data.datasets.annotated import BoxedImages, DetectionImages
from rankless.data.datasets.open_split import open_annotations
from rankless.randomness import generator
from rankless.structures import Sample

SIDE = 160  # pixels of an image's longer side, and of every network's input
MADE = {"train": 256, "val": 64, "test": 100}  # scenes in a made set


class Set(NamedTuple):
    """A data set: its classes, and for ``path/to/data`` and a split, its images with their boxes."""

    title: str
    classes: tuple[str, ...]
    samples: Callable[[Path, str], Iterator[Sample]]


def _read(images: DetectionImages, count: int, first: int = 0) -> Iterator[Sample]:
    return (images.read(index) for index in range(first, first + count))


def cells(data: Path, split: str) -> Iterator[Sample]:
    """BCCD by its own splits; 192 of the 205 training images, so that every batch of 16 is full."""
    images = BoxedImages(open_annotations(str(data / "det_bccd"), split))
    return _read(images, 192 if split == "train" else len(images))


def raccoons(data: Path, split: str) -> Iterator[Sample]:
    """The published splits; every fifth of the 160 training images is for validation."""
    root = data / "det_raccoon"
    rows = (root / "data" / f"{'test' if split == 'test' else 'train'}_labels.csv").read_text().split()[1:]
    names = sorted({row.partition(",")[0] for row in rows})
    if split != "test":
        names = [name for number, name in enumerate(names) if (number % 5 == 0) == (split == "val")]
    images = BoxedImages(open_annotations(str(root), "train"))  # all 200
    places = {Path(images.source(index)).name: index for index in range(len(images))}
    return (images.read(places[name]) for name in names)


def digits(_: Path, split: str) -> Iterator[Sample]:
    """Rankless' built-in scenes of handwritten digits, 1 to 12 each; those of the test have other digits."""
    images = DigitScenes("val" if split == "test" else "train", 1000, size=(SIDE, SIDE))
    return _read(images, MADE[split], MADE["train"] if split == "val" else 0)


def signs(data: Path, split: str) -> Iterator[Sample]:
    """Photographs of hand signs, 24 to 80 pixels large, on backgrounds; each is in one split."""
    files = sorted((data / "cls_signs").rglob("*.[jJ][pP][gG]"))
    share = {"train": range(7), "val": range(7, 8), "test": range(8, 10)}[split]
    mine = [path for number, path in enumerate(files) if number % 10 in share]
    for index in range(MADE[split]):
        rng = Draws(generator(0, "signs", split, index))
        canvas, labels, boxes = background(rng, SIDE, SIDE), [], list[tuple[int, ...]]()
        for _ in range(1 + rng.below(6)):
            path, side = mine[rng.below(len(mine))], round(rng.log_uniform(24, 80))
            box = free_place(rng, side, boxes)
            if box:
                with Image.open(path) as photo:
                    canvas.paste(photo.convert("RGB").resize((side, side), Image.Resampling.LANCZOS), box)
                boxes.append(box)
                labels.append(int(path.parent.name))
        yield sample(canvas, boxes, labels)


SHAPES = ("circle", "square", "triangle", "star")


def shapes(_: Path, split: str) -> Iterator[Sample]:
    """Crowds of 8 to 30 plain shapes of very different sizes, 6 to 96 pixels, in any color."""
    for index in range(MADE[split]):
        rng = Draws(generator(0, "shapes", split, index))
        canvas, labels, boxes = background(rng, SIDE, SIDE), [], list[tuple[int, ...]]()
        pen = ImageDraw.Draw(canvas)
        sides = sorted((round(rng.log_uniform(6, 96)) for _ in range(8 + rng.below(23))), reverse=True)
        for side in sides:
            label, paint = rng.below(len(SHAPES)), color(rng, rng.uniform(30, 225))
            box = free_place(rng, side, boxes)
            if box:
                boxes.append(draw(pen, SHAPES[label], box, paint))
                labels.append(label)
        yield sample(canvas, boxes, labels)


def draw(
    pen: ImageDraw.ImageDraw, shape: str, box: Sequence[int], paint: tuple[int, int, int]
) -> tuple[int, ...]:
    """Draw a shape that touches the sides of ``box``, and return the box that encloses its pixels."""
    left, top, right, bottom = box[0], box[1], box[2] - 1, box[3] - 1  # the last pixels
    if shape == "circle":
        pen.ellipse((left, top, right, bottom), fill=paint)
        return tuple(box)
    if shape == "square":
        pen.rectangle((left, top, right, bottom), fill=paint)
        return tuple(box)
    center, radius = ((left + right) / 2, (top + bottom) / 2), (right - left) / 2
    radii = (1.0,) if shape == "triangle" else (1.0, 0.4)
    corners = 3 if shape == "triangle" else 10
    points = []
    for number in range(corners):
        angle, reach = 2 * math.pi * number / corners, radius * radii[number % len(radii)]
        points.append(
            (round(center[0] + reach * math.sin(angle)), round(center[1] - reach * math.cos(angle)))
        )
    pen.polygon(points, fill=paint)
    xs, ys = zip(*points, strict=True)
    return min(xs), min(ys), max(xs) + 1, max(ys) + 1


def free_place(rng: Draws, side: int, boxes: Sequence[Sequence[int]]) -> tuple[int, int, int, int] | None:
    """Return a random square that no box touches, or None if thirty tries find none."""
    for _ in range(30):
        left, top = rng.below(SIDE - side), rng.below(SIDE - side)
        right, bottom = left + side, top + side
        if not any(x1 < right and left < x2 and y1 < bottom and top < y2 for x1, y1, x2, y2 in boxes):
            return left, top, right, bottom
    return None


def sample(canvas: Image.Image, boxes: Sequence[Sequence[int]], labels: Sequence[int]) -> Sample:
    """Return a drawn scene as the other sets' images."""
    image = torch.from_numpy(np.asarray(canvas).transpose(2, 0, 1).copy())
    return Sample(image, torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4), torch.tensor(labels).long())


TEN = tuple("0123456789")
SETS = {
    "cells": Set("blood cells", ("Platelets", "RBC", "WBC"), cells),
    "raccoons": Set("raccoons", ("raccoon",), raccoons),
    "signs": Set("hand signs", TEN, signs),
    "digits": Set("digits", TEN, digits),
    "shapes": Set("shapes", SHAPES, shapes),
}


def prepare(name: str, data: Path, folder: Path) -> None:
    """Write a set: ``data.yaml``, and ``images`` and ``labels`` of each split."""
    for split in MADE:
        for kind in ("images", "labels"):
            (folder / split / kind).mkdir(parents=True)
        for number, one in enumerate(SETS[name].samples(data, split)):
            _, height, width = one.image.shape
            scale = min(1, SIDE / max(height, width))
            image = Image.fromarray(one.image.permute(1, 2, 0).numpy())
            small = [max(1, round(side * scale)) for side in (width, height)]
            image.resize(small, Image.Resampling.LANCZOS).save(folder / split / "images" / f"{number:04}.png")
            low, high = np.split(one.boxes.numpy() / (width, height, width, height), 2, 1)  # (N, 2) each
            rows = np.concatenate((one.labels.numpy()[:, None], (low + high) / 2, high - low), 1)
            np.savetxt(folder / split / "labels" / f"{number:04}.txt", rows, "%d %.6f %.6f %.6f %.6f")
    names = "".join(f"  {label}: '{each}'\n" for label, each in enumerate(SETS[name].classes))
    splits = "".join(f"{split}: {split}/images\n" for split in MADE)
    (folder / "data.yaml").write_text(
        f"path: {folder.absolute()}\n{splits}nc: {len(SETS[name].classes)}\nnames:\n{names}"
    )
