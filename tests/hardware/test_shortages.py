"""Memory that runs out is known by its many names, and nothing else is taken for it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from rankless.errors import ShortageError, UserError
from rankless.hardware.shortages import shortage

CARD = (
    "CUDA out of memory. Tried to allocate 2.25 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.10 "
    "GiB is free. Including non-PyTorch memory, this process has 77.99 GiB memory in use."
)
GPU, SHARED = "the GPU is out of memory", "/dev/shm is full ("


@pytest.mark.parametrize(
    ("act", "asked"),
    [
        (lambda: torch.empty(10**15, dtype=torch.uint8), ": 931,322.6 GiB more were requested ("),
        (lambda: np.empty(10**15, dtype=np.uint8), ": 909 TiB more"),
        (lambda: bytearray(10**15), " ("),
    ],
)
def test_what_this_machine_does_not_have(act: Callable[[], object], asked: str) -> None:
    with pytest.raises(Exception) as caught:
        act()
    found = shortage(caught.value)
    assert isinstance(found, ShortageError)
    assert str(found).startswith(f"out of memory{asked}"), found
    assert str(found).endswith(" are free)")


@pytest.mark.parametrize(
    ("error", "kind", "reported"),
    [
        (torch.OutOfMemoryError(CARD), ShortageError, f"{GPU}: 2.25 GiB more were requested (1.10 GiB of"),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be"), ShortageError, GPU),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), ShortageError, GPU),
        (RuntimeError("unable to allocate shared memory(shm) for file </torch_1>"), UserError, SHARED),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. It"), UserError, SHARED),
        (ValueError("a number"), type(None), "None"),
        (OSError(28, "No space left on device", "journal.jsonl"), type(None), "None"),
        (RuntimeError("CUDA error: device-side assert triggered"), type(None), "None"),
        (RuntimeError("out of resource: shared memory, Required: 100000"), type(None), "None"),
        (RuntimeError("Connection closed by peer [127.0.0.1]:1234"), type(None), "None"),
    ],
)
def test_what_libraries_say(error: Exception, kind: type, reported: str) -> None:
    found = shortage(error)
    assert type(found) is kind and str(found).startswith(reported)
