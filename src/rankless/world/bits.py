"""Checksums of tensors: sums of their bits as integers, independent of the order of addition."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bit_sum(value: Tensor) -> Tensor:
    """Return a checksum of a tensor as an int64 scalar, without waiting for the device.

    A single flipped bit always changes the checksum, because it adds or subtracts a power of two.
    """
    value = torch.view_as_real(value) if value.is_complex() else value
    return value.detach().view(_WHOLE[value.element_size()]).sum(dtype=torch.int64)


def short_hash(sums: Tensor, bits: int) -> Tensor:
    """Return a hash of N checksums, int64 (N,), and of their order, without waiting for the device.

    It is an integer scalar in [0, 2**bits).
    """
    odd = 0x9E3779B97F4A7C15  # its powers are factors that keep every change, because they are odd
    factors = [pow(odd, number, 2**64) for number in range(1, len(sums) + 1)]
    signed = torch.tensor([factor - (factor >> 63 << 64) for factor in factors]).to(sums.device)
    mixed: Tensor = (sums * signed).sum() >> (64 - bits) & (2**bits - 1)
    return mixed


def digest(numbers: Sequence[int]) -> str:
    """Return a digest of the numbers and their order."""
    return hashlib.blake2b(repr(list(numbers)).encode(), digest_size=16).hexdigest()
