"""Adapt transformers detectors to the :class:`~rankless.models.detectors.protocol.Detector` interface.

Layers, matching, denoising and losses are those of transformers. The detectors differ from the originals as
follows, so that they train like all other models:

- The input is the resized image, in 0..1 or normalized with ImageNet's mean and standard deviation. There is
  no pixel mask, so the padding counts as part of the image.
- A loss is a sum and a count. transformers divides by the number of boxes in the batch. This is undone here,
  and the sum is divided once by the number of boxes in the global batch. Therefore, terms that transformers
  averages over queries (DETR's cross-entropy, D-FINE's distillation) are weighted by the number of boxes in
  their micro-batch.
- The loss is computed in float32, from outputs of any precision. The Hungarian matching runs on the CPU in
  float64 (SciPy).
- An unmatched query whose box is in a region to ignore has a loss of 0 as "no object". Denoising queries are
  trained as usual.
- The denoising queries of RT-DETR and D-FINE need the ground truth, so in training, the network runs in
  ``loss``. Their noise comes from torch's global generator, which the engine seeds for each micro-batch.
- On a GPU, deformable attention samples with :mod:`rankless.models.detectors.bilinear_sampling`.

State dicts have the names that transformers uses.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rankless.errors import UserError, one_of
from rankless.extras import needed
from rankless.geometry.boxes import to_xyxy
from rankless.models.detectors.bilinear_sampling import DeterministicSampling
from rankless.models.detectors.protocol import DetectorSpec, Exports, Published
from rankless.models.detectors.transformers_configs import CONFIGS
from rankless.models.heads.truths import Truths, as_background, boxes_in_ignored
from rankless.models.layers import adopt_modules, wide
from rankless.models.work import convolution_outputs
from rankless.recipe import loss_kinds, model_kinds
from rankless.recipe.model_kinds import IMAGENET_MEAN, IMAGENET_STD
from rankless.recipe.transformers_config import KINDS, normalizes, read_config
from rankless.structures import DetectionBatch, LossSum

CUSTOM = "hf/config"
"""The model name of a detector that is described by a configuration file."""
OLDEST = (5, 18)
"""The first transformers version whose main loss terms for RT-DETR and D-FINE do not count denoising queries
(pull request 48528)."""
_HEADS = (
    "class_embed.",
    "class_labels_classifier.",
    "model.decoder.class_embed.",
    "model.denoising_class_embed.",
    "model.enc_score_head.",
)
# Positional arguments of the loss functions.
_ARGUMENTS = ("logits", "labels", "device", "pred_boxes", "config", "outputs_class", "outputs_coord")
_PART = re.compile(r"loss_[a-z]+")  # matches the start of loss_vfl_aux_0 and loss_bbox_dn_1


class Raw(NamedTuple):
    """The outputs of a transformers detector.

    Attributes:
        images: the normalized input, (B, 3, H, W).
        outputs: the network's outputs; None in training, because the network then runs in ``loss``.
    """

    images: Tensor
    outputs: Any


class TransformersDetector(nn.Module):
    """A :class:`~rankless.models.detectors.protocol.Detector` that wraps a transformers detector.

    The submodules of ``network`` become submodules of this module. If ``normalize`` is true, the input is
    normalized with ImageNet's mean and standard deviation.
    """

    head_names = _HEADS
    network: Any

    def __init__(self, network: Any, *, normalize: bool) -> None:
        super().__init__()
        adopt_modules(self, network)
        self.normalize = normalize
        self.has_background = network.config.model_type == "detr"  # softmax with a "no object" class
        self.published_loss = network.loss_function
        network.loss_function = _postponed

    def train(self, mode: bool = True) -> TransformersDetector:
        super().train(mode)
        self.network.training = mode
        return self

    def head_layout(self, name: str) -> tuple[int, ...]:
        is_one_more = "denoising_class_embed" in name or self.has_background
        return 0, 1, int(is_one_more)

    def backbone(self) -> list[nn.Module]:
        return [self.network.model.backbone]

    def forward(self, images: Tensor) -> Raw:
        """Compute the outputs for images (B, 3, H, W) in 0..1. In training, only normalize the images."""
        self._check_size(*images.shape[-2:])
        if self.normalize:
            mean, std = (torch.tensor(one).view(-1, 1, 1).to(images) for one in (IMAGENET_MEAN, IMAGENET_STD))
            images = (images - mean) / std
        return Raw(images, None if self.training else self._run(images, ()))

    def _check_size(self, height: int, width: int) -> None:
        config = self.network.config
        strides = getattr(config, "feat_strides", ())

        def cells(height: int, width: int) -> int:
            return sum(-(-height // stride) * -(-width // stride) for stride in strides)

        if strides and cells(height, width) < config.num_queries:
            least = next(side for side in itertools.count(32, 32) if cells(side, side) >= config.num_queries)
            raise UserError(
                f"the input of {height} × {width} pixels has {cells(height, width)} cells, but the detector "
                f"needs at least {config.num_queries}; use a larger model.image_size, such as {least}"
            )

    def _run(self, images: Tensor, targets: Sequence[Mapping[str, Tensor]]) -> Any:
        """Run the network. The ``loss`` in its outputs contains the arguments of the loss function."""
        has_no_values = images.is_meta or torch.compiler.is_exporting()
        with (
            _unchecked() if has_no_values else nullcontext(),
            DeterministicSampling() if images.is_cuda else nullcontext(),
        ):
            return self.network(pixel_values=images, labels=targets)

    def decode(self, raw: Raw) -> tuple[Tensor, Tensor]:
        outputs = raw.outputs if raw.outputs is not None else self._run(raw.images, ())
        logits, boxes = wide(outputs.logits), wide(outputs.pred_boxes)
        height, width = raw.images.shape[-2:]
        corners = to_xyxy(boxes) * boxes.new_tensor([width, height, width, height])
        return corners, logits.softmax(-1)[..., :-1] if self.has_background else logits.sigmoid()

    def loss(self, raw: Raw, batch: DetectionBatch) -> LossSum:
        """Compute the loss, summed over the boxes, and the number of boxes."""
        targets = self._targets(raw.images, batch)
        outputs = raw.outputs if raw.outputs is not None else self._run(raw.images, targets)
        given, named = outputs.loss
        named = dict(zip(_ARGUMENTS, given, strict=False)) | named | {"labels": targets}
        named = {key: _wide(one) for key, one in named.items()}
        count = batch.valid.sum()
        tensors = [one for one in named.values() if isinstance(one, Tensor)]
        if not all(
            bool(one.isfinite().all()) for one in tensors
        ):  # transformers raises errors about the boxes
            wrong = torch.stack([one.sum() for one in tensors]).sum()
            return LossSum(wrong, count.float(), dict.fromkeys(self._parts(), wrong.detach()))
        with torch.autocast(raw.images.device.type, enabled=False):
            if batch.ignored is not None:
                named |= self._excused(named, batch.ignored, raw.images)
            mean, terms, _ = self.published_loss(**named)
        divisor = count.clamp(min=1)
        total = mean * divisor
        if (embedding := getattr(self.network.model, "denoising_class_embed", None)) and self.training:
            total = (
                total + 0 * embedding.weight.sum()
            )  # without objects, there is no denoising and no gradient
        sums = dict.fromkeys(self._parts(), total.new_zeros(()))
        for name, term in terms.items():
            if (part := _PART.match(name)) and part[0] in sums:
                sums[part[0]] = sums[part[0]] + term.detach() * divisor
        return LossSum(total, count.float(), sums)

    def _excused(self, named: Mapping[str, Any], ignored: Tensor, images: Tensor) -> dict[str, Tensor]:
        """Return the logits with a loss of 0 for unmatched queries in a region to ignore, by argument.

        Queries are matched here and once more in the loss function. The result is the same, because the new
        logits only increase the costs of queries without a match.
        """
        height, width = images.shape[-2:]
        config, matcher = self.network.config, _matcher(self.network.config)
        regions = ignored / ignored.new_tensor([width, height, width, height])

        def excused(logits: Tensor, boxes: Tensor) -> Tensor:
            first = logits.shape[1] - config.num_queries  # the denoising queries come first
            found = {"logits": logits[:, first:], "pred_boxes": boxes[:, first:].clamp(0, 1)}
            free = torch.arange(logits.shape[1], device=logits.device).repeat(len(logits), 1) >= first
            for row, (queries, _) in zip(free, matcher(found, named["labels"]), strict=True):
                row[first + queries] = False
            inside = boxes_in_ignored(to_xyxy(boxes.detach()), regions)
            return as_background(logits, free & inside, -1 if self.has_background else None)

        made = {"logits": excused(named["logits"], named["pred_boxes"])}
        axis = 0  # of the layers
        if "enc_topk_logits" in named:
            axis = 1
            made["enc_topk_logits"] = excused(named["enc_topk_logits"], named["enc_topk_bboxes"])
        if named["outputs_class"] is not None:
            classes, boxes = (named[key].unbind(axis) for key in ("outputs_class", "outputs_coord"))
            made["outputs_class"] = torch.stack(list(map(excused, classes, boxes)), axis)
        return made

    def _parts(self) -> list[str]:
        """Return the names of the loss terms, each of which is summed over all layers."""
        focal = not normalizes(self.network.config.model_type)
        fine = ["loss_fgl", "loss_ddf"] if self.network.config.model_type == "d_fine" else []
        return ["loss_vfl" if focal else "loss_ce", "loss_bbox", "loss_giou", *fine]

    def _targets(self, images: Tensor, batch: DetectionBatch) -> list[dict[str, Tensor]]:
        """Convert the ground truth to centers and sizes as fractions of the input."""
        height, width = images.shape[-2:]
        truths = Truths.of(batch.boxes, batch.labels, batch.valid, wide(images[:0]).dtype)
        boxes = torch.cat((truths.center, truths.size), -1)
        boxes = boxes / boxes.new_tensor([width, height, width, height])
        return [
            {"boxes": one[valid], "class_labels": labels[valid]}
            for one, labels, valid in zip(boxes, truths.labels, truths.valid, strict=True)
        ]


def _matcher(config: Any) -> Any:
    """Return the matcher of a detector's loss function."""
    from transformers.loss import loss_deformable_detr, loss_for_object_detection, loss_rt_detr

    matcher: Any = loss_rt_detr.RTDetrHungarianMatcher
    if not normalizes(config.model_type):
        return matcher(config)
    matcher = loss_deformable_detr.DeformableDetrHungarianMatcher
    if config.model_type == "detr":
        matcher = loss_for_object_detection.HungarianMatcher
    return matcher(config.class_cost, config.bbox_cost, config.giou_cost)


def _postponed(*given: Any, **named: Any) -> tuple[Any, None, None]:
    """Stand in for the loss function, and return its arguments for a later call."""
    return (given, named), None, None


@contextmanager
def _unchecked() -> Iterator[None]:
    """Disable transformers' value checks, because meta tensors and tensors in exports have no values."""
    name, before = "TRANSFORMERS_DISABLE_TORCH_CHECK", os.environ.get("TRANSFORMERS_DISABLE_TORCH_CHECK")
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _wide(value: Any) -> Any:
    return wide(value) if isinstance(value, Tensor) and value.is_floating_point() else value


def library(where: str) -> Any:
    """Import transformers and check its version. Error messages start with ``where``."""
    transformers = needed("transformers", "transformers", where)
    if tuple(int(part) for part in transformers.__version__.split(".")[:2]) < OLDEST:
        raise UserError(
            f"{where}: the installed transformers {transformers.__version__} computes wrong losses for "
            f"RT-DETR and D-FINE; expected at least {'.'.join(map(str, OLDEST))}; run `pip install "
            "'rankless[transformers]'`"
        )
    return transformers


def classes_of(config: Mapping[str, Any], classes: int, where: str) -> tuple[Any, Any]:
    """Return a detector's class in transformers and its configuration object.

    ``config`` is the parsed ``config.json``. Error messages mention ``where``, the option that refers
    to it.
    """
    transformers = library(where)
    keys = {**config, "num_labels": classes, "attn_implementation": "eager"}
    kind = KINDS[keys.pop("model_type")]
    try:
        made = getattr(transformers, f"{kind}Config")(**keys)
    except Exception as error:  # transformers raises errors of many types
        raise _refused(where, error) from error
    return getattr(transformers, f"{kind}ForObjectDetection"), made


def _refused(where: str, error: Exception) -> UserError:
    reason = " ".join(str(error).split())[:300]
    return UserError(f"{where}: transformers rejected the configuration: {reason}")


@dataclass(frozen=True, kw_only=True)
class TransformersSpec(DetectorSpec):
    """A specification of a transformers detector, including its loss."""

    model: model_kinds.TransformersModel
    config: Mapping[str, Any]

    def build(self, classes: int) -> TransformersDetector:
        where = f"model.name={self.model.name}"
        kind, config = classes_of(self.config, classes, where)
        try:
            network = kind(config)
        except Exception as error:  # transformers and timm raise errors of many types
            raise _refused(where, error) from error
        auto = self.model.normalize == "auto"
        normalize = normalizes(self.config["model_type"]) if auto else self.model.normalize == "imagenet"
        return TransformersDetector(network, normalize=normalize)

    def activations(self, size: tuple[int, int]) -> list[int]:
        # DETR's encoder depends on values, which meta tensors do not have, so only its backbone is counted.
        if normalizes(self.config["model_type"]):
            return convolution_outputs(lambda: _Backbone(self.build(1)), size)
        return super().activations(size)

    def self_contained(self) -> model_kinds.ModelKeys:
        if not self.model.config:
            return self.model
        return replace(self.model, config=json.dumps(self.config, separators=(",", ":")))


class _Backbone(nn.Module):
    """The backbone of DETR, called with a pixel mask that covers the whole image."""

    def __init__(self, detector: TransformersDetector) -> None:
        super().__init__()
        (self.network,) = detector.backbone()

    def forward(self, images: Tensor) -> Any:
        return self.network(images, images.new_ones(images.shape[0], *images.shape[2:]))


def spec(model: model_kinds.ModelKeys, loss: loss_kinds.LossKeys) -> TransformersSpec:
    """Return the specification of a recipe's detector."""
    if not isinstance(model, model_kinds.TransformersModel):
        raise UserError(
            f"'model.name' is '{model.name}', which is not a transformers detector; expected {one_of(MODELS)}"
        )
    if model.name == CUSTOM and not model.config:
        raise UserError(
            "model.name is 'hf/config', but model.config is empty; expected the path of a transformers "
            "detector's config.json, its folder, or the text of the file"
        )
    config = read_config(model.config) if model.name == CUSTOM else CONFIGS[model.name]
    side = 800 if normalizes(config["model_type"]) else 640  # for DETR, the published shorter side
    # An exported file contains positions for one input shape.
    exports = Exports(any_shape=False)
    return TransformersSpec(model=model, config=config, size=(side, side), exports=exports)


@dataclass(frozen=True, kw_only=True)
class TransformersModel(Published):
    """A transformers detector that is available by name.

    ``parameters`` and ``gflops`` are stored so that models can be listed without transformers.
    """

    parameters: int
    gflops: float


_RT_DETR, _RT_DETR_V2, _D_FINE = "Zhao et al. 2023", "Lv et al. 2024", "Peng et al. 2024"
MODELS: dict[str, TransformersModel] = {
    name: TransformersModel(f"{paper}, transformers", parameters=parameters, gflops=gflops)
    for name, paper, parameters, gflops in (
        ("hf/rtdetr_r18vd", _RT_DETR, 20_174_608, 61.5),
        ("hf/rtdetr_r50vd", _RT_DETR, 42_891_372, 137.8),
        ("hf/rtdetr_v2_r18vd", _RT_DETR_V2, 20_174_608, 61.5),
        ("hf/dfine_n", _D_FINE, 3_770_421, 7.4),
        ("hf/dfine_s", _D_FINE, 10_309_605, 27.8),
        ("hf/dfine_m", _D_FINE, 19_563_368, 60.5),
        ("hf/dfine_l", _D_FINE, 31_244_152, 95.7),
    )
}
