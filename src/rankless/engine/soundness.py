"""Check that the weights are finite and the same on every rank."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rankless.errors import UserError
from rankless.world.bits import bit_sum
from rankless.world.process_group import World

_NOT_SAVED = (
    ", so they were not saved; check the memory and device of that rank (if it happens again, the task "
    "depends on something that differs between ranks: run `rankless verify`)"
)


def checksums(tensors: Mapping[str, Tensor]) -> list[int]:
    """Return one number per tensor that depends on all of its bits."""
    return [int(value) for value in _read([bit_sum(tensor) for tensor in tensors.values()])]


def non_finite(tensors: Mapping[str, Tensor | None]) -> list[str]:
    """Return the names of the tensors that contain an infinity or a NaN."""
    kinds: dict[tuple[torch.dtype, torch.device], dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        if tensor is not None and tensor.numel() and tensor.dtype.to_real().is_floating_point:
            value = tensor.detach()
            value = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
            kinds[value.dtype, value.device][name] = value
    # A maximum is finite only if all values are. GPUs compute those of many tensors at once.
    largest: dict[str, Tensor] = {}
    for values in kinds.values():
        largest.update(zip(values, torch._foreach_norm(list(values.values()), math.inf), strict=True))
    is_finite = dict(zip(largest, map(math.isfinite, _read(list(largest.values()))), strict=True))
    return [name for name in tensors if not is_finite.get(name, True)]


def synchronize(model: nn.Module, world: World) -> list[str]:
    """Copy the initial weights of rank 0 to every rank, and return a warning if they were different."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    layout = [[name, str(t.dtype), *t.shape] for name, t in tensors.items()]
    gathered = world.gather([layout, checksums(tensors)])
    difference = world.broadcast(_difference(gathered) if gathered else None)
    if difference is None:
        return []
    (rank, *_), name, same_layout = difference
    if not same_layout:
        raise UserError(
            f"model() of the task created a different model on rank {rank} than on rank 0 (first "
            f"difference: '{name}'); expected the same layers on every rank; make model() depend only on the "
            "recipe"
        )
    for tensor in tensors.values():
        values = tensor.detach().contiguous().clone()
        world.transport.broadcast(values.view(-1).view(torch.uint8), 0)
        tensor.detach().copy_(values)
    return [
        f"model() of the task created different initial weights on rank {rank} than on rank 0 (first "
        f"difference: '{name}'), so two runs may start from different weights; use torch's default "
        "generator, seeded by Rankless, or rankless.generator"
    ]


def weight_difference(
    when: str, tensors: Mapping[str, Tensor], world: World, advice: str = _NOT_SAVED
) -> str | None:
    """Return an error message on every rank if the weights differ between ranks, otherwise None.

    ``when`` and ``advice`` are the begin and the end of the message.
    """
    gathered = world.gather([[[name] for name in tensors], checksums(tensors)])
    difference = world.broadcast(_difference(gathered) if gathered else None)
    if difference is None:
        return None
    ranks, name, _ = difference
    return (
        f"{when}, the weights on rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} differ "
        f"from those on rank 0 (first difference: '{name}'){advice}"
    )


def _difference(gathered: list[list[list]]) -> tuple[list[int], str, bool] | None:  # type: ignore[type-arg]
    """Find the ranks that differ from rank 0, the first differing tensor, and whether layouts agree."""
    ranks = [rank for rank, found in enumerate(gathered) if found != gathered[0]]
    if not ranks:
        return None
    (layout, sums), (other, others) = gathered[0], gathered[ranks[0]]
    if other != layout:
        differing = (entry[0] for entry in [*layout, *other] if entry not in layout or entry not in other)
    else:
        differing = (entry[0] for entry, a, b in zip(layout, sums, others, strict=True) if a != b)
    return ranks, next(differing), other == layout


def _read(scalars: list[Tensor]) -> list[float | int]:
    """Read scalars from their devices, waiting only once for each device."""
    read: list[float | int] = [0] * len(scalars)
    for device in {scalar.device for scalar in scalars}:
        numbers = [number for number, scalar in enumerate(scalars) if scalar.device == device]
        values = torch.stack([scalars[number] for number in numbers]).tolist()
        for number, value in zip(numbers, values, strict=True):
            read[number] = value
    return read
