"""The reference implementation's evaluation of detections."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Sequence
from typing import Any

from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from rankless.metrics.coco import Truth
from rankless.structures import Detections


def _rows(one: Truth) -> Iterable[tuple[Any, ...]]:
    """Box, label, crowd and area of each object; no area where it is the box's."""
    nothing = [None] * len(one.labels)
    crowd = one.labels * 0 if one.crowd is None else one.crowd
    return zip(
        one.boxes.tolist(), one.labels, crowd, nothing if one.areas is None else one.areas, strict=True
    )


def by_pycocotools(truths: Sequence[Any], found: Sequence[Detections], classes: int) -> COCOeval:
    """Evaluate and accumulate; nothing is printed."""
    annotations = [
        {"image_id": image, "category_id": int(label), "bbox": [x1, y1, x2 - x1, y2 - y1],
         "area": (x2 - x1) * (y2 - y1) if area is None else float(area), "iscrowd": int(crowd)}
        for image, one in enumerate(truths)
        for (x1, y1, x2, y2), label, crowd, area in _rows(Truth(*one))
    ]  # fmt: skip
    results = [
        {"image_id": image, "category_id": int(label), "bbox": [x1, y1, x2 - x1, y2 - y1], "score": score}
        for image, one in enumerate(found)
        for (x1, y1, x2, y2), score, label in zip(
            one.boxes.tolist(), one.scores.tolist(), one.labels, strict=True
        )
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        api = COCO()
        api.dataset = {
            "images": [{"id": image} for image in range(len(truths))],
            "categories": [{"id": label} for label in range(classes)],
            "annotations": [{**one, "id": number} for number, one in enumerate(annotations, 1)],
        }
        api.createIndex()
        evaluation = COCOeval(api, api.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
    return evaluation
