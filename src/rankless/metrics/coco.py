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

_LOWEST_IOU = 0.5 - 1e-6  # the lowest IoU that is evaluated, minus a margin for the evaluator's rounding
_NO_AREA = -1.0  # outside all ranges below
_MAX_DETECTIONS = (1, 10, 100)  # detections of a class in an image
NAMES = (
    "AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl",
)  # fmt: skip
"""COCO's twelve numbers."""
_AREAS = ("all", "small", "medium", "large")  # the evaluator's order: any, < 32², 32²..96², > 96² pixels


class Truth(NamedTuple):
    """Ground truth of one image.

    Attributes:
        boxes: xyxy in pixels of the source image, (N, 4).
        labels: class ids, (N,).
        crowd: true where a box marks a group: detections in it are ignored, (N,).
        areas: pixels of the object, which decide whether it is small, medium or large, (N,). If NaN or None,
            the area of the box.
        ignored: true where neither missing nor detecting a box counts, as for Pascal VOC's difficult objects,
            (N,). Unlike with ``crowd``, detections are matched by their IoU.
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
        detections: one per image, in the order of ``truths``, with boxes (K, 4) in pixels of the source. As
            in pycocotools the best 100 of each class in each image count.
        truths: :class:`Truth` or ``(boxes, labels)`` per image, of shapes (N, 4) and (N,).
        class_names: a name per class id.

    Returns:
        COCO's twelve numbers: ``AP``, ``AP50``, ``AP75``, and of small, medium and large objects ``APs``,
        ``APm``, ``APl``; the recalls ``AR1``, ``AR10``, ``AR100`` with so many detections per class and
        image, and with 100 ``ARs``, ``ARm``, ``ARl``. And ``per_class``: the ``AP`` and ``AP50`` by name.
        Each is in 0..1, or None without ground truth.

    Raises:
        ValueError: lists of unequal length, or a label without a name.
    """
    if len(detections) != len(truths):
        raise ValueError(f"{len(detections)} predictions for {len(truths)} images")
    classes, truth_rows, detection_rows = len(class_names), [], []
    for image, (truth, one) in enumerate(zip(truths, detections, strict=True), 1):
        truth_rows += _truth_rows(image, Truth(*truth), classes, one)
        detection_rows += _detection_rows(image, one, classes)
    # IoU, recall, class, area, number of detections
    shape = (10, 101, classes, len(_AREAS), len(_MAX_DETECTIONS))
    if not truth_rows:
        nothing = np.full(shape, -1.0)
        return _summary(nothing[..., -1], nothing[:, 0], class_names)
    from faster_coco_eval.core import COCOeval_faster

    evaluation = COCOeval_faster(
        _index(len(truths), class_names, truth_rows),
        _index(len(truths), class_names, detection_rows),
        iouType="bbox",
        print_function=_silent,
        extra_calc=False,
    )
    evaluation.params.maxDets = list(_MAX_DETECTIONS)
    evaluation.evaluate()
    evaluation.accumulate()
    precision = np.asarray(evaluation.eval["precision"], dtype=np.float64).reshape(shape)
    recall = np.asarray(evaluation.eval["recall"], dtype=np.float64).reshape(shape[:1] + shape[2:])
    return _summary(precision[..., -1], recall, class_names)


def _summary(precision: np.ndarray, recall: np.ndarray, class_names: Sequence[str]) -> Scores:
    """Average what exists: ``precision`` (10, 101, K, 4), ``recall`` (10, K, 4, 3); −1 without a truth."""
    every = precision[:, :, :, 0]
    scores: Scores = {
        "AP": _mean(every),
        "AP50": _mean(every[0]),
        "AP75": _mean(every[5]),
        **{f"AP{area[0]}": _mean(precision[:, :, :, at]) for at, area in enumerate(_AREAS) if at},
        **{f"AR{most}": _mean(recall[:, :, 0, at]) for at, most in enumerate(_MAX_DETECTIONS)},
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


def _truth_rows(image: int, truth: Truth, classes: int, detections: Detections) -> list[dict[str, Any]]:
    rows = _rows(image, truth.boxes, truth.labels, classes)
    if truth.crowd is not None:
        for row, crowd in zip(rows, truth.crowd.tolist(), strict=True):
            row["iscrowd"] = int(crowd)
    if truth.areas is not None:
        for row, area in zip(rows, truth.areas.tolist(), strict=True):
            row["area"] = row["area"] if math.isnan(area) else float(area)
    return rows if truth.ignored is None else _with_ignored(rows, truth, truth.ignored, detections)


def _with_ignored(
    rows: list[dict[str, Any]], truth: Truth, ignored: Tensor, detections: Detections
) -> list[dict[str, Any]]:
    """Repeat each ignored row for every detection that may match it.

    The evaluator ignores what is outside all ranges of areas; but it matches one detection to each truth and
    would count a second one as wrong.
    """
    near = pairwise_iou(truth.boxes.double(), detections.boxes.double()) >= _LOWEST_IOU  # (N, K)
    copies = (near & (truth.labels[:, None] == detections.labels)).sum(1).tolist()
    result = []
    for row, is_ignored, count in zip(rows, ignored.tolist(), copies, strict=True):
        result += [row | {"area": _NO_AREA} for _ in range(count)] if is_ignored else [row]
    return result


def _detection_rows(image: int, detections: Detections, classes: int) -> list[dict[str, Any]]:
    rows = _rows(image, detections.boxes, detections.labels, classes)
    for row, score in zip(rows, detections.scores.tolist(), strict=True):
        row["score"] = score
    return rows


def _rows(image: int, boxes: Tensor, labels: Tensor, classes: int) -> list[dict[str, Any]]:
    """Make COCO's annotations: box as x, y, width, height; images and categories count from 1."""
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
        print_function=_silent,
    )


def _silent(*_: object) -> None:
    pass
