"""PyTorch's data-parallel wrapper, optimizers, modes and deterministic kernels without its compiler.

All of them import ``torch._dynamo`` or ``torch._inductor``, to ask things that have one answer as long as
nothing is compiled. These take longer to import than the rest of PyTorch, in every rank and at every restart:
4 s of a processor (``import torch._dynamo`` of PyTorch 2.14 on a busy x86 machine). Nothing of PyTorch is
replaced: these are copies and subclasses. ``tests/world/test_uncompiled.py`` fails where a PyTorch asks in
another place.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from contextlib import contextmanager
from types import FunctionType, SimpleNamespace
from typing import Any, Self

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

_COMPILER = "torch._dynamo"
_GENERATOR = "torch._inductor.config"  # of the compiler's code
_DETERMINISTIC = "TORCHINDUCTOR_DETERMINISTIC"  # it reads this when it is imported


def set_deterministic(on: bool) -> None:
    """``torch.use_deterministic_algorithms``; a compiler that is imported later is set as well."""
    if _GENERATOR in sys.modules:
        torch.use_deterministic_algorithms(on)
    else:
        torch.set_deterministic_debug_mode("error" if on else "default")
    if on:
        os.environ[_DETERMINISTIC] = "1"
    else:
        os.environ.pop(_DETERMINISTIC, None)


def _plain(function: Any) -> Any:
    """A method without the wrappers that make the compiler leave it alone."""
    return inspect.unwrap(function)


class PlainSGD(SGD):
    """The base class without code for the compiler; its results are the same."""

    add_param_group = _plain(Optimizer.add_param_group)
    zero_grad = _plain(Optimizer.zero_grad)
    step = torch.no_grad()(_plain(SGD.step))


class PlainAdam(Adam):
    """The base class without code for the compiler; its results are the same."""

    add_param_group = _plain(Optimizer.add_param_group)
    zero_grad = _plain(Optimizer.zero_grad)
    step = torch.no_grad()(_plain(Adam.step))


class PlainAdamW(AdamW):
    """The base class without code for the compiler; its results are the same."""

    add_param_group = _plain(Optimizer.add_param_group)
    zero_grad = _plain(Optimizer.zero_grad)
    step = torch.no_grad()(_plain(AdamW.step))


class PlainDispatchMode(TorchDispatchMode):
    """The same as its base, for code that is not compiled; threads may be inside at the same time.

    The base wraps its method for the compiler, and keeps flags for it that are the process's.
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


class _Answer(SimpleNamespace):
    """A stand-in for a compiler that is not loaded; it loads the real one for anything it cannot answer."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(_COMPILER), name)


class _Torch:
    """``torch`` with an answer in place of a compiler that has not been imported."""

    _answer = _Answer(utils=SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer"))

    def __getattr__(self, name: str) -> Any:
        if name == "_dynamo" and _COMPILER not in sys.modules:
            return self._answer
        return getattr(torch, name)


def _importing_nothing(function: Any) -> Any:
    """A copy of a function that does not import the compiler to ask it about data-parallel wrappers."""
    names = {**function.__globals__, "torch": _Torch()}
    copy = FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


class PlainDataParallel(DistributedDataParallel):
    """The same as its base, as long as the wrapper itself is not compiled."""

    __init__ = _importing_nothing(DistributedDataParallel.__init__)

    if inspect.isgeneratorfunction(_plain(DistributedDataParallel._inside_ddp_forward)):
        _inside_ddp_forward = contextmanager(_plain(DistributedDataParallel._inside_ddp_forward))
