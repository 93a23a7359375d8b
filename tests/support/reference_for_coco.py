"""The reference implementation's evaluation of detections."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from rankless.metrics.coco import Truth
from rankless.structures import Detections

CLASSES = 3


def random_images(
    seed: int, *, crowds: bool = False, levels: int = 2000
) -> tuple[list[Truth], list[Detections]]:
    """Detections near objects, doubled, strayed and of other classes; with few levels, scores are equal."""
    rng = np.random.default_rng(seed)
    truths, found = [], []
    count = int(rng.integers(1, 8))
    scores = iter(np.floor(rng.permutation(2000) * levels / 2000) / levels)
    for index in range(count):
        number = int(rng.integers(0, 7))
        corner, side = rng.uniform(0, 300, (number, 2)), np.exp(rng.uniform(1.5, 5.5, (number, 2)))
        boxes, labels = np.concatenate([corner, corner + side], 1), rng.integers(0, CLASSES, number)
        for row in range(1, number):  # some stand so close that a detection could be of either
            if rng.random() < 0.4:
                boxes[row] = boxes[row - 1] + rng.normal(0, 0.12, 4) * np.tile(side[row - 1], 2)
                boxes[row, 2:], side[row] = np.maximum(boxes[row, 2:], boxes[row, :2] + 1), side[row - 1]
                labels[row] = labels[row - 1]
        crowd = torch.tensor(rng.random(number) < 0.2) if crowds else None
        truths.append(Truth(torch.tensor(boxes).float(), torch.tensor(labels), crowd))
        rows, shown = [rng.uniform(0, 200, 4) + np.array([0, 0, 200, 200])], [int(rng.integers(0, CLASSES))]
        for box, label in zip(boxes, labels, strict=True):
            for _ in range(int(rng.integers(0, 4))):
                moved = box + rng.normal(0, 0.1, 4) * np.tile(box[2:] - box[:2], 2)
                rows.append(np.concatenate([moved[:2], np.maximum(moved[2:], moved[:2] + 1)]))
                shown.append(int(label if rng.random() < 0.8 else rng.integers(0, CLASSES)))
        confidence = torch.tensor([next(scores) for _ in rows]).float()
        found.append(Detections(index, torch.tensor(np.array(rows)).float(), confidence, torch.tensor(shown)))
    return truths, found


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
