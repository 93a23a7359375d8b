"""The box around an outline: points of a polygon, or a mask as COCO writes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

Box = tuple[float, float, float, float]


def around(xs: Sequence[float], ys: Sequence[float]) -> Box:
    """Return the bounds xyxy of points; not finite where a point is not."""
    if not all(map(math.isfinite, chain(xs, ys))):
        return (math.nan,) * 4
    return min(xs), min(ys), max(xs), max(ys)


def of_segmentation(segmentation: Any) -> Box | None:
    """Return the bounds xyxy, in pixels, of a segmentation of COCO's; None if it is invalid or has no extent.

    cocoapi's code is not used: a mask of size 0 or a text cut short crashes some of its versions.

    Args:
        segmentation: a list of polygons ``[x, y, x, y, …]``, or ``{"size": [h, w], "counts": …}`` with run
            lengths as a list of numbers or as cocoapi's text. A pixel of a mask reaches from its number to
            the next, as in cocoapi's ``toBbox``.
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
    """Run lengths from cocoapi's text: 5 bits a character from '0' on, the lowest first; 32 says that more
    follow, the last one's 16 is the sign. From the fourth on it is the difference to the last but one."""
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
    """Bounds of runs of 0 and 1 in turn, down one column after another."""
    if height <= 0 or width <= 0 or min(runs, default=0) < 0 or sum(runs) > height * width:
        return None
    columns, rows, at = [], [], 0
    for number, run in enumerate(runs):
        if number % 2 and run:
            first, last = at, at + run - 1
            columns += [first // height, last // height]
            whole = first // height != last // height  # it goes on at the top of the next column
            rows += [0, height - 1] if whole else [first % height, last % height]
        at += run
    if not columns:
        return None
    return float(min(columns)), float(min(rows)), max(columns) + 1.0, max(rows) + 1.0
