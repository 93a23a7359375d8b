"""Batches begin at multiples of 64 bytes, and what already does is left alone."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from rankless.data.alignment import aligned
from rankless.errors import UserError


def misaligned(count: int) -> Any:
    return np.empty(4 * count + 4, np.uint8)[4:].view(np.float32)


def test_aligned_data_is_not_changed() -> None:
    batch = {"images": torch.ones(3, 5)[:, 1:], "beside": [threading.Lock(), lambda: 0, print, {1}, None]}
    assert aligned(batch) is batch
    again = aligned({"x": torch.from_numpy(misaligned(6)), **batch, "beside": [lambda: 0, {1}]})
    assert again["images"] is batch["images"] and again["x"].data_ptr() % 64 == 0


def test_only_the_used_part_of_a_storage_is_copied_and_the_tensor_of_the_user_is_unchanged() -> None:
    memory = misaligned(10**6)
    memory[:] = np.arange(10**6)
    rows = torch.from_numpy(memory).view(-1, 10)
    before = rows.data_ptr()
    (part, parameter) = aligned((rows[5:8], torch.nn.Parameter(rows[6])))
    assert part.tolist() == rows[5:8].tolist() and parameter.tolist() == rows[6].tolist()
    # The 51st number of the storage lies 200 bytes after its begin, which is 8 after a multiple of 64.
    assert part.data_ptr() % 64 == 8 and part.untyped_storage().nbytes() < 1000
    assert isinstance(parameter, torch.nn.Parameter) and parameter.requires_grad
    part += 1
    assert parameter.tolist() != rows[6].tolist() and rows.data_ptr() == before and rows[5, 0] == 50


def test_what_cannot_be_copied_is_a_sentence() -> None:
    with pytest.raises(UserError, match="of type list that contains memory of NumPy and cannot be copied"):
        aligned([torch.from_numpy(misaligned(4)), threading.Lock()])
