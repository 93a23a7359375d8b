"""Write a :class:`~rankless.models.darknet.network.Network` as a Darknet cfg file."""

from __future__ import annotations

from typing import Literal

from rankless.errors import UserError
from rankless.models.darknet import network as net

_LOSS_KEYS = {
    "box_loss": "iou_loss",
    "box": "iou_normalizer",
    "objectness": "obj_normalizer",
    "classes": "cls_normalizer",
    "ignore": "ignore_thresh",
    "smoothing": "label_smooth_eps",
    "largest_gradient": "max_delta",
}
NMS_BETA = 0.6


def write_cfg(
    network: net.Network,
    *,
    letterbox: bool = False,
    nms: Literal["iou", "diou"] = "iou",
    foreign: bool = False,
) -> str:
    """Return the text of a cfg file for a network without anchor-free heads or PReLU.

    If ``foreign`` is true, Darknet and OpenCV must be able to read the file, so ``[involution]`` is an error.
    """
    height, width = network.size
    lines = [
        "[net]", "batch=1", "subdivisions=1", f"width={width}", f"height={height}", "channels=3",
        *(["letter_box=1"] if letterbox else []),
    ]  # fmt: skip
    problems = []
    for number, layer in enumerate(network.layers):
        section, options = _section(layer, number, network.classes, nms)
        activation = str(getattr(layer, "activation", ""))
        if not section or activation == "prelu" or (foreign and section == "involution"):
            what = "anchor-free heads" if not section else activation or section
            problems.append(f"layer {network.names[number]}: Darknet has no {what}")
        lines += ["", f"[{section}]", *(f"{key}={value}" for key, value in options.items())]
    if problems:
        raise UserError([f"this model cannot be written as a Darknet cfg: {problem}" for problem in problems])
    return "\n".join(lines) + "\n"


def _section(
    layer: net.Layer, number: int, classes: int, nms: Literal["iou", "diou"]
) -> tuple[str, dict[str, object]]:
    """Return the section name and the options of a layer. The name is empty if Darknet has no such layer."""
    if isinstance(layer, net.Conv):
        standard = layer.padding is None
        options: dict[str, object] = {"batch_normalize": 1} if layer.norm else {}
        options |= {"filters": layer.filters, "size": layer.size, "stride": layer.stride}
        options |= {"pad": 1} if standard else {"padding": layer.padding}
        options |= {"groups": layer.groups} if layer.groups > 1 else {}
        options |= {"dilation": layer.dilation} if layer.dilation > 1 else {}
        return "convolutional", {**options, "activation": layer.activation}
    if isinstance(layer, net.MaxPool):
        standard = layer.padding == layer.size - 1
        more = {} if standard else {"padding": layer.padding}
        return "maxpool", {"size": layer.size, "stride": layer.stride, **more}
    if isinstance(layer, net.AveragePool):
        return "avgpool", {}
    if isinstance(layer, net.Upsample):
        return "upsample", {"stride": layer.stride, **({} if layer.scale == 1 else {"scale": layer.scale})}
    if isinstance(layer, net.Route):
        more = {"groups": layer.groups, "group_id": layer.group} if layer.groups > 1 else {}
        return "route", {"layers": _back(layer.layers, number), **more}
    if isinstance(layer, net.Shortcut):
        return "shortcut", {"from": _back(layer.layers, number), "activation": layer.activation}
    if isinstance(layer, net.Multiply):
        name = "scale_channels" if layer.per_channel else "sam"
        return name, {"from": _back((layer.layer,), number), "activation": layer.activation}
    if isinstance(layer, net.Dropout):
        return "dropout", {"probability": layer.probability}
    if isinstance(layer, net.Involution):
        return "involution", {"size": layer.size}
    if isinstance(layer, net.Yolo):
        return "yolo", _yolo(layer, classes, nms)
    return "", {}


def _yolo(layer: net.Yolo, classes: int, nms: Literal["iou", "diou"]) -> dict[str, object]:
    options: dict[str, object] = {
        "mask": ",".join(map(str, layer.mask)),
        "anchors": ", ".join(f"{side:g}" for anchor in layer.anchors for side in anchor),
        "classes": classes,
        "num": len(layer.anchors),
        "truth_thresh": 1,
        "scale_x_y": f"{layer.scale_xy:g}",
        "iou_thresh": f"{layer.anchor_iou:g}",
    }
    for attribute, key in _LOSS_KEYS.items():
        value = getattr(layer.loss, attribute)
        if value is not None:
            options[key] = value if isinstance(value, str) else f"{value:g}"
    if layer.loss.smooth_objectness:
        options["objectness_smooth"] = 1
    if layer.new_coords:
        options["new_coords"] = 1
    if nms == "diou":
        options |= {"nms_kind": "greedynms", "beta_nms": NMS_BETA}
    return options


def _back(layers: tuple[int, ...], number: int) -> str:
    """Format layer numbers relative to layer ``number``."""
    return ",".join(str(layer - number) for layer in layers)
