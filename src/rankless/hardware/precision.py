"""The numeric precision of the forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch

from rankless.errors import UserError
from rankless.hardware.convolutions import SoundConvolutions
from rankless.hardware.instruction_set import computes_bf16, is_limited
from rankless.hardware.portable import PortableFunctions

if TYPE_CHECKING:
    from rankless.recipe.fields import Precision

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def resolve(precision: Precision, device: torch.device, cpu_isa: str = "native") -> Precision:
    """Resolve ``auto`` to bf16 if ``device`` supports it natively, otherwise to fp32 (fp16 on GPUs).

    Other values are returned unchanged. ``cpu_isa``, the recipe's instruction set, is ignored on a GPU.

    Raises:
        UserError: the CPU is limited to an instruction set that does not support the precision.
    """
    if device.type == "cpu" and cpu_isa != "native" and precision in _DTYPES:
        raise UserError(
            f"precision is '{precision}', which cpu_isa '{cpu_isa}' does not support; use precision=fp32 or "
            "cpu_isa=native"
        )
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp16"
    return "bf16" if computes_bf16(cpu_isa) else "fp32"


def dtype_of(precision: str) -> torch.dtype:
    """Return the dtype of convolutions and matrix products in the forward pass."""
    return _DTYPES.get(precision, torch.float32)


@contextmanager
def autocast(precision: str, device: torch.device) -> Iterator[None]:
    """Run the enclosed forward pass in ``precision``; parameters and their gradients stay float32.

    TorchScript modules are not optimized, because the first passes of a process, which collect types for the
    optimization, would be rounded differently than the following ones.
    """
    dtype = _DTYPES.get(precision)  # None for fp32 and tf32, which are process-wide: hardware/computing.py
    cast = nullcontext() if dtype is None else torch.autocast(device.type, dtype)
    with cast, torch.jit.optimized_execution(False), replaced_kernels(device):
        yield


def replaced_kernels(device: torch.device) -> AbstractContextManager[object]:
    """Return a context manager that replaces kernels whose results are wrong or depend on the CPU."""
    if device.type != "cpu":
        return nullcontext()
    if torch.is_autocast_enabled("cpu"):
        return SoundConvolutions()
    return PortableFunctions() if is_limited() else nullcontext()


@contextmanager
def without_layers() -> Iterator[None]:
    """Disable function interception within a block that calls no convolutions or linear layers.

    :func:`autocast` and ``batch_invariant`` intercept every function call, which accounts for half the time
    of small functions.
    """
    with nullcontext() if is_limited() else torch._C.DisableTorchFunction():
        yield
