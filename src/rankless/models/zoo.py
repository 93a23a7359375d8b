"""Every detector by its name. A new one is a function on a page of its own and one line here."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rankless.errors import UserError
from rankless.models.classifiers.catalog import CLASSIFIERS, TIMM
from rankless.models.darknet.architectures import scaled_yolov4, yolov3, yolov3_tiny, yolov4, yolov4_tiny
from rankless.models.darknet.cfg import read_cfg
from rankless.models.darknet.network import Network
from rankless.models.darknet.reshape import (
    with_activation,
    with_anchor_free_heads,
    with_anchors,
    with_classes,
    with_dropout,
    with_involution,
    with_width,
)
from rankless.models.detectors.convolutional import DetectionModel
from rankless.models.layers import BATCH_NORM_MOMENTUM
from rankless.recipe import schema


@dataclass(frozen=True)
class Variant:
    """A named detector.

    Attributes:
        network: writes it down, for COCO's 80 classes.
        source: where it comes from.
        free: it has anchor-free heads in place of the published ones.
    """

    network: Callable[[], Network]
    source: str
    free: bool = False


_YOLOV3 = "Redmon and Farhadi 2018, "
_YOLOV4 = "Bochkovskiy, Wang and Liao 2020, "
_SCALED = "Wang, Bochkovskiy and Liao 2021, "
_FREE = " with this project's anchor-free heads"
_tiny_3l = partial(yolov4_tiny, levels=3)
_csp = partial(scaled_yolov4, (64, 128, 256, 512, 1024), (2, 8, 8, 4), depth=2, pyramid_depth=1, side=512)
_x_mish = partial(
    scaled_yolov4, (80, 160, 320, 640, 1280), (3, 10, 10, 5), depth=3, pyramid_depth=2, side=640
)

MODELS: dict[str, Variant] = {
    "yolov3": Variant(yolov3, _YOLOV3 + "yolov3.cfg"),
    "yolov3-spp": Variant(partial(yolov3, spp=True), _YOLOV3 + "yolov3-spp.cfg"),
    "yolov3-tiny": Variant(yolov3_tiny, _YOLOV3 + "yolov3-tiny.cfg"),
    "yolov4": Variant(yolov4, _YOLOV4 + "yolov4.cfg"),
    "yolov4-tiny": Variant(yolov4_tiny, _YOLOV4 + "yolov4-tiny.cfg"),
    "yolov4-tiny-3l": Variant(_tiny_3l, _YOLOV4 + "yolov4-tiny-3l.cfg"),
    "yolov4-csp": Variant(_csp, _SCALED + "yolov4-csp.cfg"),
    "yolov4x-mish": Variant(_x_mish, _SCALED + "yolov4x-mish.cfg"),
    "yolov3-anchor-free": Variant(yolov3, "yolov3" + _FREE, free=True),
    "yolov4-anchor-free": Variant(yolov4, "yolov4" + _FREE, free=True),
    "yolov4-tiny-anchor-free": Variant(_tiny_3l, "yolov4-tiny-3l" + _FREE, free=True),
}


def variant(name: str) -> Variant:
    """The detector called ``name``.

    Raises:
        UserError: there is none; names the nearest and all.
    """
    if name in MODELS:
        return MODELS[name]
    if name in CLASSIFIERS or name.startswith(TIMM):
        raise UserError(
            f"model.name is '{name}', which is a classifier: set task to 'classify', or take a detector."
        )
    near = difflib.get_close_matches(name.lower(), MODELS, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    raise UserError(f"model.name is '{name}': no such model; {hint}expected one of {', '.join(MODELS)}.")


def network(model: schema.Model, classes: int) -> Network:
    """The network that the recipe's part asks for.

    Args:
        model: its ``anchors`` are resolved: ``default`` or pairs.
        classes: how many classes it tells apart.

    Raises:
        UserError: no such model, a faulty cfg, no class, or options that do not go together.
    """
    if classes < 1:
        raise UserError(f"The data has {classes} classes: a detector needs at least one. Name them.")
    chosen = None if model.cfg else variant(model.name)
    made = chosen.network() if chosen else read_cfg(model.cfg).network
    free = chosen is not None and chosen.free
    _check(model, made, free)
    made = with_classes(with_width(made, model.width), classes)
    if not isinstance(model.anchors, str):
        made = with_anchors(made, model.anchors)
    if model.involution:
        made = with_involution(made, model.involution)
    if free:
        made = with_anchor_free_heads(made, model.dfl)
    if model.activation != "auto":
        made = with_activation(made, model.activation)
    return with_dropout(made, model.dropout) if model.dropout else made


def _check(model: schema.Model, made: Network, free: bool) -> None:
    faults = []
    name = "the cfg" if model.cfg else model.name
    if free and model.anchors != "default":
        faults.append(f"model.anchors is given, but {name} has no anchors: leave it out")
    if model.dfl and not free:
        faults.append(
            f"model.dfl is {model.dfl}, but {name} has anchors, whose boxes have no bins: leave it at 0, or "
            "choose an anchor-free model, such as yolov4-tiny-anchor-free"
        )
    if not isinstance(model.anchors, str):
        wanted = len(made.anchors)
        if len(model.anchors) != wanted:
            faults.append(f"model.anchors has {len(model.anchors)} pairs, but {name} has {wanted} anchors")
    if model.densenet != schema.Densenet():
        faults.append(f"model.densenet is given, but {name} is no DenseNet: leave it out")
    if faults:
        raise UserError(faults)


def build(model: schema.Model, classes: int, momentum: float = BATCH_NORM_MOMENTUM) -> DetectionModel:
    """A freshly initialized detector on the CPU, drawn from torch's global generator.

    Args:
        model: the recipe's part.
        classes: how many classes it tells apart.
        momentum: of the batch norms' running statistics, in PyTorch's sense; Darknet's is 0.01.

    Raises:
        UserError: see :func:`network`.
    """
    return DetectionModel(network(model, classes), momentum=momentum)
