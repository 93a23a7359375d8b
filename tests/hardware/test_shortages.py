"""Memory that runs out is known by its many names, and nothing else is taken for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rankless.errors import ShortageError, UserError
from rankless.hardware.shortages import shortage

CARD = (
    "CUDA out of memory. Tried to allocate 2.25 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.10 "
    "GiB is free. Including non-PyTorch memory, this process has 77.99 GiB memory in use."
)


def caught(act: object) -> Exception:
    with pytest.raises(Exception) as found:
        act()  # type: ignore[operator]
    return found.value


@pytest.mark.parametrize(
    ("act", "asked"),
    [
        (lambda: torch.empty(10**15, dtype=torch.uint8), ": 931,322.6 GiB more were requested ("),
        (lambda: np.empty(10**15, dtype=np.uint8), ": 909 TiB more"),
        (lambda: bytearray(10**15), " ("),
    ],
)
def test_what_this_machine_does_not_have(act: object, asked: str) -> None:
    found = shortage(caught(act))
    assert isinstance(found, ShortageError)
    assert str(found).startswith(f"out of memory{asked}"), found
    assert str(found).endswith(" are free)")


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (
            torch.OutOfMemoryError(CARD),
            "the GPU is out of memory: 2.25 GiB more were requested (1.10 GiB of 79.10 GiB are free)",
        ),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be"), "the GPU is out of memory"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "the GPU is out of memory"),
    ],
)
def test_a_gpu_without_memory(error: Exception, reported: str) -> None:
    found = shortage(error)
    assert isinstance(found, ShortageError)
    assert str(found) == reported


@pytest.mark.parametrize(
    "text",
    [
        "unable to allocate shared memory(shm) for file </torch_1_2_3>: No space left on device (28)",
        "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that workers are "
        "out of shared memory. Please try to raise your shared memory limit.",
    ],
)
def test_shared_memory_is_another_thing(text: str) -> None:
    found = shortage(RuntimeError(text))
    assert isinstance(found, UserError)
    assert not isinstance(found, ShortageError)
    assert str(found).startswith("/dev/shm is full (")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a number"),
        OSError(28, "No space left on device", "journal.jsonl"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("out of resource: shared memory, Required: 100000, Hardware limit: 99000"),
        RuntimeError("Connection closed by peer [127.0.0.1]:1234"),
    ],
)
def test_other_errors_are_not_taken_for_it(error: Exception) -> None:
    assert shortage(error) is None
