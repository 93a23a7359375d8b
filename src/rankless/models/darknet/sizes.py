"""Compute the size of a network from its description, without allocating tensors."""

from __future__ import annotations

from rankless.hardware import memory
from rankless.models.darknet.network import Conv, Network

_FLOAT = 4  # bytes


def parameters(network: Network) -> int:
    """Count the values in the convolutions and their norms, which are nearly all values of a network."""
    shapes, count = network.shapes(), 0
    for number, layer in enumerate(network.layers):
        if isinstance(layer, Conv):
            source = network.inputs(number)[0]
            channels = shapes[source].channels if source >= 0 else 3
            count += layer.filters * (channels // layer.groups * layer.size**2 + (4 if layer.norm else 1))
    return count


def outputs(network: Network, size: tuple[int, int]) -> list[int]:
    """Count the output values of each convolution for one image of ``size`` (height, width)."""
    counts = []
    for layer, shape in zip(network.layers, network.shapes(), strict=True):
        if isinstance(layer, Conv):
            stride = shape.stride or max(size)  # None means one pixel
            counts.append(shape.channels * int(max(size[0] / stride, 1) * max(size[1] / stride, 1)))
    return counts


def refuse_giant(network: Network) -> None:
    """Raise an error if the weights do not fit into the machine's memory."""
    count = parameters(network)
    memory.ensure(
        count * _FLOAT,
        f"a network of {count:,} parameters",
        "use a smaller model.width, or fewer filters or classes",
    )
