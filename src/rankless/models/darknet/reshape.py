"""One network from another: other widths, classes, anchors, activations and heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

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
    Shape,
    Shortcut,
    Yolo,
)
from rankless.models.layers import Activation


def scaled(channels: int, width: float) -> int:
    """``channels * width`` rounded to the nearest multiple of 8, at least 8; at width 1 as it is."""
    return channels if width == 1 else max(8, 8 * int(channels * width / 8 + 0.5))


def with_width(network: Network, width: float) -> Network:
    """Every channel count but the heads' times ``width``; depthwise convolutions stay depthwise."""
    predictors, shapes, image = set(network.predictors()), network.shapes(), Shape(3, Fraction(1))
    layers: list[Layer] = []
    for number, layer in enumerate(network.layers):
        if isinstance(layer, Conv) and number not in predictors:
            source = network.inputs(number)[0]
            depthwise = (
                layer.groups > 1 and layer.groups == (image if source < 0 else shapes[source]).channels
            )
            filters = scaled(layer.filters, width)
            changed = replace(layer, filters=filters)
            layers.append(replace(changed, groups=filters) if depthwise else changed)
        else:
            layers.append(layer)
    return replace(network, layers=tuple(layers))


def with_classes(network: Network, classes: int) -> Network:
    """The heads' last convolutions for another number of classes."""
    layers = list(network.layers)
    for number in network.predictors():
        conv, yolo = layers[number], layers[number + 1]
        if isinstance(conv, Conv) and isinstance(yolo, Yolo):
            layers[number] = replace(conv, filters=len(yolo.mask) * (DETECTOR_CHANNELS + classes))
    return replace(network, layers=tuple(layers), classes=classes)


def with_activation(network: Network, activation: Activation) -> Network:
    """Another activation wherever a convolution with batch norm has one, and in anchor-free heads."""

    def changed(layer: Layer) -> Layer:
        if isinstance(layer, Conv):
            plain = not layer.norm or layer.activation == "linear"
            return layer if plain else replace(layer, activation=activation)
        return replace(layer, activation=activation) if isinstance(layer, AnchorFree) else layer

    return _each(network, changed)


def with_anchors(network: Network, anchors: tuple[tuple[float, float], ...]) -> Network:
    """Other anchors, in pixels of the input."""
    return _each(network, lambda layer: replace(layer, anchors=anchors) if isinstance(layer, Yolo) else layer)


def with_involution(network: Network, size: int) -> Network:
    """An involution before the 3×3 convolution that leads to each head (the prediction, if it has none)."""
    return _insert(
        network, {_entrance(network, n): (Involution(size), "involution") for n in _heads(network)}
    )


def with_dropout(network: Network, share: float) -> Network:
    """Dropout of whole channels before the last convolutions of each head."""
    network = _each(
        network, lambda layer: replace(layer, dropout=share) if isinstance(layer, AnchorFree) else layer
    )
    return _insert(network, {n: (Dropout(share, whole=True), "dropout") for n in network.predictors()})


def with_anchor_free_heads(network: Network, bins: int) -> Network:
    """Anchor-free heads in place of the others; the 3×3 convolution that only led to a head goes with it."""
    dropped: set[int] = set()
    renamed: dict[int, tuple[Layer, str]] = {}
    for number in _heads(network):
        entrance = _entrance(network, number)
        read_elsewhere = any(
            entrance in network.inputs(other) for other in range(len(network.layers)) if other != entrance + 1
        )
        dropped |= {number - 1} if read_elsewhere else set(range(entrance, number))
        renamed[number] = (AnchorFree(bins), f"{network.names[number]}-free")
    kept = [number for number in range(len(network.layers)) if number not in dropped]
    place = {number: new for new, number in enumerate(kept)}
    # What a head put out is what it read: `[route] layers = -4` then means the layer before the head.
    layers = tuple(
        renamed[number][0] if number in renamed else _moved(network.layers[number], place.__getitem__)
        for number in kept
    )
    names = tuple(renamed[number][1] if number in renamed else network.names[number] for number in kept)
    return replace(network, layers=layers, names=names, loss="anchor-free")


def _heads(network: Network) -> list[int]:
    return [number for number, layer in enumerate(network.layers) if isinstance(layer, Yolo)]


def _entrance(network: Network, head: int) -> int:
    """The first layer that belongs to a head alone: its 3×3 convolution, or else its prediction."""
    before = network.layers[head - 2]
    leads = isinstance(before, Conv) and before.size == 3 and before.stride == 1
    return head - 2 if leads else head - 1


def _each(network: Network, change: Callable[[Layer], Layer]) -> Network:
    return replace(network, layers=tuple(change(layer) for layer in network.layers))


def _insert(network: Network, before: dict[int, tuple[Layer, str]]) -> Network:
    """Layers put in before others; who read the layer in front of them still does."""
    layers: list[Layer] = []
    names: list[str] = []
    place = {IMAGE: IMAGE}
    for number, layer in enumerate(network.layers):
        if number in before:
            added, word = before[number]
            layers.append(added)
            names.append(f"{network.names[number]}-{word}")
        place[number] = len(layers)
        layers.append(_moved(layer, place.__getitem__))
        names.append(network.names[number])
    moved = place.get(network.backbone, len(layers))
    return replace(network, layers=tuple(layers), names=tuple(names), backbone=moved)


def _moved(layer: Layer, place: Callable[[int], int]) -> Layer:
    if isinstance(layer, Route | Shortcut):
        return replace(layer, layers=tuple(place(number) for number in layer.layers))
    if isinstance(layer, Multiply):
        return replace(layer, layer=place(layer.layer))
    return layer
