"""Build torchvision detectors by name.

:mod:`rankless.models.detectors.torchvision_modules` describes how they differ from the originals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rankless.models.detectors.protocol import DetectorSpec, Exports, Published
from rankless.models.detectors.torchvision_modules import (
    FCOS,
    SSD,
    FasterRCNN,
    RetinaNet,
    TorchvisionDetector,
)
from rankless.recipe import loss_kinds, model_kinds

_PREFIX = "torchvision/"


def _built(name: str, classes: int, **options: Any) -> nn.Module:
    """Build a detector without downloading weights; ``classes`` includes the background if there is one."""
    from torchvision.models import detection  # importing it takes as long as importing torch

    network: nn.Module = getattr(detection, name)(
        weights=None, weights_backbone=None, num_classes=classes, **options
    )
    return network


def _retinanet(classes: int) -> TorchvisionDetector:
    network = _built("retinanet_resnet50_fpn_v2", classes)
    return RetinaNet(network, ("head.classification_head.cls_logits.",), background=False)


def _fcos(classes: int) -> TorchvisionDetector:
    from torchvision.models.detection.fcos import FCOSHead

    class CountingHead(FCOSHead):  # type: ignore[misc]  # torchvision has no types
        """A head that also returns the number of positives, by which it divides its loss."""

        def compute_loss(
            self, targets: Any, head_outputs: Any, anchors: Any, matched_idxs: list[Tensor]
        ) -> dict[str, Tensor]:
            means = super().compute_loss(targets, head_outputs, anchors, matched_idxs)
            return {**means, "positives": (torch.stack(matched_idxs) >= 0).sum()}

    network = _built("fcos_resnet50_fpn", classes, head=CountingHead(256, 1, classes))
    return FCOS(network, ("head.classification_head.cls_logits.",), background=False)


def _ssdlite(classes: int) -> TorchvisionDetector:
    network = _built("ssdlite320_mobilenet_v3_large", 1 + classes)
    heads = tuple(f"head.classification_head.module_list.{level}.1." for level in range(6))
    return SSD(network, heads, background=True)


def _faster_rcnn(classes: int) -> TorchvisionDetector:
    network = _built("fasterrcnn_resnet50_fpn_v2", 1 + classes)
    return FasterRCNN(network, ("roi_heads.box_predictor.",), background=True)


@dataclass(frozen=True, kw_only=True)
class TorchvisionModel(Published):
    """A torchvision detector that is available by name.

    Attributes:
        make: function that builds the detector for a number of classes.
        size: published (height, width) of the input in pixels. The default is the shorter side that
            torchvision resizes images to.
        untraceable: reason why PyTorch cannot export the detector; empty if it can.
    """

    make: Callable[[int], TorchvisionDetector]
    size: tuple[int, int] = (800, 800)
    untraceable: str = ""


# COCO numbers its 80 classes from 1 to 90. torchvision counts the gaps and, with sigmoids, the background
# too.
MODELS: dict[str, TorchvisionModel] = {
    _PREFIX + "retinanet_resnet50_fpn_v2": TorchvisionModel(
        "Lin et al. 2017, torchvision", 91, make=_retinanet
    ),
    _PREFIX + "fcos_resnet50_fpn": TorchvisionModel("Tian et al. 2019, torchvision", 91, make=_fcos),
    _PREFIX + "fasterrcnn_resnet50_fpn_v2": TorchvisionModel(
        "Ren et al. 2015, torchvision",
        90,
        make=_faster_rcnn,
        untraceable="its second stage computes as many boxes as the first proposes",
    ),
    _PREFIX + "ssdlite320_mobilenet_v3_large": TorchvisionModel(
        "Howard et al. 2019, torchvision", 90, make=_ssdlite, size=(320, 320)
    ),
}


class TorchvisionSpec(DetectorSpec):
    """A specification of a torchvision detector, which includes its loss."""

    def build(self, classes: int) -> TorchvisionDetector:
        return MODELS[self.model.name].make(classes)


def spec(model: model_kinds.ModelKeys, loss: loss_kinds.LossKeys) -> TorchvisionSpec:
    """Return the specification of a recipe's detector."""
    published = MODELS[model.name]
    # The anchors in an exported file are computed for one input shape.
    exports = Exports(any_shape=False, problem=published.untraceable)
    return TorchvisionSpec(model=model, size=published.size, exports=exports)
