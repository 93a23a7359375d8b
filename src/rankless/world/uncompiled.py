"""Variants of PyTorch's data-parallel wrapper, optimizers and modes that do not import its compiler.

The originals import ``torch._dynamo`` or ``torch._inductor``, although nothing is compiled. In every rank and
at every restart, this import takes longer than the rest of PyTorch: 4 s of CPU time for ``torch._dynamo`` of
PyTorch 2.14 on a busy x86 machine. This module contains copies and subclasses, and does not modify PyTorch.
``tests/world/test_uncompiled.py`` fails if a PyTorch release imports the compiler elsewhere.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import contextmanager
from inspect import isgeneratorfunction, unwrap
from types import FunctionType, SimpleNamespace
from typing import Any, Self

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

_COMPILER = "torch._dynamo"


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


class _CompilerStandIn(SimpleNamespace):
    """A stand-in for the compiler's module that imports the real module for any missing attribute."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(_COMPILER), name)


class _Torch:
    """The ``torch`` module, with a stand-in for the compiler until the compiler is imported."""

    _answer = _CompilerStandIn(utils=SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"))

    def __getattr__(self, name: str) -> Any:
        if name == "_dynamo" and _COMPILER not in sys.modules:
            return self._answer
        return getattr(torch, name)


def _without_compiler(function: Any) -> Any:
    """Return a copy of a function that uses :class:`_Torch` as ``torch``."""
    names = {**function.__globals__, "torch": _Torch()}
    copy = FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


class PlainDataParallel(DistributedDataParallel):
    """``DistributedDataParallel`` for modules that are not compiled."""

    __init__ = _without_compiler(DistributedDataParallel.__init__)

    if isgeneratorfunction(unwrap(DistributedDataParallel._inside_ddp_forward)):
        _inside_ddp_forward = contextmanager(unwrap(DistributedDataParallel._inside_ddp_forward))
