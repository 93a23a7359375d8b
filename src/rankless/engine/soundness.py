"""Check that the weights are finite and the same on every rank."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rankless.errors import UserError
from rankless.world.bits import bit_sum
from rankless.world.process_group import World


def checksums(tensors: Mapping[str, Tensor]) -> list[int]:
    """Return one number per tensor that depends on all of its bits."""
    return [int(value) for value in _read([bit_sum(tensor) for tensor in tensors.values()])]


def non_finite(tensors: Mapping[str, Tensor | None]) -> list[str]:
    """Return the names of the tensors that contain an infinity or a NaN."""
    floating = {n: t.detach() for n, t in tensors.items() if t is not None and t.is_floating_point()}
    flags = _read([torch.isfinite(value).all() for value in floating.values()])
    return [name for name, is_finite in zip(floating, flags, strict=True) if not is_finite]


def synchronize(model: nn.Module, world: World) -> list[str]:
    """Copy the initial weights of rank 0 to every rank, and return a warning if they were different."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    layout = [[name, str(t.dtype), *t.shape] for name, t in tensors.items()]
    gathered = world.gather([layout, checksums(tensors)])
    difference = world.broadcast(_first_difference(gathered) if gathered else None)
    if difference is None:
        return []
    rank, name, same_layout = difference
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


def weight_difference(step: int, tensors: Mapping[str, Tensor], world: World) -> str | None:
    """Return an error message on every rank if the weights differ between ranks, otherwise None."""
    names = list(tensors)
    gathered = world.gather([names, checksums(tensors)])
    difference = world.broadcast(_differing(gathered) if gathered else None)
    if difference is None:
        return None
    ranks, name = difference
    return (
        f"after step {step}, the weights on rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} differ "
        f"from those on rank 0 (first difference: '{name}'), so they were not saved; check the memory and "
        "device of that rank (if it happens again, the task depends on something that differs between ranks: "
        "run `rankless verify`)"
    )


def _differing(gathered: list[list[list]]) -> tuple[list[int], str] | None:  # type: ignore[type-arg]
    names, first = gathered[0]
    ranks = [rank for rank, (_, sums) in enumerate(gathered) if sums != first]
    if not ranks:
        return None
    other = gathered[ranks[0]][1]
    return ranks, next(name for name, a, b in zip(names, first, other, strict=True) if a != b)


def _first_difference(gathered: list[list[list]]) -> tuple[int, str, bool] | None:  # type: ignore[type-arg]
    """Find the first rank that differs from rank 0, its first differing tensor, and whether layouts agree."""
    layout, sums = gathered[0]
    for rank, (other, others) in enumerate(gathered):
        if other != layout:
            both = [*layout, *other]
            name = next(entry[0] for entry in both if entry not in layout or entry not in other)
            return rank, name, False
        if others != sums:
            name = next(entry[0] for entry, a, b in zip(layout, sums, others, strict=True) if a != b)
            return rank, name, True
    return None


def _read(scalars: list[Tensor]) -> list[float | int]:
    """Read scalars from their devices, waiting only once for each device."""
    read: list[float | int] = [0] * len(scalars)
    for device in {scalar.device for scalar in scalars}:
        numbers = [number for number, scalar in enumerate(scalars) if scalar.device == device]
        values = torch.stack([scalars[number] for number in numbers]).tolist()
        for number, value in zip(numbers, values, strict=True):
            read[number] = value
    return read
