"""Build Darknet detectors by name or from a cfg file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from rankless.errors import UserError, counted, one_of
from rankless.models.darknet.architectures import scaled_yolov4, yolov3, yolov3_tiny, yolov4, yolov4_tiny
from rankless.models.darknet.cfg import read_cfg
from rankless.models.darknet.cfg_text import write_cfg
from rankless.models.darknet.network import Network
from rankless.models.darknet.reshape import (
    with_activation,
    with_anchor_free_heads,
    with_anchors,
    with_classes,
    with_dropout,
    with_involution,
    with_scale_xy,
    with_width,
)
from rankless.models.detectors.convolutional import Criterion, DetectionModel, criterion_of
from rankless.models.detectors.protocol import DetectorSpec, Published
from rankless.models.heads.yolo.codec import YoloHead
from rankless.recipe import loss_kinds, model_kinds


@dataclass(frozen=True, kw_only=True)
class DarknetModel(Published):
    """A Darknet network that is available by name.

    Attributes:
        network: function that returns the description of the network, for the 80 classes of COCO.
        anchor_free: whether anchor-free heads replace the published heads.
    """

    network: Callable[[], Network]
    anchor_free: bool = False


_YOLOV3 = "Redmon and Farhadi 2018, "
_YOLOV4 = "Bochkovskiy, Wang and Liao 2020, "
_SCALED = "Wang, Bochkovskiy and Liao 2021, "
_ANCHOR_FREE = " with this project's anchor-free heads"
_tiny_3l = partial(yolov4_tiny, strides=(32, 16, 8))
_tiny_p34 = partial(yolov4_tiny, strides=(16, 8))
_csp = partial(scaled_yolov4, (64, 128, 256, 512, 1024), (2, 8, 8, 4), depth=2, pyramid_depth=1, side=512)
_x_mish = partial(
    scaled_yolov4, (80, 160, 320, 640, 1280), (3, 10, 10, 5), depth=3, pyramid_depth=2, side=640
)

MODELS: dict[str, DarknetModel] = {
    "yolov3": DarknetModel(_YOLOV3 + "yolov3.cfg", network=yolov3),
    "yolov3-spp": DarknetModel(_YOLOV3 + "yolov3-spp.cfg", network=partial(yolov3, spp=True)),
    "yolov3-tiny": DarknetModel(_YOLOV3 + "yolov3-tiny.cfg", network=yolov3_tiny),
    "yolov4": DarknetModel(_YOLOV4 + "yolov4.cfg", network=yolov4),
    "yolov4-tiny": DarknetModel(_YOLOV4 + "yolov4-tiny.cfg", network=yolov4_tiny),
    "yolov4-tiny-3l": DarknetModel(_YOLOV4 + "yolov4-tiny-3l.cfg", network=_tiny_3l),
    "yolov4-csp": DarknetModel(_SCALED + "yolov4-csp.cfg", network=_csp),
    "yolov4x-mish": DarknetModel(_SCALED + "yolov4x-mish.cfg", network=_x_mish),
    "yolov3-anchor-free": DarknetModel("yolov3" + _ANCHOR_FREE, network=yolov3, anchor_free=True),
    "yolov4-anchor-free": DarknetModel("yolov4" + _ANCHOR_FREE, network=yolov4, anchor_free=True),
    "yolov4-tiny-anchor-free": DarknetModel(
        "yolov4-tiny-3l" + _ANCHOR_FREE, network=_tiny_3l, anchor_free=True
    ),
    "yolov4-tiny-p34-anchor-free": DarknetModel(
        "yolov4-tiny without stride 32," + _ANCHOR_FREE, network=_tiny_p34, anchor_free=True
    ),
}


@dataclass(frozen=True, kw_only=True)
class DarknetSpec(DetectorSpec):
    """A specification of a Darknet network."""

    criterion: Criterion

    def build(self, classes: int) -> DetectionModel:
        return DetectionModel(network(self.model, classes), self.criterion)

    def activations(self, size: tuple[int, int]) -> list[int]:
        return network(self.model, classes=1).convolution_outputs(size)

    def self_contained(self) -> model_kinds.ModelKeys:
        model = self.model
        if not isinstance(model, model_kinds.YoloModel) or not model.cfg or "\n" in model.cfg:
            return model
        cfg = read_cfg(model.cfg)
        return replace(model, cfg=write_cfg(cfg.network, letterbox=cfg.letterbox, nms=cfg.nms))


def spec(model: model_kinds.ModelKeys, loss: loss_kinds.LossKeys) -> DarknetSpec:
    """Return the specification of a recipe's detector."""
    # Size, anchors and loss do not depend on the number of classes, which may still be unknown.
    made = network(model, classes=1)
    criterion = criterion_of(made, loss)
    return DarknetSpec(model=model, criterion=criterion, size=made.size, anchors=made.anchors)


def network(model: model_kinds.ModelKeys, classes: int) -> Network:
    """Return the description of a recipe's network.

    As long as ``model.anchors`` is ``kmeans``, the anchors are placeholders.
    """
    cfg = model.cfg if isinstance(model, model_kinds.YoloModel) else ""
    named = MODELS.get(model.name)
    if not isinstance(model, model_kinds.YoloModel | model_kinds.AnchorFreeModel) or not (cfg or named):
        raise UserError(
            f"'model.name' is '{model.name}', which is not a Darknet network; expected {one_of(MODELS)}"
        )
    made = named.network() if named and not cfg else read_cfg(cfg).network
    made = with_classes(with_width(made, model.width), classes)
    if isinstance(model, model_kinds.YoloModel):
        made = _with_anchors(made, model)
    if isinstance(model, model_kinds.YoloModel) and model.scale_xy != "auto":
        made = with_scale_xy(made, model.scale_xy)
    if model.involution.kernel:
        involution = model.involution
        made = with_involution(made, involution.kernel, replaces=involution.where == "trunk")
    if isinstance(model, model_kinds.AnchorFreeModel):
        made = with_anchor_free_heads(made, model.dfl)
    if model.activation != "auto":
        made = with_activation(made, model.activation)
    return with_dropout(made, model.dropout) if model.dropout else made


def _with_anchors(made: Network, model: model_kinds.YoloModel) -> Network:
    heads = len(made.predictors())
    per_head = None if model.num_anchors == "auto" else model.num_anchors
    wanted = per_head * heads if per_head else len(made.anchors)
    if model.anchors == "kmeans":
        return with_anchors(made, ((1.0, 1.0),) * wanted, per_head)
    name = "the cfg" if model.cfg else model.name
    if isinstance(model.anchors, str):
        if per_head and any(
            len(head.mask) != per_head for head in made.heads() if isinstance(head, YoloHead)
        ):
            raise UserError(
                f"'model.num_anchors' is {per_head}, but {name} was published with "
                f"{counted(len(made.anchors), 'anchor')} for {counted(heads, 'head')}; "
                f"expected model.anchors=kmeans, or {wanted} pairs in model.anchors"
            )
        return made
    if len(model.anchors) != wanted:
        each, left = divmod(len(model.anchors), heads)
        hint = "" if per_head or left else f"; for {each} per head, add model.num_anchors={each}"
        raise UserError(
            f"'model.anchors' has {counted(len(model.anchors), 'pair')}; expected {wanted} for the "
            f"{counted(heads, 'head')} of {name}{hint}"
        )
    return with_anchors(made, model.anchors, per_head)
