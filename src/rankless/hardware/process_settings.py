"""Settings of PyTorch and NumPy that change numbers and belong to a process or thread.

A task may set them, for example with ``torch.set_default_dtype``. Its loader processes get the same ones.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.backends import mkldnn

ONEDNN: list[Any] = [mkldnn.matmul, mkldnn.conv, mkldnn.rnn]  # type: ignore[attr-defined]
"""Where the precision of float32 products on the CPU is set."""
_GENERATOR = "torch._inductor.config"  # the compiler's code generator
_DETERMINISTIC = "TORCHINDUCTOR_DETERMINISTIC"  # read when torch._inductor is imported


@dataclass(frozen=True)
class ProcessSettings:
    """The settings of the thread that creates this object. It can be pickled."""

    dtype: torch.dtype
    device: torch.device
    deterministic: str | int
    float32: list[str]
    flushes: bool
    numpy_errors: dict[str, Any]

    @classmethod
    def current(cls) -> ProcessSettings:
        return cls(
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.get_deterministic_debug_mode(),
            [setting.fp32_precision for setting in ONEDNN],
            sys.float_info.min / 2 == 0.0,  # PyTorch does not tell whether small numbers become zero
            dict(np.geterr()),
        )

    def apply(self) -> None:
        torch.set_default_dtype(self.dtype)
        if self.device != torch.get_default_device():  # setting it slows down every call
            torch.set_default_device(self.device)
        torch.set_deterministic_debug_mode(self.deterministic)
        for setting, precision in zip(ONEDNN, self.float32, strict=True):
            setting.fp32_precision = precision
        torch.set_flush_denormal(self.flushes)
        np.seterr(**self.numpy_errors)


def set_deterministic(on: bool) -> None:
    """Call ``torch.use_deterministic_algorithms``, including for a compiler that is imported later."""
    if _GENERATOR in sys.modules:
        torch.use_deterministic_algorithms(on)
    else:
        torch.set_deterministic_debug_mode("error" if on else "default")
    if on:
        os.environ[_DETERMINISTIC] = "1"
    else:
        os.environ.pop(_DETERMINISTIC, None)
