"""The number format of the forward pass."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from rankless.recipe import Precision

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def resolve(precision: Precision, device: torch.device) -> Precision:
    """What ``auto`` means on ``device``: bf16 where it is computed natively, else fp32 (fp16 on older GPUs).

    Returns:
        ``fp32``, ``tf32``, ``bf16`` or ``fp16``; anything but ``auto`` comes back as it is.
    """
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp16"
    return "bf16" if _cpu_computes_bf16() else "fp32"


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The forward pass runs inside this; parameters and their gradients stay float32."""
    dtype = _DTYPES.get(precision)  # fp32 and tf32 are settings of the process: training/settings.py
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def _cpu_computes_bf16() -> bool:
    """Whether the processor multiplies bf16 by itself; emulated it is slower than fp32."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return False
    return bool(flags & {"amx_bf16", "avx512_bf16"})
