"""Read and write Darknet's ``.weights`` files.

A file starts with three int32 values (major, minor, revision) and the number of images seen (uint64 from
version 0.2 on, otherwise uint32). Float32 values follow: β, γ, mean, variance and kernels for each
convolution with batch norm, or biases and kernels for every other convolution. The file does not name its
network.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankless.errors import UserError, counted, listed
from rankless.files import reading
from rankless.models.darknet.network import Conv, Network
from rankless.models.darknet.reshape import with_classes

_VERSION = (0, 2, 5)
MOST_CLASSES = 10_000
_LEAST = 1e-4  # minimum fraction of a network's values; published backbones have at least a tenth


@dataclass(frozen=True)
class DarknetWeights:
    """The contents of a ``.weights`` file, arranged for a network.

    Attributes:
        state: tensors by name; layers after the end of the file are missing.
        seen: number of images the weights were trained on.
        filled: number of convolutions in the file.
        convolutions: number of convolutions in the network.
    """

    state: dict[str, Tensor]
    seen: int
    filled: int
    convolutions: int
    notes: tuple[str, ...] = ()


def read_weights(path: Path, network: Network) -> DarknetWeights:
    """Read a network's weights. Files such as ``darknet53.conv.74`` contain only its first layers."""
    numbers, seen = _numbers(path)
    layers = list(_layers(network))
    state: dict[str, Tensor] = {}
    start = filled = 0
    for name, parts in layers:
        if start == len(numbers):
            break
        needed = sum(map(math.prod, parts.values()))
        if start + needed > len(numbers):
            raise UserError(
                f"{path}: ends in the middle of layer {name} ({len(numbers) - start:,} of {needed:,} "
                "values), so it is truncated or belongs to another network; use the cfg or model it was "
                "trained with"
            )
        for tensor, shape in parts.items():
            end = start + math.prod(shape)
            state[tensor] = torch.from_numpy(numbers[start:end].reshape(shape).copy())
            start = end
        filled += 1
    if start < len(numbers):
        raise UserError(
            f"{path}: has {len(numbers):,} values, but the network has only {start:,}, so it belongs to "
            "another network; use the cfg or model it was trained with"
        )
    total = _size(network)
    if start < _LEAST * total:
        raise UserError(
            f"{path}: has only {start:,} of the network's {total:,} values, too few even for a backbone; use "
            "the cfg or model it was trained with"
        )
    notes = _fix_variances(state)
    bad = [name for name, tensor in state.items() if not tensor.isfinite().all()]
    if bad:
        raise UserError(
            f"{path}: contains NaN or infinite values in {listed(bad)}; use another copy of the file"
        )
    return DarknetWeights(state, seen, filled, len(layers), notes)


def classes_of(path: Path, network: Network) -> int | None:
    """Return the number of classes that matches the file size, or None if no number does."""
    count = len(_numbers(path)[0])
    one, two = (_size(with_classes(network, classes)) for classes in (1, 2))
    classes, left = divmod(count - one, two - one)
    return classes + 1 if not left and 0 <= classes < MOST_CLASSES else None


def write_weights(path: Path, network: Network, state: Mapping[str, Tensor], seen: int = 0) -> None:
    """Write the weights of a network that can be expressed as a cfg file.

    ``state`` is the network's :meth:`~torch.nn.Module.state_dict`, and ``seen`` is the number of images the
    network was trained on. The file is overwritten.
    """
    with path.open("wb") as file:
        file.write(struct.pack("<3iQ", *_VERSION, seen))
        for _, parts in _layers(network):
            for name in parts:
                file.write(state[name].detach().cpu().contiguous().numpy().astype("<f4").tobytes())


def _numbers(path: Path) -> tuple[NDArray[np.float32], int]:
    try:
        content = reading.read_bytes(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    wide = _is_wide(content[:20], path)
    (seen,) = struct.unpack_from("<Q" if wide else "<I", content, 12)
    body = content[20 if wide else 16 :]
    if len(body) % 4:
        raise UserError(
            f"{path}: is truncated or damaged: its {len(body):,} bytes of weights are not a multiple of 4; "
            "use another copy of the file"
        )
    return np.frombuffer(body, "<f4").astype(np.float32), int(seen)


def check_header(path: Path) -> None:
    """Raise an error if a file does not start with the header of a Darknet weights file."""
    with reading.opened(path) as file:
        _is_wide(file.read(20), path)


def _is_wide(head: bytes, path: Path) -> bool:
    """Check the header, and return whether its image counter has 64 bits."""
    if len(head) < 20:
        raise UserError(f"{path}: is too short for a Darknet weights file ({counted(len(head), 'byte')})")
    major, minor, _ = struct.unpack_from("<3i", head)
    # Darknet writes 0.1 or 0.2; versions from 1000 (transposed fully connected layers) are not supported.
    if not (0 <= major < 1000 and 0 <= minor < 1000):
        raise UserError(f"{path}: is not a Darknet weights file (its header has version {major}.{minor})")
    return bool(major * 10 + minor >= 2)


def _layers(network: Network) -> Iterator[tuple[str, dict[str, tuple[int, ...]]]]:
    """Yield the name and the tensor shapes of each convolution, in the order of the file."""
    norm = ("norm.bias", "norm.weight", "norm.running_mean", "norm.running_var")
    for name, layer, channels in zip(network.names, network.layers, network.channels_in(), strict=True):
        if isinstance(layer, Conv):
            vectors = norm if layer.norm else ("conv.bias",)
            kernels = (layer.filters, channels // layer.groups, layer.size, layer.size)
            yield (
                name,
                {f"layers.{name}.{vector}": (layer.filters,) for vector in vectors}
                | {f"layers.{name}.conv.weight": kernels},
            )


def _size(network: Network) -> int:
    return sum(math.prod(shape) for _, parts in _layers(network) for shape in parts.values())


def _fix_variances(state: dict[str, Tensor]) -> tuple[str, ...]:
    """Replace negative variances, which some published files contain, with zero."""
    below = 0
    for name, tensor in state.items():
        if name.endswith("running_var"):
            below += int((tensor < 0).sum())
            tensor.clamp_(min=0)
    were = counted(below, "negative running variance was", "negative running variances were")
    return (f"{were} set to zero",) if below else ()
