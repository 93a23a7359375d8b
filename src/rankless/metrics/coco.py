"""COCO's metric for boxes.

AP is the mean over classes of the average precision at IoU 0.50, 0.55 … 0.95, interpolated at 101 recalls
(Lin et al., "Microsoft COCO: Common Objects in Context", 2014). The scores equal those of cocoapi's
``cocoeval``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankless.metrics.coco_matching import (
    AREAS,
    IGNORED,
    IOUS,
    RIGHT,
    Floats,
    Found,
    Integers,
    Objects,
    in_ranges,
    matched,
    places,
)
from rankless.metrics.curves import RECALLS
from rankless.structures import IGNORED_LABEL, Detections, Scores

_MAX_DETECTIONS = (1, 10, 100)  # maximum detections of a class in an image
NAMES = (
    "AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl",
)  # fmt: skip
"""Names of COCO's twelve scores."""


class Truth(NamedTuple):
    """The ground truth of one image.

    Attributes:
        boxes: xyxy in pixels of the source image, (N, 4).
        labels: class ids, or :data:`~rankless.structures.IGNORED_LABEL` for a crowd of all classes, (N,).
        crowd: whether the box marks a group of objects, in which detections are ignored, (N,).
        areas: areas of the objects in square pixels, which determine whether they are small, medium or large,
            (N,); NaN or None means the area of the box.
        ignored: whether the object counts neither as missed nor as detected, like the difficult objects in
            Pascal VOC, (N,). Unlike with ``crowd``, detections are matched by IoU.
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
    """Compute COCO's twelve scores, and ``AP`` and ``AP50`` of each class under ``per_class``.

    Args:
        detections: the detections of each image, with boxes in pixels of the source image. As in cocoapi,
            only the best 100 per class and image are used.
        truths: a :class:`Truth` or ``(boxes, labels)`` for each image, of shapes (N, 4) and (N,).
        class_names: one name per class id.

    Returns:
        ``AP``, ``AP50`` and ``AP75``; ``APs``, ``APm`` and ``APl`` for small, medium and large objects; the
        recalls ``AR1``, ``AR10`` and ``AR100`` with at most that many detections per class and image; and
        ``ARs``, ``ARm`` and ``ARl`` with at most 100. Each score is in 0..1, or None if there is no ground
        truth.
    """
    if len(detections) != len(truths):
        raise ValueError(f"detections and truths differ in length: {len(detections)} and {len(truths)}")
    classes = len(class_names)
    spread = [_spread(Truth(*truth), one.labels) for truth, one in zip(truths, detections, strict=True)]
    found, objects = _found(detections, classes), _objects(spread, classes)
    outcomes = matched(found, objects)
    # Mean precision (IoU, class, area) and recall (IoU, class, area, detections); −1 without objects.
    precision = np.full((len(IOUS), classes, len(AREAS)), -1.0)
    recall = np.full((*precision.shape, len(_MAX_DETECTIONS)), -1.0)
    for label in np.unique(objects.group // max(len(truths), 1)).tolist():
        ends = np.array([label, label + 1]) * len(truths)
        of_class, its_objects = (slice(*np.searchsorted(each.group, ends)) for each in (found, objects))
        order = of_class.start + np.argsort(-found.scores[of_class], kind="stable")
        counts = objects.counts[its_objects].sum(0)
        _accumulate(outcomes[order], found.place[order], counts, precision[:, label], recall[:, label])
    return _summary(precision, recall, class_names)


def _accumulate(
    outcomes: NDArray[np.int8], place: Integers, objects: Integers, precision: Floats, recall: Floats
) -> None:
    """Fill in the precision and the recall of one class from its detections in order of descending score."""
    right, counted = outcomes == RIGHT, outcomes != IGNORED
    present = np.flatnonzero(objects)
    for column, most in enumerate(_MAX_DETECTIONS):
        hits = right[place < most].sum(0)
        recall[:, present, column] = hits[:, present] / objects[present]
    precision[:, present] = 0
    for at, area in np.argwhere(right.any(0) & (objects > 0)).tolist():
        rows = np.flatnonzero(right[:, at, area])
        hits = np.arange(1, len(rows) + 1)
        share = hits / (counted[:, at, area].cumsum()[rows] + np.spacing(1))
        highest = np.maximum.accumulate(share[::-1])[::-1]  # at this recall or above
        reached = np.searchsorted(hits / objects[area], RECALLS)
        precision[at, area] = np.append(highest, 0)[reached].mean()


def _summary(precision: Floats, recall: Floats, class_names: Sequence[str]) -> Scores:
    """Average ``precision`` (10, C, 4) and ``recall`` (10, C, 4, 3), ignoring −1 (no objects)."""
    every = precision[:, :, 0]
    scores: Scores = {
        "AP": _mean(every),
        "AP50": _mean(every[0]),
        "AP75": _mean(every[5]),
        **{f"AP{area[0]}": _mean(precision[:, :, at]) for at, area in enumerate(AREAS) if at},
        **{f"AR{most}": _mean(recall[:, :, 0, at]) for at, most in enumerate(_MAX_DETECTIONS)},
        **{f"AR{area[0]}": _mean(recall[:, :, at, -1]) for at, area in enumerate(AREAS) if at},
    }
    per_class: dict[str, dict[str, float | None]] = {}
    for label, name in enumerate(class_names):
        key = f"{name} ({label})" if name in per_class else name
        per_class[key] = {"AP": _mean(every[:, label]), "AP50": _mean(every[:1, label])}
    return scores | {"per_class": per_class}


def _mean(values: Floats) -> float | None:
    present = values[values > -1]
    return float(present.mean()) if present.size else None


def _found(detections: Sequence[Detections], classes: int) -> Found:
    boxes, group = _boxes(detections, classes)
    scores = np.concatenate([np.zeros(0), *(one.scores.double().numpy() for one in detections)])
    order = np.lexsort((-scores, group))
    place = places(group[order])
    kept = place < _MAX_DETECTIONS[-1]
    order = order[kept]
    return Found(boxes[order], group[order], place[kept], scores[order])


def _spread(truth: Truth, found: Tensor) -> Truth:
    """Repeat each crowd of all classes for every class in ``found``, the labels of the detections."""
    anything = truth.labels == IGNORED_LABEL
    if not anything.any():
        return truth
    classes, regions = found.unique(), anything.nonzero().squeeze(1)
    objects = (~anything).nonzero().squeeze(1)
    rows = torch.cat((objects, regions.repeat(len(classes))))
    labels = torch.cat((truth.labels[objects], classes.repeat_interleave(len(regions))))
    crowd, areas, ignored = (
        None if one is None else one[rows] for one in (truth.crowd, truth.areas, truth.ignored)
    )
    return Truth(truth.boxes[rows], labels, crowd, areas, ignored)


def _objects(truths: Sequence[Truth], classes: int) -> Objects:
    boxes, group = _boxes(truths, classes)
    order = np.argsort(group, kind="stable")
    boxes, group = boxes[order], group[order]
    sizes = [len(truth.labels) for truth in truths]
    crowd = _column([truth.crowd for truth in truths], sizes, 0)[order] > 0
    shared = crowd | (_column([truth.ignored for truth in truths], sizes, 0)[order] > 0)
    areas = _column([truth.areas for truth in truths], sizes, np.nan)[order]
    areas = np.where(np.isnan(areas), boxes[:, 2] * boxes[:, 3], areas)
    return Objects(boxes, group, crowd, shared, in_ranges(areas) & ~shared[:, None])


def _column(parts: Sequence[Tensor | None], sizes: Sequence[int], otherwise: float) -> Floats:
    """Concatenate the values of all images, with ``otherwise`` in place of missing values."""
    columns = [
        np.full(size, otherwise) if part is None else part.double().numpy()
        for part, size in zip(parts, sizes, strict=True)
    ]
    return np.concatenate([np.zeros(0), *columns])


def _boxes(images: Sequence[Detections] | Sequence[Truth], classes: int) -> tuple[Floats, Integers]:
    """Return all boxes (N, 4) as x, y, width, height, and a number (N,) per box for its class and image."""
    labels = [one.labels.numpy() for one in images]
    for image, each in enumerate(labels):
        for label in each[(each < 0) | (each >= classes)][:1]:
            raise ValueError(f"image {image} has label {label}, but there are only {classes} class names")
    xyxy = np.concatenate([np.zeros((0, 4)), *(one.boxes.double().numpy().reshape(-1, 4) for one in images)])
    numbers = np.repeat(np.arange(len(images)), [len(each) for each in labels])
    group = np.concatenate([np.zeros(0, np.int64), *labels]) * len(images) + numbers
    return np.concatenate([xyxy[:, :2], xyxy[:, 2:] - xyxy[:, :2]], 1), group
