"""Details of a run's best evaluation for the report: curves, counts, and the best and worst images."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from rankless.data.datasets.annotated import BoxedImages, GroundTruth
from rankless.data.datasets.detection import DetectionExamples
from rankless.data.images.image_file import UnreadableImage
from rankless.data.images.sources import ImageSource
from rankless.errors import UserError
from rankless.metrics.box_matching import ImageBoxes, Matches, image_boxes, match
from rankless.metrics.coco import Truth
from rankless.metrics.coco_matching import IGNORED, RIGHT
from rankless.metrics.details import SIDES, classification_details, detection_details
from rankless.structures import Classification, Detections, Sample

if TYPE_CHECKING:  # this imports torchvision, which detectors do not need
    from rankless.data.datasets.classification import ClassificationExamples

EXAMPLES = 6
"""Maximum number of best images, and of worst images, to store."""
_SIDE = 384  # pixels of the longer side of a stored image
_QUALITY = 80
_MOST_BOXES = 100  # boxes per stored image
_LIKELIEST = 3  # classes per stored image


def of_detections(
    data: DetectionExamples, predictions: Sequence[Detections], class_names: Sequence[str]
) -> dict[str, Any]:
    """Return JSON-ready details of the detections in all evaluation images."""
    readable = [one for one in predictions if not one.unreadable]
    truths = [data.ground_truth(one.index) for one in readable]
    images = [image_boxes(as_truth(truth), one) for truth, one in zip(truths, readable, strict=True)]
    details, matches = detection_details(images, len(class_names))
    threshold = details["thresholds"]["best"] if "thresholds" in details else 0.0
    scores, errors, hits = _by_image(matches, len(images), threshold)
    examples = []
    for kind, at in _chosen(scores, errors, hits):
        index = readable[at].index
        if shown := _shown(data.images, index):
            boxes = _boxes(images[at], truths[at], threshold)
            examples.append({"kind": kind, "score": float(scores[at]), **shown, **boxes})
    return details | {"classes": list(class_names), "examples": examples}


def as_truth(truth: GroundTruth) -> Truth:
    """Convert an image's ground-truth objects to the type that the metrics use."""
    return Truth(truth.boxes, truth.labels, truth.crowd, truth.areas, ignored=truth.difficult)


def _by_image(
    matches: Matches, images: int, threshold: float
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the F1, the number of errors and the number of hits of every image at the threshold.

    The F1 of an image without boxes is NaN.
    """
    confident = matches.score >= threshold
    right, wrong = (
        np.bincount(matches.image[confident & (matches.coco == what)], minlength=images)
        for what in (RIGHT, 0)
    )
    truths = np.bincount(matches.truth_image, minlength=images)
    total = right + wrong + truths
    f1 = np.divide(2.0 * right, total, out=np.full(images, np.nan), where=total > 0)
    return f1, wrong + truths - right, right


def _chosen(
    scores: NDArray[np.float64], errors: NDArray[np.int64], hits: NDArray[np.int64]
) -> list[tuple[str, int]]:
    """Select the images with the lowest F1 and most errors, and those with the highest F1 and most hits."""
    order = np.lexsort((np.arange(len(scores)), -errors, np.nan_to_num(scores, nan=2.0)))
    worst = [at for at in order.tolist() if errors[at] > 0][:EXAMPLES]
    order = np.lexsort((np.arange(len(scores)), -hits, -np.nan_to_num(scores, nan=-1.0)))
    best = [at for at in order.tolist() if hits[at] > 0 and at not in worst][:EXAMPLES]
    return [*(("worst", at) for at in worst), *(("best", at) for at in best)]


def _shown(images: ImageSource[Any], index: int) -> dict[str, Any] | None:
    """Return an image as a small base64 JPEG with its name and size, or None if it can no longer be read."""
    try:
        value: Sample | Tensor = images.read(index)
    except (UnreadableImage, UserError, OSError):
        return None
    pixels = value.image if isinstance(value, Sample) else value
    image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    image.thumbnail((_SIDE, _SIDE), reducing_gap=2.0)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=_QUALITY)
    encoded = base64.b64encode(buffer.getvalue()).decode("ascii")
    return {"name": images.source(index), "jpeg": encoded, "width": image.width, "height": image.height}


def _boxes(image: ImageBoxes, truth: GroundTruth, threshold: float) -> dict[str, Any]:
    """Return an image's objects and detections as rows of x1, y1, x2, y2, class and further values.

    Coordinates are fractions of the image's size. The further values are a state for an object, and a score
    and a state for a detection. The state is 1 if the object was found or the detection is correct, 0 if the
    object was missed or the detection is wrong, and 2 if it does not count.
    """
    size, matches = np.array([truth.width, truth.height] * 2, np.float64), match([image])
    states = np.full(len(image.labels), IGNORED)
    states[image.counts] = matches.truth_score >= max(threshold, 0.0)
    confident = image.scores >= threshold
    found = zip(image.scores[confident].round(4).tolist(), matches.coco[confident].tolist(), strict=True)
    return {
        "truth": _rows(image.truths / size, image.labels, zip(states.tolist(), strict=True)),
        "found": _rows(image.boxes[confident] / size, image.found[confident], found),
    }


def _rows(
    boxes: NDArray[np.float64], labels: NDArray[np.int64], more: Iterable[tuple[float, ...]]
) -> list[list[float]]:
    rows = zip(boxes.clip(0, 1).round(4).tolist(), labels.tolist(), more, strict=True)
    return [[*box, label, *rest] for box, label, rest in rows][:_MOST_BOXES]


def boxes_of_training(training: DetectionExamples, classes: int) -> dict[str, Any] | None:
    """Count the training boxes by class and size, or return None if that would require reading images."""
    if not isinstance(training.images, BoxedImages):
        return None
    known = training.images.annotations
    plain = known.flags == 0
    boxes = np.asarray(known.boxes[plain], np.float64)
    sides = np.sqrt((boxes[:, 2:] - boxes[:, :2]).clip(0).prod(1))
    place = np.searchsorted(SIDES, sides, side="right") - 1
    return {
        "images": len(known),
        "truths": np.bincount(known.labels[plain], minlength=classes).tolist(),
        "sizes": np.bincount(place, minlength=len(SIDES)).tolist(),
    }


def images_of_training(training: ClassificationExamples, classes: int) -> dict[str, Any]:
    """Count the training images by class."""
    return {"images": len(training), "truths": training.labels().bincount(minlength=classes).tolist()}


def of_classifications(
    data: ClassificationExamples, predictions: Sequence[Classification], class_names: Sequence[str]
) -> dict[str, Any]:
    """Return JSON-ready details of the predictions for all evaluation images."""
    readable = [one for one in predictions if not one.unreadable]
    logs = torch.stack([one.log_probabilities for one in readable]).double()
    indices = [one.index for one in readable]
    truth = data.labels()[indices].numpy()
    probabilities = logs.exp().nan_to_num(0.0).numpy()
    details = classification_details(probabilities, truth)
    of_truth = probabilities[np.arange(len(truth)), truth]
    order = np.argsort(of_truth, kind="stable").tolist()
    worst = order[: min(EXAMPLES, (len(order) + 1) // 2)]
    best = [at for at in reversed(order) if at not in worst][:EXAMPLES]
    examples = []
    for kind, at in (*(("worst", at) for at in worst), *(("best", at) for at in best)):
        index = indices[at]
        if shown := _shown(data.images, index):
            classes = {"truth": int(truth[at]), "likeliest": _likeliest(probabilities[at])}
            examples.append({"kind": kind, "score": float(of_truth[at]), **shown, **classes})
    return details | {"classes": list(class_names), "examples": examples}


def _likeliest(probabilities: NDArray[np.float64]) -> list[list[float]]:
    order: Iterable[int] = np.argsort(-probabilities, kind="stable")[:_LIKELIEST].tolist()
    return [[label, round(float(probabilities[label]), 4)] for label in order]
