"""Variants of PyTorch's optimizers and modes that do not import its compiler.

The originals import ``torch._dynamo`` or ``torch._inductor``, although nothing is compiled. In every rank and
at every restart, this import takes longer than the rest of PyTorch: 4 s of CPU time for ``torch._dynamo`` of
PyTorch 2.14 on a busy x86 machine. This module contains copies and subclasses, and does not modify PyTorch.
``tests/world/test_uncompiled.py`` fails if a PyTorch release imports the compiler elsewhere.
"""

from __future__ import annotations

from inspect import unwrap
from typing import Any, Self

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode


# PyTorch wraps the methods below to exclude them from compilation. The results are the same without that.
class _PlainMethods:
    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)


class PlainSGD(_PlainMethods, SGD):
    step = torch.no_grad()(unwrap(SGD.step))


class PlainAdam(_PlainMethods, Adam):
    step = torch.no_grad()(unwrap(Adam.step))


class PlainAdamW(_PlainMethods, AdamW):
    step = torch.no_grad()(unwrap(AdamW.step))


class PlainDispatchMode(TorchDispatchMode):
    """A ``TorchDispatchMode`` for uncompiled code that several threads may enter at the same time.

    The base class wraps a method for the compiler and keeps global flags for it.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __init_subclass__(cls, **options: Any) -> None:
        object.__init_subclass__(**options)

    def __enter__(self) -> Self:
        _python_dispatch._push_mode(self)
        return self

    def __exit__(self, *_: object) -> None:
        _python_dispatch._pop_mode()
