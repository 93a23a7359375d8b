"""Match detections with objects at an IoU of 0.5.

By COCO's rule (cocoapi's ``cocoeval``), each detection, in order of descending score, is matched with the
unmatched object of its class with the largest IoU. By Pascal VOC's rule (the devkit's ``VOCevaldet``), it is
matched with the object of its class with the largest IoU, and is wrong if that object already has a better
detection. The confusion matrix also matches across classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankless.metrics.coco import Truth
from rankless.metrics.coco_matching import IGNORED, RIGHT, Floats, Integers, places
from rankless.structures import IGNORED_LABEL, Detections

IOU = 0.5
MOST = 100
"""Maximum number of detections per class and image, as in COCO's metric."""


@dataclass(frozen=True)
class ImageBoxes:
    """The objects and the detections in one image.

    Attributes:
        truths: boxes of the objects, xyxy in pixels of the source image, (N, 4).
        labels: labels of the objects, or ``IGNORED_LABEL`` for a crowd of all classes, (N,).
        counts: whether the object counts as found or missed instead of being ignored, (N,).
        crowd: whether the box marks a group of objects, (N,).
        areas: areas of the objects in square pixels, (N,).
        boxes: boxes of the detections, best first, at most :data:`MOST` per class, (K, 4).
        found: labels of the detections, (K,).
        scores: scores of the detections, descending, (K,).
        overlaps: IoU of each detection and each object or, for a crowd, the fraction of the detection inside
            it, (K, N).
    """

    truths: Floats
    labels: Integers
    counts: NDArray[np.bool_]
    crowd: NDArray[np.bool_]
    areas: Floats
    boxes: Floats
    found: Integers
    scores: Floats
    overlaps: Floats

    @property
    def same(self) -> NDArray[np.bool_]:
        """A mask (K, N) of detections and objects with the same class and an IoU of at least 0.5."""
        agree = (self.found[:, None] == self.labels) | (self.labels == IGNORED_LABEL)
        near: NDArray[np.bool_] = (self.overlaps >= IOU) & agree
        return near


@dataclass(frozen=True)
class Matches:
    """The matched detections in a data set, and the objects that count.

    Attributes:
        image, label, score: image number, label and score of each detection, (D,).
        coco, pascal: ``WRONG``, ``RIGHT`` or ``IGNORED`` for each detection, by COCO's rule and by Pascal
            VOC's rule, (D,).
        truth_image, truth_label, truth_area: image number, label and area of each object, (T,).
        truth_score: score of the matching detection by COCO's rule, or −1 if there is none, (T,).
    """

    image: Integers
    label: Integers
    score: Floats
    coco: Integers
    pascal: Integers
    truth_image: Integers
    truth_label: Integers
    truth_area: Floats
    truth_score: Floats


def image_boxes(truth: Truth, detections: Detections) -> ImageBoxes:
    """Sort the detections in an image and compute their overlaps with its objects."""
    truths = truth.boxes.double().numpy().reshape(-1, 4)
    labels = truth.labels.numpy().astype(np.int64)
    none = np.zeros(len(labels), bool)
    crowd = none if truth.crowd is None else truth.crowd.numpy().astype(bool)
    ignored = none if truth.ignored is None else truth.ignored.numpy().astype(bool)
    areas = (truths[:, 2:] - truths[:, :2]).prod(1)
    if truth.areas is not None:
        stated = truth.areas.double().numpy()
        areas = np.where(np.isnan(stated), areas, stated)
    scores = detections.scores.double().numpy()
    order = np.argsort(-scores, kind="stable")
    found = detections.labels.numpy().astype(np.int64)[order]
    order = order[_place_in_class(found) < MOST]
    boxes = detections.boxes.double().numpy().reshape(-1, 4)[order]
    found = detections.labels.numpy().astype(np.int64)[order]
    overlaps = _overlaps(boxes, truths, crowd)
    return ImageBoxes(truths, labels, ~(crowd | ignored), crowd, areas, boxes, found, scores[order], overlaps)


def _place_in_class(labels: Integers) -> Integers:
    """For each entry, count the earlier entries with the same label."""
    by_label = np.argsort(labels, kind="stable")
    counts = np.empty(len(labels), np.int64)
    counts[by_label] = places(labels[by_label])
    return counts


def _overlaps(boxes: Floats, truths: Floats, crowd: NDArray[np.bool_]) -> Floats:
    low = np.maximum(boxes[:, None, :2], truths[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], truths[None, :, 2:])
    inside = (high - low).clip(0).prod(2)  # (K, N)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)[:, None]
    union = area + (truths[:, 2:] - truths[:, :2]).prod(1) - inside
    whole: Floats = np.where(crowd, area, union)
    overlaps: Floats = np.divide(inside, whole, out=np.zeros_like(inside), where=whole > 0)
    return overlaps


def match(images: Sequence[ImageBoxes]) -> Matches:
    """Match the detections with the objects in all images by COCO's rule and by Pascal VOC's rule."""
    rows = [_of_image(number, each) for number, each in enumerate(images)]
    if not rows:
        empty, none = np.zeros(0, np.int64), np.zeros(0)
        return Matches(empty, empty, none, empty, empty, empty, empty, none, none)
    return Matches(*(np.concatenate(parts) for parts in zip(*rows, strict=True)))


def _of_image(number: int, image: ImageBoxes) -> tuple[NDArray[np.generic], ...]:
    coco, pascal = np.zeros(len(image.scores), np.int64), np.zeros(len(image.scores), np.int64)
    truth_score = np.full(len(image.labels), -1.0)
    taken: set[int] = set()  # by Pascal VOC's rule
    counts, crowd = image.counts.tolist(), image.crowd.tolist()
    for row, candidates in _candidates(image):
        # As in cocoapi, the later object wins a tie.
        free = [one for one in candidates if counts[one[1]] and truth_score[one[1]] < 0]
        if free:
            coco[row], truth_score[max(free)[1]] = RIGHT, image.scores[row]
        elif not all(counts[column] for _, column in candidates):
            coco[row] = IGNORED
        alone = [(overlap, -column) for overlap, column in candidates if not crowd[column]]
        best = -max(alone)[1] if alone else -1
        if best < 0 or not counts[best]:
            pascal[row] = IGNORED
        elif best not in taken:
            pascal[row] = RIGHT
            taken.add(best)
    real = image.counts
    return (
        np.full(len(coco), number), image.found, image.scores, coco, pascal,
        np.full(int(real.sum()), number), image.labels[real], image.areas[real], truth_score[real],
    )  # fmt: skip


def _candidates(image: ImageBoxes) -> Iterator[tuple[int, list[tuple[float, int]]]]:
    """Yield each detection that can match objects, best first, with the (IoU, index) of each object."""
    rows, columns = np.nonzero(image.same)
    overlaps = image.overlaps[rows, columns].tolist()
    groups: dict[int, list[tuple[float, int]]] = {}
    for row, column, overlap in zip(rows.tolist(), columns.tolist(), overlaps, strict=True):
        groups.setdefault(row, []).append((overlap, column))
    yield from groups.items()


def confusion(images: Sequence[ImageBoxes], threshold: float, classes: int) -> Integers:
    """Compute the confusion matrix (C + 1, C + 1): a row per true class, a column per predicted class.

    Pairs with an IoU above 0.5 are matched one to one, first within the same class, then by descending IoU.
    The last row counts detections without an object, and the last column counts objects without a detection.
    """
    matrix = np.zeros((classes + 1, classes + 1), np.int64)
    for image in images:
        confident = image.scores >= threshold
        found, overlaps = image.found[confident], image.overlaps[confident]
        ignored = np.asarray((image.same[confident] & ~image.counts).any(1))
        rows, columns = np.nonzero((overlaps > IOU) & image.counts)
        differs = (found[rows] - image.labels[columns]).astype(bool)
        free_rows, free_columns = np.ones(len(found), bool), image.counts.copy()
        for at in np.lexsort((-overlaps[rows, columns], differs)).tolist():
            row, column = rows[at], columns[at]
            if free_rows[row] and free_columns[column] and not (differs[at] and ignored[row]):
                matrix[image.labels[column], found[row]] += 1
                free_rows[row] = free_columns[column] = False
        matrix[:, classes] += np.bincount(image.labels[free_columns], minlength=classes + 1)
        matrix[classes] += np.bincount(found[free_rows & ~ignored], minlength=classes + 1)
    return matrix
