"""Compute bounding boxes of polygons, COCO masks and rotated boxes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

Box = tuple[float, float, float, float]


def bounds(xs: Sequence[float], ys: Sequence[float]) -> Box:
    """Return the xyxy bounds of points, or four NaNs if any coordinate is not finite."""
    if not all(map(math.isfinite, chain(xs, ys))):
        return (math.nan,) * 4
    return min(xs), min(ys), max(xs), max(ys)


def rotated_bounds(box: Box, degrees: float) -> Box:
    """Return the xyxy bounds of an xyxy box after rotating it about its center."""
    x1, y1, x2, y2 = box
    cos, sin = abs(math.cos(math.radians(degrees))), abs(math.sin(math.radians(degrees)))
    width, height = (x2 - x1) * cos + (y2 - y1) * sin, (x2 - x1) * sin + (y2 - y1) * cos
    x, y = (x1 + x2) / 2, (y1 + y2) / 2
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def ellipse_bounds(x: float, y: float, radius_x: float, radius_y: float, radians: float = 0.0) -> Box:
    """Return the xyxy bounds of an ellipse with its center at (x, y), after rotating it about the center."""
    cos, sin = math.cos(radians), math.sin(radians)
    width, height = math.hypot(radius_x * cos, radius_y * sin), math.hypot(radius_x * sin, radius_y * cos)
    return x - width, y - height, x + width, y + height


def of_segmentation(segmentation: Any) -> Box | None:
    """Return the xyxy bounds of a COCO segmentation in pixels, or None if it is invalid or empty.

    A segmentation is a list of polygons ``[x, y, x, y, …]``, or ``{"size": [h, w], "counts": …}`` with run
    lengths as numbers or as compressed text. Pixel n of a mask covers n to n + 1, as in cocoapi's ``toBbox``.
    cocoapi itself is not used, because some versions crash on masks of size 0 or on truncated text.
    """
    try:
        if isinstance(segmentation, list):
            polygons = segmentation if isinstance(segmentation[0], list) else [segmentation]
            xs = list(chain.from_iterable(polygon[0::2] for polygon in polygons))
            ys = list(chain.from_iterable(polygon[1::2] for polygon in polygons))
            return float(min(xs)), float(min(ys)), float(max(xs)), float(max(ys))
        if isinstance(segmentation, dict):
            counts = segmentation["counts"]
            runs = _runs(counts) if isinstance(counts, str) else [int(run) for run in counts]
            height, width = segmentation["size"]
            return _mask_box(runs, int(height), int(width))
    except (KeyError, TypeError, ValueError, IndexError, OverflowError):
        pass
    return None


def _runs(text: str) -> list[int]:
    """Decode run lengths from cocoapi's compressed text.

    Each character minus '0' contains five bits of a number, lowest bits first. Bit 32 means that more
    characters follow, and bit 16 of the last character is the sign. From the fourth number on, the difference
    from the number two places earlier is stored.
    """
    runs: list[int] = []
    at = 0
    while at < len(text):
        value = shift = 0
        more = True
        while more:
            bits = ord(text[at]) - 48
            if not 0 <= bits < 64:
                raise ValueError(text[at])
            value |= (bits & 31) << shift
            more, shift, at = bits & 32 > 0, shift + 5, at + 1
            if not more and bits & 16:
                value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
    return runs


def _mask_box(runs: Sequence[int], height: int, width: int) -> Box | None:
    """Return the xyxy bounds of a mask, given as alternating runs of 0 and 1 in column order."""
    if height <= 0 or width <= 0 or min(runs, default=0) < 0 or sum(runs) > height * width:
        return None
    columns, rows, at = [], [], 0
    for number, run in enumerate(runs):
        if number % 2 and run:
            first, last = at, at + run - 1
            columns += [first // height, last // height]
            whole = first // height != last // height  # continues at the top of the next column
            rows += [0, height - 1] if whole else [first % height, last % height]
        at += run
    if not columns:
        return None
    return float(min(columns)), float(min(rows)), max(columns) + 1.0, max(rows) + 1.0
