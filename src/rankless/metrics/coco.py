"""COCO's box metric, computed by faster-coco-eval on ground truth in the pixels of the source images.

AP is the mean over classes of the average precision at IoU 0.50, 0.55 … 0.95, interpolated at 101 recalls
(Lin et al., "Microsoft COCO: Common Objects in Context", 2014, and cocoapi).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor

from rankless.geometry.boxes import pairwise_iou
from rankless.structures import Detections, Scores

if TYPE_CHECKING:  # it brings OpenCV; no process needs that before it scores
    from faster_coco_eval.core import COCO

_LOWEST_IOU = 0.5 - 1e-6  # of those scored; a hair less, because the evaluator's rounding is its own
_NO_AREA = -1.0  # in none of the ranges below
_MOST = (1, 10, 100)  # detections of a class in an image
_AREAS = ("all", "small", "medium", "large")  # the evaluator's order: any, < 32², 32²..96², > 96² pixels


class Truth(NamedTuple):
    """Ground truth of one image.

    Attributes:
        boxes: xyxy in pixels of the source image, (N, 4).
        labels: class ids, (N,).
        crowd: true where a box marks a group: detections in it count neither way, (N,).
        areas: pixels of the object, by which it is small, medium or large, (N,). Where NaN or
            None it is the box's.
        ignored: true where a box is neither to be found nor wrong to find, however often, as Pascal VOC has
            it for difficult objects, (N,). Unlike ``crowd`` a detection belongs to it by its IoU.
    """

    boxes: Tensor
    labels: Tensor
    crowd: Tensor | None = None
    areas: Tensor | None = None
    ignored: Tensor | None = None


def coco_scores(
    detections: Sequence[Detections],
    truths: Sequence[Truth | tuple[Tensor, Tensor]],
    class_names: Sequence[str],
) -> Scores:
    """Score the detections of a whole data set.

    Args:
        detections: one per image, in the order of ``truths``; each image exactly once. As in pycocotools
            the best 100 of each class in each image count.
        truths: :class:`Truth` or ``(boxes, labels)`` per image.
        class_names: a name per class id.

    Returns:
        COCO's twelve numbers: ``AP``, ``AP50``, ``AP75``, and of small, medium and large objects ``APs``,
        ``APm``, ``APl``; the recalls ``AR1``, ``AR10``, ``AR100`` of so many detections of a class in a
        image, and of 100 ``ARs``, ``ARm``, ``ARl``. And ``per_class``: a name to its ``AP`` and ``AP50``.
        Each is in 0..1, or None where there is no truth to find.

    Raises:
        ValueError: lists of unequal length, or a label without a name.
    """
    if len(detections) != len(truths):
        raise ValueError(f"{len(detections)} predictions for {len(truths)} images")
    classes = len(class_names)
    pairs = zip(truths, detections, strict=True)
    truth_rows = [
        row
        for i, (truth, found) in enumerate(pairs, 1)
        for row in _truth_rows(i, Truth(*truth), classes, found)
    ]
    found_rows = [row for i, found in enumerate(detections, 1) for row in _found_rows(i, found, classes)]
    if not truth_rows:
        nothing = np.full((10, 101, classes, len(_AREAS), len(_MOST)), -1.0)
        return _summary(nothing[..., -1], nothing[:, 0], class_names)
    from faster_coco_eval.core import COCOeval_faster

    evaluation = COCOeval_faster(
        _index(len(truths), class_names, truth_rows),
        _index(len(truths), class_names, found_rows),
        iouType="bbox",
        print_function=_say_nothing,
        extra_calc=False,
    )
    evaluation.params.maxDets = list(_MOST)
    evaluation.evaluate()
    evaluation.accumulate()
    shape = (10, 101, classes, len(_AREAS), len(_MOST))  # IoU, recall, class, area, number of detections
    precision = np.asarray(evaluation.eval["precision"], dtype=np.float64).reshape(shape)
    recall = np.asarray(evaluation.eval["recall"], dtype=np.float64).reshape(shape[:1] + shape[2:])
    return _summary(precision[..., -1], recall, class_names)


def _summary(precision: np.ndarray, recall: np.ndarray, class_names: Sequence[str]) -> Scores:
    """Means over what exists: ``precision`` (10, 101, K, 4), ``recall`` (10, K, 4, 3); −1 without a truth."""
    every = precision[:, :, :, 0]
    scores: Scores = {
        "AP": _mean(every),
        "AP50": _mean(every[0]),
        "AP75": _mean(every[5]),
        **{f"AP{area[0]}": _mean(precision[:, :, :, at]) for at, area in enumerate(_AREAS) if at},
        **{f"AR{most}": _mean(recall[:, :, 0, at]) for at, most in enumerate(_MOST)},
        **{f"AR{area[0]}": _mean(recall[:, :, at, -1]) for at, area in enumerate(_AREAS) if at},
    }
    per_class: dict[str, dict[str, float | None]] = {}
    for label, name in enumerate(class_names):
        key = f"{name} ({label})" if name in per_class else name
        per_class[key] = {"AP": _mean(every[:, :, label]), "AP50": _mean(every[0, :, label])}
    return scores | {"per_class": per_class}


def _mean(values: np.ndarray) -> float | None:
    present = values[values > -1]
    return float(present.mean()) if present.size else None


def _truth_rows(image: int, truth: Truth, classes: int, found: Detections) -> list[dict[str, Any]]:
    rows = _rows(image, truth.boxes, truth.labels, classes)
    if truth.crowd is not None:
        for row, crowd in zip(rows, truth.crowd.tolist(), strict=True):
            row["iscrowd"] = int(crowd)
    if truth.areas is not None:
        for row, area in zip(rows, truth.areas.tolist(), strict=True):
            row["area"] = row["area"] if math.isnan(area) else float(area)
    return rows if truth.ignored is None else _with_ignored(rows, truth, truth.ignored, found)


def _with_ignored(
    rows: list[dict[str, Any]], truth: Truth, ignored: Tensor, found: Detections
) -> list[dict[str, Any]]:
    """The rows, each that is ignored repeated for every detection that may belong to it.

    The evaluator leaves out what lies in no range of areas; but it gives each truth one detection and would
    count the second one as wrong.
    """
    near = pairwise_iou(truth.boxes.double(), found.boxes.double()) >= _LOWEST_IOU  # (N, K)
    copies = (near & (truth.labels[:, None] == found.labels)).sum(1).tolist()
    result = []
    for row, left_out, count in zip(rows, ignored.tolist(), copies, strict=True):
        result += [row | {"area": _NO_AREA} for _ in range(count)] if left_out else [row]
    return result


def _found_rows(image: int, found: Detections, classes: int) -> list[dict[str, Any]]:
    rows = _rows(image, found.boxes, found.labels, classes)
    for row, score in zip(rows, found.scores.tolist(), strict=True):
        row["score"] = score
    return rows


def _rows(image: int, boxes: Tensor, labels: Tensor, classes: int) -> list[dict[str, Any]]:
    """COCO's annotations: box as x, y, width, height; image and category count from 1."""
    rows = []
    for (x1, y1, x2, y2), label in zip(boxes.tolist(), labels.tolist(), strict=True):
        if not 0 <= label < classes:
            raise ValueError(f"image {image - 1}: label {label}, but there are {classes} class names")
        box = [x1, y1, x2 - x1, y2 - y1]
        area = box[2] * box[3]
        rows.append({"image_id": image, "category_id": label + 1, "bbox": box, "area": area, "iscrowd": 0})
    return rows


def _index(images: int, class_names: Sequence[str], rows: list[dict[str, Any]]) -> COCO:
    from faster_coco_eval.core import COCO

    # Numbers count from 1: the evaluator takes 0 for "unmatched".
    return COCO(
        {
            "images": [{"id": image} for image in range(1, images + 1)],
            "categories": [{"id": label, "name": name} for label, name in enumerate(class_names, 1)],
            "annotations": [row | {"id": number} for number, row in enumerate(rows, 1)],
        },
        print_function=_say_nothing,
    )


def _say_nothing(*_: object) -> None:
    pass
