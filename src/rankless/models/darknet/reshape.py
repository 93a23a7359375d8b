"""Create modified copies of a network, with a different width or different classes, anchors or heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from rankless.models.darknet.network import (
    DETECTOR_CHANNELS,
    IMAGE,
    AnchorFree,
    Conv,
    Dropout,
    Involution,
    Layer,
    Multiply,
    Network,
    Route,
    Shortcut,
    Yolo,
)
from rankless.models.layers import Activation

Anchors = tuple[tuple[float, float], ...]


def scaled(channels: int, width: float) -> int:
    """Return ``channels * width`` rounded to a multiple of 8, at least 8. Width 1 changes nothing."""
    return channels if width == 1 else max(8, 8 * int(channels * width / 8 + 0.5))


def with_width(network: Network, width: float) -> Network:
    """Scale the number of channels in all layers except the heads. Depthwise layers stay depthwise."""
    predictors, channels = network.predictors(), network.channels_in()
    layers = list(network.layers)
    for number, layer in enumerate(layers):
        if isinstance(layer, Conv) and number not in predictors:
            filters = scaled(layer.filters, width)
            depthwise = layer.groups > 1 and layer.groups == channels[number]
            layers[number] = replace(layer, filters=filters, groups=filters if depthwise else layer.groups)
    return replace(network, layers=tuple(layers))


def with_classes(network: Network, classes: int) -> Network:
    layers = list(network.layers)
    for number in network.predictors():
        conv, yolo = layers[number], layers[number + 1]
        if isinstance(conv, Conv) and isinstance(yolo, Yolo):
            layers[number] = replace(conv, filters=len(yolo.mask) * (DETECTOR_CHANNELS + classes))
    return replace(network, layers=tuple(layers), classes=classes)


def with_activation(network: Network, activation: Activation) -> Network:
    """Replace the activations of convolutions with batch norm and of anchor-free heads."""

    def changed(layer: Layer) -> Layer:
        if isinstance(layer, Conv):
            plain = not layer.norm or layer.activation == "linear"
            return layer if plain else replace(layer, activation=activation)
        return replace(layer, activation=activation) if isinstance(layer, AnchorFree) else layer

    return _each(network, changed)


def with_anchors(network: Network, anchors: Anchors, per_head: int | None = None) -> Network:
    """Replace the anchors, which are (width, height) in pixels of the input.

    If ``per_head`` is given, the finest head gets the first ``per_head`` anchors, and so on. Otherwise, the
    published masks are kept.
    """
    shapes = network.shapes()
    by_stride = sorted(_heads(network), key=lambda number: shapes[number].stride or 0)
    layers = list(network.layers)
    for rank, number in enumerate(by_stride):
        head = layers[number]
        if isinstance(head, Yolo):
            mask = tuple(range(rank * per_head, (rank + 1) * per_head)) if per_head else head.mask
            layers[number] = replace(head, anchors=anchors, mask=mask)
    return with_classes(replace(network, layers=tuple(layers)), network.classes)


def with_scale_xy(network: Network, scale: float) -> Network:
    return _each(network, lambda layer: replace(layer, scale_xy=scale) if isinstance(layer, Yolo) else layer)


def with_involution(network: Network, size: int, *, replaces: bool = False) -> Network:
    """Insert an involution with kernels of ``size`` × ``size`` pixels before each head.

    If ``replaces`` is true, other layers that read the head's input, such as the next downsampling layer,
    read the output of the involution instead.
    """
    involutions: dict[int, tuple[Layer, str]] = {
        _entrance(network, n): (Involution(size), "involution") for n in _heads(network)
    }
    return _insert(network, involutions, replaces=replaces)


def with_dropout(network: Network, probability: float) -> Network:
    """Insert dropout of entire channels before the last convolution of each head."""
    network = _each(
        network, lambda layer: replace(layer, dropout=probability) if isinstance(layer, AnchorFree) else layer
    )
    return _insert(network, {n: (Dropout(probability, whole=True), "dropout") for n in network.predictors()})


def with_anchor_free_heads(network: Network, bins: int) -> Network:
    """Replace the heads, and the 3×3 convolutions that only the heads read, with anchor-free heads."""
    dropped: set[int] = set()
    renamed: dict[int, tuple[Layer, str]] = {}
    for number in _heads(network):
        entrance = _entrance(network, number)
        read_elsewhere = any(
            entrance in network.inputs(other) for other in range(len(network.layers)) if other != entrance + 1
        )
        dropped |= {number - 1} if read_elsewhere else set(range(entrance, number))
        renamed[number] = (AnchorFree(bins), f"{network.names[number]}-free")
    left = [number for number in range(len(network.layers)) if number not in dropped]
    index = {number: new for new, number in enumerate(left)}
    # The output of a head is its input, so layers that read a head read the layer before it.
    layers = tuple(
        renamed[number][0] if number in renamed else _moved(network.layers[number], index) for number in left
    )
    names = tuple(renamed[number][1] if number in renamed else network.names[number] for number in left)
    return replace(network, layers=layers, names=names, loss="anchor-free")


def _heads(network: Network) -> list[int]:
    return [number for number, layer in enumerate(network.layers) if isinstance(layer, Yolo)]


def _entrance(network: Network, head: int) -> int:
    """Return the number of a head's first layer: its 3×3 convolution, or its prediction if it has none."""
    before = network.layers[head - 2]
    leads = isinstance(before, Conv) and before.size == 3 and before.stride == 1
    return head - 2 if leads else head - 1


def _each(network: Network, change: Callable[[Layer], Layer]) -> Network:
    return replace(network, layers=tuple(change(layer) for layer in network.layers))


def _insert(network: Network, before: dict[int, tuple[Layer, str]], *, replaces: bool = False) -> Network:
    """Insert named layers before existing layers, which then read the inserted layers.

    If ``replaces`` is true, so do all later layers that have the same input.
    """
    layers: list[Layer] = []
    names: list[str] = []
    index = {IMAGE: IMAGE}
    for number, layer in enumerate(network.layers):
        if number in before:
            added, word = before[number]
            layers.append(added)
            names.append(f"{network.names[number]}-{word}")
            if replaces:
                index[number - 1] = len(layers) - 1
        index[number] = len(layers)
        layers.append(_moved(layer, index))
        names.append(network.names[number])
    backbone = index.get(network.backbone, len(layers))
    return replace(network, layers=tuple(layers), names=tuple(names), backbone=backbone)


def _moved(layer: Layer, index: Mapping[int, int]) -> Layer:
    if isinstance(layer, Route | Shortcut):
        return replace(layer, layers=tuple(index[number] for number in layer.layers))
    if isinstance(layer, Multiply):
        return replace(layer, layer=index[layer.layer])
    return layer
