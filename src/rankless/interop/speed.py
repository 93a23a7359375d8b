"""Measure how many images per second a model computes on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rankless.hardware.compute_device import compute_device
from rankless.interop.comparison import images
from rankless.interop.export_plan import Plan
from rankless.models.exported.sessions import Session
from rankless.structures import network_input

_WARM_UP = 2  # untimed calls, because the first ones allocate memory and choose kernels


def inputs(plan: Plan, count: int) -> Tensor:
    """Return ``count`` real images as model input, float32 (count, 3, H, W), repeated if necessary."""
    seen = network_input(images(plan)[0].images)
    return seen[torch.arange(count) % len(seen)].contiguous()


def of_pytorch(model: nn.Module, seen: Tensor, seconds: float) -> float:
    """Measure how many images per second a PyTorch module computes in float32, on a GPU if there is one."""
    device = compute_device()
    model, seen = model.to(device), seen.to(device)

    def call() -> None:
        model(seen)
        if device.type == "cuda":
            torch.cuda.synchronize()

    with torch.inference_mode():
        return _rate(call, len(seen), seconds)


def of_session(session: Session, seen: Tensor, seconds: float) -> float:
    """Measure how many images per second an exported file computes, given one batch of images."""
    array = seen.numpy()
    return _rate(lambda: session(array), len(seen), seconds)


def _rate(call: Callable[[], Any], count: int, seconds: float) -> float:
    """Return the images per second of the median call. Each call computes ``count`` images."""
    for _ in range(_WARM_UP):
        call()
    times: list[float] = []
    until = time.perf_counter() + seconds
    while not times or time.perf_counter() < until:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return count / sorted(times)[len(times) // 2]
