"""Adapt torchvision detectors to the :class:`~rankless.models.detectors.protocol.Detector` interface.

Layers, anchors, matching and sampling are torchvision's. The detectors differ from the originals as follows,
so that they train like all other models:

- The input is the letterboxed batch, normalized as in torchvision, and is not resized again.
- A loss is a sum and a count. The losses of RetinaNet and Faster R-CNN are means within each image, summed
  over the images. The losses of FCOS and SSDlite are sums, which are divided by the global number of
  positives.
- An unmatched anchor or proposal in a region to ignore, or for FCOS an unmatched point, has a loss of 0; see
  :func:`~rankless.models.heads.truths.as_background`.
- Norms are plain ``BatchNorm2d`` (torchvision freezes the norms of pretrained backbones), so that
  ``batch_norm`` and ``model.freeze`` have the same meaning as for other models.
- Faster R-CNN samples with torch's global generator, which the engine seeds for each micro-batch.

State dicts have torchvision's names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankless.models.detectors.protocol import CANDIDATES, DetectorSpec, Exports, Published
from rankless.models.detectors.roi_align import multiscale_roi_align
from rankless.models.heads.truths import Truths, as_background, boxes_in_ignored, points_in_ignored
from rankless.models.layers import adopt_modules, constant, wide
from rankless.recipe import loss_kinds, model_kinds
from rankless.structures import DetectionBatch, LossSum

# Maximum number of proposals per image in Faster R-CNN, which is assumed on the meta device.
_PROPOSALS = 1000
_POOLED = 7  # side length of a pooled proposal in pixels
_SAMPLES = 2  # per row and column of a pooled cell


class Dense(NamedTuple):
    """The outputs of a one-stage detector.

    Attributes:
        outputs: values for each anchor, (B, A, …), by name, in float32.
        anchors: xyxy in pixels, (A, 4).
        cells: number of cells in each feature map.
    """

    outputs: dict[str, Tensor]
    anchors: Tensor
    cells: list[int]


class Proposed(NamedTuple):
    """The outputs of Faster R-CNN's first stage, which the second stage reads.

    Attributes:
        features: feature maps by name, (B, 256, h, w).
        objectness: logits, (B, A).
        deltas: encoded boxes relative to the anchors, (B, A, 4).
        anchors: xyxy in pixels, (A, 4).
        levels: number of anchors in each feature map.
        size: (height, width) of the input in pixels.
    """

    features: dict[str, Tensor]
    objectness: Tensor
    deltas: Tensor
    anchors: Tensor
    levels: list[int]
    size: tuple[int, int]


class TorchvisionDetector(nn.Module):
    """A :class:`~rankless.models.detectors.protocol.Detector` that wraps a torchvision detector.

    The submodules of ``network`` become submodules of this module. If ``background`` is true, the first class
    output is the background.
    """

    network: Any

    def __init__(self, network: nn.Module, head_names: tuple[str, ...], *, background: bool) -> None:
        super().__init__()
        adopt_modules(self, network)
        self.head_names, self.background = head_names, background

    def head_layout(self, name: str) -> tuple[int, int]:
        width = 4 if ".bbox_pred." in name else 1  # Faster R-CNN has a box for each class
        return (width if self.background else 0), width

    def backbone(self) -> list[nn.Module]:
        """Return the layers of the backbone, without the feature pyramid."""
        extractor: Any = self.network.backbone
        return [extractor.body if hasattr(extractor, "body") else extractor.features]

    def _features(self, images: Tensor) -> dict[str, Tensor]:
        """Normalize images (B, 3, H, W) in 0..1, and return the backbone's feature maps by name."""
        transform = self.network.transform
        mean, std = (constant(x, images).view(-1, 1, 1) for x in (transform.image_mean, transform.image_std))
        maps: dict[str, Tensor] = self.network.backbone((images - mean) / std)
        return maps

    def _anchors(self, generator: nn.Module, images: Tensor, maps: Mapping[str, Tensor]) -> Tensor:
        from torchvision.models.detection.image_list import ImageList

        like = [m.new_empty(m.shape, dtype=wide(m[:0]).dtype) for m in maps.values()]
        height, width = images.shape[-2:]
        anchors: list[Tensor] = generator(ImageList(images, [(height, width)]), like)
        return anchors[0]

    def _targets(self, batch: DetectionBatch, like: Tensor) -> list[dict[str, Tensor]]:
        """Convert the ground truth to torchvision's format, with box sides of at least 0.1 pixels."""
        truths = Truths.of(batch.boxes, batch.labels, batch.valid, like.dtype)
        return [
            {"boxes": boxes[valid], "labels": labels[valid] + self.background}
            for boxes, labels, valid in zip(truths.solid, truths.labels, truths.valid, strict=True)
        ]


class DenseDetector(TorchvisionDetector):
    """A one-stage detector, which predicts scores and a box for each anchor."""

    def forward(self, images: Tensor) -> Dense:
        maps = self._features(images)
        outputs = {name: wide(one) for name, one in self.network.head(list(maps.values())).items()}
        anchors = self._anchors(self.network.anchor_generator, images, maps)
        return Dense(outputs, anchors, [m.shape[-2] * m.shape[-1] for m in maps.values()])

    def _matches(self, targets: list[dict[str, Tensor]], anchors: Tensor) -> list[Tensor]:
        """For each image, return the index (A,) of the object matched to each anchor; negative if none is."""
        from torchvision.ops import box_iou

        unmatched = torch.full((len(anchors),), -1, dtype=torch.int64, device=anchors.device)
        return [
            self.network.proposal_matcher(box_iou(one["boxes"], anchors)) if len(one["boxes"]) else unmatched
            for one in targets
        ]

    def _outputs(self, raw: Dense, batch: DetectionBatch, matches: list[Tensor]) -> dict[str, Tensor]:
        """Return the outputs, with a loss of 0 for unmatched anchors in a region to ignore."""
        if batch.ignored is None:
            return raw.outputs
        anchors = raw.anchors.expand(len(matches), -1, -1)
        excused = boxes_in_ignored(anchors, batch.ignored) & (torch.stack(matches) < 0)
        logits = as_background(raw.outputs["cls_logits"], excused, 0 if self.background else None)
        return {**raw.outputs, "cls_logits": logits}

    def _boxes(self, raw: Dense) -> Tensor:
        deltas = raw.outputs["bbox_regression"]
        anchors = raw.anchors.expand(len(deltas), -1, -1)
        decoded: Tensor = self.network.box_coder.decode_single(deltas.flatten(0, 1), anchors.flatten(0, 1))
        return decoded.view_as(anchors)


class RetinaNet(DenseDetector):
    """RetinaNet (Lin et al., 2017), trained with focal loss and GIoU."""

    def decode(self, raw: Dense) -> tuple[Tensor, Tensor]:
        return self._boxes(raw), raw.outputs["cls_logits"].sigmoid()

    def loss(self, raw: Dense, batch: DetectionBatch) -> LossSum:
        """Compute the loss, summed over the images, and the number of images.

        An image's loss is a mean over its positives.
        """
        targets = self._targets(batch, raw.anchors)
        anchors = [raw.anchors] * len(targets)
        matches = self._matches(targets, raw.anchors)
        outputs = self._outputs(raw, batch, matches)
        means = self.network.head.compute_loss(targets, outputs, anchors, matches)
        return _sum(means, raw.anchors.new_tensor(float(len(targets))))


class FCOS(DenseDetector):
    """FCOS (Tian et al., 2019), trained with focal loss, GIoU and center-ness."""

    def decode(self, raw: Dense) -> tuple[Tensor, Tensor]:
        """Return boxes and scores. A score is the square root of class probability times center-ness."""
        boxes = self.network.box_coder.decode(raw.outputs["bbox_regression"], raw.anchors)
        centerness = raw.outputs["bbox_ctrness"].sigmoid()
        return boxes, (raw.outputs["cls_logits"].sigmoid() * centerness).sqrt()

    def loss(self, raw: Dense, batch: DetectionBatch) -> LossSum:
        """Compute the loss, summed over the positives, and the number of positives."""
        targets = self._targets(batch, raw.anchors)
        anchors = [raw.anchors] * len(targets)
        # FCOS has one anchor per cell.
        outputs = raw.outputs
        if batch.ignored is not None:
            centers = (raw.anchors[:, :2] + raw.anchors[:, 2:]) / 2
            outputs = {**outputs, "excused": points_in_ignored(centers, batch.ignored)}
        means = self.network.compute_loss(targets, outputs, anchors, raw.cells)
        return _sum(means, means.pop("positives"))


class SSD(DenseDetector):
    """SSD (Liu et al., 2016), trained with cross-entropy (three negatives per positive) and smooth L1."""

    def decode(self, raw: Dense) -> tuple[Tensor, Tensor]:
        return self._boxes(raw), raw.outputs["cls_logits"].softmax(-1)[..., 1:]

    def loss(self, raw: Dense, batch: DetectionBatch) -> LossSum:
        """Compute the loss, summed over the positives, and the number of positives."""
        targets = self._targets(batch, raw.anchors)
        matches = self._matches(targets, raw.anchors)
        outputs = self._outputs(raw, batch, matches)
        means = self.network.compute_loss(targets, outputs, [raw.anchors] * len(targets), matches)
        return _sum(means, (torch.stack(matches) >= 0).sum())


class FasterRCNN(TorchvisionDetector):
    """Faster R-CNN (Ren et al., 2015), which proposes boxes, then classifies and refines them."""

    def forward(self, images: Tensor) -> Proposed:
        """Compute the outputs of the first stage for images (B, 3, H, W) in 0..1."""
        from torchvision.models.detection.rpn import concat_box_prediction_layers

        maps = self._features(images)
        objectness, deltas = self.network.rpn.head(list(maps.values()))
        levels = [one[0].numel() for one in objectness]
        anchors = self._anchors(self.network.rpn.anchor_generator, images, maps)
        flat_objectness, flat_deltas = concat_box_prediction_layers(objectness, deltas)
        height, width = images.shape[-2:]
        return Proposed(
            maps,
            wide(flat_objectness).view(len(images), -1),
            wide(flat_deltas).view(len(images), -1, 4),
            anchors,
            levels,
            (height, width),
        )

    def decode(self, raw: Proposed) -> tuple[Tensor, Tensor]:
        """Return the ``CANDIDATES`` highest-scoring (box, class) pairs of each image.

        Each of the boxes (B, CANDIDATES, 4) has a score for only one class in the scores (B, CANDIDATES, C).
        """
        proposals = self._proposals(raw)
        counts = [len(one) for one in proposals]
        logits, deltas = self._second_stage(raw, proposals)
        scores = logits.softmax(-1)[:, 1:]
        boxes = self.network.roi_heads.box_coder.decode(deltas, proposals)
        boxes = boxes.view(*logits.shape, 4)[:, 1:]  # (ΣN, C, 4); there may be no proposals
        best = [_best(*one) for one in zip(boxes.split(counts), scores.split(counts), strict=True)]
        return torch.stack([b for b, _ in best]), torch.stack([s for _, s in best])

    def loss(self, raw: Proposed, batch: DetectionBatch) -> LossSum:
        """Compute the loss, summed over the images, and the number of images.

        An image's loss is a mean over its sampled anchors (first stage) and proposals (second stage).
        """
        from torchvision.models.detection.roi_heads import fastrcnn_loss

        rpn, targets = self.network.rpn, self._targets(batch, raw.anchors)
        anchors = [raw.anchors] * len(targets)
        labels, matched = rpn.assign_targets_to_anchors(anchors, targets)
        wanted = rpn.box_coder.encode(matched, anchors)
        objectness = raw.objectness
        if batch.ignored is not None:
            excused = boxes_in_ignored(torch.stack(anchors), batch.ignored) & (torch.stack(labels) == 0)
            objectness = as_background(objectness.unsqueeze(-1), excused, background=None).squeeze(-1)
        first = [
            rpn.compute_loss(logit, delta, [label], [box])
            for logit, delta, label, box in zip(objectness, raw.deltas, labels, wanted, strict=True)
        ]
        samples = self.network.roi_heads.select_training_samples(self._proposals(raw), targets)
        proposals, _, labels, wanted = samples
        counts = [len(one) for one in proposals]
        logits, deltas = self._second_stage(raw, proposals)
        if batch.ignored is not None:
            inside = [
                boxes_in_ignored(boxes[None], regions[None])[0]
                for boxes, regions in zip(proposals, batch.ignored, strict=True)
            ]
            excused = torch.cat(inside) & (torch.cat(labels) == 0)
            logits = as_background(logits, excused, background=0)
        second = [
            fastrcnn_loss(logit, delta, [label], [box])
            for logit, delta, label, box in zip(
                logits.split(counts), deltas.split(counts), labels, wanted, strict=True
            )
        ]
        names = ("rpn_objectness", "rpn_box", "classes", "box")
        each = zip(*(one + two for one, two in zip(first, second, strict=True)), strict=True)
        means = {name: torch.stack(parts).mean() for name, parts in zip(names, each, strict=True)}
        return _sum(means, raw.anchors.new_tensor(float(len(targets))))

    def _proposals(self, raw: Proposed) -> list[Tensor]:
        """Return each image's proposals (N, 4), xyxy in pixels, without gradients."""
        rpn, count = self.network.rpn, len(raw.objectness)
        boxes = rpn.box_coder.decode(raw.deltas.detach().flatten(0, 1), [raw.anchors] * count)
        if boxes.is_meta:
            return [boxes.new_empty(_PROPOSALS, 4)] * count
        sizes = [raw.size] * count
        proposals: list[Tensor] = rpn.filter_proposals(
            boxes.view(count, -1, 4), raw.objectness, sizes, raw.levels
        )[0]
        return proposals

    def _second_stage(self, raw: Proposed, proposals: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Compute class logits (ΣN, 1 + C) and deltas (ΣN, (1 + C) · 4) for the proposals of all images."""
        heads = self.network.roi_heads
        maps = {name: wide(one) for name, one in raw.features.items()}
        if raw.objectness.is_meta:
            pooled = raw.objectness.new_empty(_PROPOSALS * len(proposals), 256, _POOLED, _POOLED)
        elif raw.objectness.is_cuda and torch.are_deterministic_algorithms_enabled():
            levels = [maps[name] for name in heads.box_roi_pool.featmap_names if name in maps]
            pooled = multiscale_roi_align(levels, proposals, raw.size[0], _POOLED, _SAMPLES)
        else:
            pooled = heads.box_roi_pool(maps, proposals, [raw.size] * len(proposals))
        logits, deltas = heads.box_predictor(heads.box_head(pooled))
        return wide(logits), wide(deltas)


def _best(boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ``CANDIDATES`` highest-scoring of the boxes (N, C, 4) and their scores, zero-padded."""
    flat = scores.flatten()
    order = flat.sort(descending=True, stable=True).indices[:CANDIDATES]
    rows, missing = flat.new_zeros(len(order), scores.shape[1]), (0, 0, 0, CANDIDATES - len(order))
    rows = rows.scatter(1, (order % scores.shape[1]).unsqueeze(1), flat[order].unsqueeze(1))
    return F.pad(boxes.flatten(0, 1)[order], missing), F.pad(rows, missing)


def _sum(means: Mapping[str, Tensor], count: Tensor) -> LossSum:
    """Multiply mean losses by ``count`` (at least 1), to undo torchvision's division."""
    parts = {name: mean * count.clamp(min=1) for name, mean in means.items()}
    return LossSum(
        sum=torch.stack(list(parts.values())).sum(),
        count=count.to(torch.float32),
        parts={name: part.detach() for name, part in parts.items()},
    )


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
        """A head that also returns the number of positives, by which it divides its loss.

        Unmatched points in the mask ``excused`` of its outputs have a loss of 0.
        """

        def compute_loss(
            self, targets: Any, head_outputs: Any, anchors: Any, matched_idxs: list[Tensor]
        ) -> dict[str, Tensor]:
            if "excused" in head_outputs:
                excused = head_outputs["excused"] & (torch.stack(matched_idxs) < 0)
                logits = as_background(head_outputs["cls_logits"], excused, background=None)
                head_outputs = {**head_outputs, "cls_logits": logits}
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
        size: published (height, width) of the input in pixels. By default, both sides have the length to
            which torchvision resizes the shorter side.
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
        untraceable="PyTorch cannot trace its second stage, whose number of boxes varies",
    ),
    _PREFIX + "ssdlite320_mobilenet_v3_large": TorchvisionModel(
        "Howard et al. 2019, torchvision", 90, make=_ssdlite, size=(320, 320)
    ),
}


class TorchvisionSpec(DetectorSpec):
    """A specification of a torchvision detector, including its loss."""

    def build(self, classes: int) -> TorchvisionDetector:
        return MODELS[self.model.name].make(classes)


def spec(model: model_kinds.ModelKeys, loss: loss_kinds.LossKeys) -> TorchvisionSpec:
    """Return the specification of a recipe's detector."""
    published = MODELS[model.name]
    # The anchors in an exported file are computed for one input shape.
    exports = Exports(any_shape=False, problem=published.untraceable)
    return TorchvisionSpec(model=model, size=published.size, exports=exports)
