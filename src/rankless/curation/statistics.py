"""Compute statistics of a data set's images, classes and boxes."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankless.curation.data_set import DataSet
from rankless.data.index.annotations import CROWD, DIFFICULT, Annotations
from rankless.errors import counted, listed

SMALL, MEDIUM = 32**2, 96**2
"""COCO's upper bounds on the area of small and of medium objects, in pixels."""
UNEVEN = 10
"""Minimum ratio between the sizes of the largest and the smallest class for a remark."""


@dataclass(frozen=True)
class Spread:
    """Quantiles (0, 0.05, 0.5, 0.95 and 1) and mean of a set of numbers; None if the set is empty."""

    least: float | None = None
    low: float | None = None
    median: float | None = None
    high: float | None = None
    most: float | None = None
    mean: float | None = None


@dataclass(frozen=True)
class SplitStatistics:
    """Statistics of one split. For classification, box statistics are None or 0.

    Attributes:
        unreadable: number of images with an unreadable header; the size statistics exclude them.
        empty: number of images without boxes.
        classes: number of boxes per class, or of images for classification.
        width, height: size of the images in pixels.
        aspect: width divided by height of the images.
        common_sizes: number of images of each of the five most common sizes, ``WIDTH × HEIGHT``.
        small, medium, large: number of objects by size as defined by COCO (limits 32² and 96² pixels).
        box_side: square root of the fraction of the image area that a box covers.
        box_aspect: width divided by height of the boxes.
    """

    images: int
    boxes: int | None
    unreadable: int
    empty: int
    difficult: int
    crowd: int
    classes: dict[str, int]
    width: Spread
    height: Spread
    aspect: Spread
    common_sizes: dict[str, int]
    boxes_per_image: Spread | None
    small: int
    medium: int
    large: int
    box_side: Spread | None
    box_aspect: Spread | None


@dataclass(frozen=True)
class Statistics:
    """Statistics of all splits, with remarks."""

    root: str
    format: str
    splits: dict[str, SplitStatistics]
    remarks: list[str]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def statistics(data: DataSet) -> Statistics:
    splits = {name: _of_split(each) for name, each in data.splits.items()}
    return Statistics(data.root, data.format, splits, _remarks(data, splits))


def _of_split(whole: Annotations) -> SplitStatistics:
    sizes = readable_sizes(whole)
    height, width = sizes.T if len(sizes) else (np.zeros(0), np.zeros(0))
    common = Counter(f"{int(w)} × {int(h)}" for h, w in sizes.tolist()).most_common(5)
    labels = np.bincount(np.asarray(whole.labels), minlength=len(whole.class_names)).tolist()
    per_image = np.diff(whole.offsets)
    boxed = whole.has_boxes
    sides = box_sides(whole)
    boxes = np.asarray(whole.boxes, np.float64)
    aspects = (boxes[:, 2] - boxes[:, 0]) / (boxes[:, 3] - boxes[:, 1]).clip(1e-9)
    areas = object_areas(whole)
    return SplitStatistics(
        images=len(whole),
        boxes=len(whole.boxes) if boxed else None,
        unreadable=len(whole) - len(sizes),
        empty=int((per_image == 0).sum()) if boxed else 0,
        difficult=int(((whole.flags & DIFFICULT) > 0).sum()),
        crowd=int(((whole.flags & CROWD) > 0).sum()),
        classes=dict(zip(whole.class_names, labels, strict=True)),
        width=_spread(width),
        height=_spread(height),
        aspect=_spread(width / height),
        common_sizes=dict(common),
        boxes_per_image=_spread(per_image.astype(np.float64)) if boxed else None,
        small=int((areas < SMALL).sum()),
        medium=int(((areas >= SMALL) & (areas < MEDIUM)).sum()),
        large=int((areas >= MEDIUM).sum()),
        box_side=_spread(np.sqrt(sides[:, 0] * sides[:, 1])) if boxed else None,
        box_aspect=_spread(aspects) if boxed else None,
    )


def readable_sizes(whole: Annotations) -> NDArray[np.float64]:
    """Return the height and width in pixels of each readable image, (N, 2)."""
    sizes = np.asarray(whole.sizes, np.float64)
    return sizes[(sizes > 0).all(1)]


def box_sides(whole: Annotations) -> NDArray[np.float64]:
    """Return the width and height of every box as fractions of its image's size, (T, 2)."""
    return _corners(whole)[:, 2:] - _corners(whole)[:, :2]


def box_centers(whole: Annotations) -> NDArray[np.float64]:
    """Return the center x and y of every box as fractions of its image's size, (T, 2)."""
    return (_corners(whole)[:, 2:] + _corners(whole)[:, :2]) / 2


def object_areas(whole: Annotations) -> NDArray[np.float64]:
    """Return the area of every object in pixels, (T,): the annotated area, if any, otherwise the box area."""
    boxes = np.asarray(whole.boxes, np.float64)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    stated = np.asarray(whole.areas, np.float64)[: len(areas)]
    return np.where(np.isnan(stated), areas, stated)


def _corners(whole: Annotations) -> NDArray[np.float64]:
    if not len(whole.boxes):
        return np.zeros((0, 4))
    sizes = np.repeat(np.asarray(whole.sizes, np.float64), np.diff(whole.offsets), 0)
    return np.asarray(np.asarray(whole.boxes, np.float64) / sizes[:, [1, 0, 1, 0]])


def _spread(values: NDArray[np.float64]) -> Spread:
    if not len(values):
        return Spread()
    numbers: list[float] = [*np.quantile(values, [0, 0.05, 0.5, 0.95, 1]).tolist(), float(values.mean())]
    return Spread(*numbers)


def _remarks(data: DataSet, splits: dict[str, SplitStatistics]) -> list[str]:
    remarks = []
    for name, split in splits.items():
        if without := [each for each, count in split.classes.items() if not count]:
            of = f"{len(without):,} of {len(split.classes):,}"
            remarks.append(f"{name}: empty classes ({of}): {listed(without)}")
        if counts := {each: count for each, count in split.classes.items() if count}:
            most, least = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
            if (times := counts[most] / counts[least]) >= UNEVEN:
                remarks.append(f"{name}: '{most}' is {times:.0f} times as frequent as '{least}'")
        if split.unreadable:
            remarks.append(f"{name}: {counted(split.unreadable, 'image')} cannot be read")
    if count := sum(sum(each.findings.counts.values()) for each in data.splits.values()):
        remarks.append(
            f"{counted(count, 'finding')} in annotations and image headers; to list all findings, run "
            f"`rankless data check {shlex.quote(data.root)}`"
        )
    if len({each.class_names for each in data.splits.values()}) > 1:
        remarks.append("the splits have different class names")
    return remarks
