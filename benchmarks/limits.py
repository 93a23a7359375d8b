"""The bounds of a training step on this device: rates of matrix products and memory, and a model's needs."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from rankless.recipe import load as recipe_file
from rankless.tasks import open_task
from table import Report


def matmul_rate(report: Report, side: int) -> float:
    """Return the FLOP/s of a bf16 product of two ``side`` × ``side`` matrices, the peak of a step."""
    torch.set_num_threads(1)  # as the contenders have
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    one, other = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    best = float("inf")
    for _ in range(10):
        began = time.perf_counter()
        for _ in range(4):
            one @ other
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - began) / 4)
    rate = 2 * side**3 / best
    report.note(
        "matmul_tflops",
        round(rate / 1e12, 3),
        f"matrix product of {side}×{side} in bf16: {rate / 1e12:.3g} TFLOP/s",
    )
    return rate


def copy_rate(report: Report, size: int) -> float:
    """Return the bytes a second that a copy of ``size`` bytes reads and writes in this device's memory."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(10):
        began = time.perf_counter()
        target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    rate = 2 * size / best
    report.note("copy_gb_per_s", round(rate / 1e9, 1), f"a copy reads and writes {rate / 1e9:.3g} GB/s")
    return rate


class _Bytes(TorchDispatchMode):
    """Counts the bytes of the inputs and outputs of operations; views move nothing."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = [t for t in tree_leaves((args, kwargs, result)) if isinstance(t, torch.Tensor)]
            self.total += sum(tensor.nbytes for tensor in tensors)
        return result


def work(text: str) -> tuple[float, float]:
    """Return the FLOP of matrix products and the bytes of all operations for one image, forward and backward.

    Args:
        text: the recipe as JSON; the images are its data's first two.
    """
    task = open_task(recipe_file.from_json(text))
    model, data = task.model().train(), task.training_data()
    samples = 2  # a single one has no variance where the map is 1×1
    batch = task.collate([data.item(number, 0) for number in range(samples)])
    moved = _Bytes()  # type: ignore[no-untyped-call]
    with FlopCounterMode(display=False) as counter, moved:
        with torch.autocast("cpu", torch.bfloat16):
            loss = task.loss(model, batch).sum
        loss.backward()
    return counter.get_total_flops() / samples, moved.total / samples
