"""Trained models as other programs get them: images in 0..1 in, boxes and scores or probabilities out.

Decoding and normalization are inside, in float32 whatever the network computes in. The input is
``images``, float32 RGB (B, 3, H, W).
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from rankless.models.detectors.protocol import CANDIDATES
from rankless.recipe.schema import Evaluate


class PortableDetector(nn.Module):
    """A detector with its decoding.

    Args:
        detector: a :class:`~rankless.models.detectors.protocol.Detector`.
        half: whether the network computes in float16.
    """

    def __init__(self, detector: nn.Module, *, half: bool = False) -> None:
        super().__init__()
        if "backbone" in detector._modules:
            # PyTorch's exporters look modules up by their names, and the method would be found first.
            found = property(lambda self: self._modules["backbone"])
            detector.__class__ = type(type(detector).__name__, (type(detector),), {"backbone": found})
        self.detector = detector.half() if half else detector
        self.half_precision = half

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Compute boxes (B, P, 4) xyxy in pixels of the input and scores (B, P, C)."""
        detector = cast(Any, self.detector)
        boxes, scores = detector.decode(detector(images.half() if self.half_precision else images))
        return boxes, scores


class PortableClassifier(nn.Module):
    """A classifier with its normalization and softmax.

    Args:
        classifier: takes normalized images and returns logits.
        mean, std: of the normalization, a number per channel.
        half: whether the network computes in float16.
    """

    def __init__(
        self, classifier: nn.Module, mean: Sequence[float], std: Sequence[float], *, half: bool = False
    ) -> None:
        super().__init__()
        self.classifier = classifier.half() if half else classifier
        self.half_precision = half
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Compute probabilities (B, C)."""
        normalized = (images - cast(Tensor, self.mean)) / cast(Tensor, self.std)
        logits = self.classifier(normalized.half() if self.half_precision else normalized)
        probabilities: Tensor = logits.float().softmax(1)
        return probabilities


class WithNms(nn.Module):
    """A detector with NMS behind it, for formats of PyTorch's; the numbers of ``rankless predict``.

    Args:
        detector: a :class:`PortableDetector`.
        settings: of the NMS, by IoU.
        confidence: candidates that score no higher are left out.
    """

    def __init__(self, detector: PortableDetector, settings: Evaluate, confidence: float) -> None:
        super().__init__()
        self.detector, self.iou, self.confidence = detector, settings.iou, confidence
        self.class_agnostic = settings.class_agnostic
        importlib.import_module("torchvision")  # its NMS, with what PyTorch's exporters know about it

    def forward(self, images: Tensor) -> Tensor:
        """Return detections (N, 7): image, x1, y1, x2, y2, score, class; best first in each image."""
        boxes, scores = self.detector(images)
        best, labels = scores.max(2)
        best, order = best.sort(dim=1, descending=True, stable=True)
        best, order = best[:, :CANDIDATES], order[:, :CANDIDATES]
        labels = labels.gather(1, order)
        boxes = boxes.gather(1, order.unsqueeze(-1).expand(-1, -1, 4))
        images_of = torch.arange(boxes.shape[0], device=boxes.device).unsqueeze(1).expand_as(labels)
        groups = images_of if self.class_agnostic else images_of * scores.shape[2] + labels
        # No two groups overlap; float64, as the shifts would round float32.
        wide = boxes.double()
        shifts = groups.double() * (wide.amax() - wide.amin() + 1)
        (chosen,) = torch.where((best > self.confidence).flatten())
        apart = (wide + shifts.unsqueeze(-1)).flatten(0, 1)[chosen]
        survivors = torch.ops.torchvision.nms(apart, best.flatten()[chosen].double(), self.iou)
        rows = chosen[survivors].sort().values  # image by image, best first in each
        columns = (images_of.flatten()[rows], best.flatten()[rows], labels.flatten()[rows])
        image, score, label = (one.to(boxes.dtype).unsqueeze(1) for one in columns)
        return torch.cat((image, boxes.flatten(0, 1)[rows], score, label), 1)
