"""Random generators, which the threads of a process share.

Each forward pass uses a separate generator instead of PyTorch's default generator of the CPU, and gets the
same random numbers as in a separate process. Every GPU already has its own generator. The generators of
Python and NumPy cannot be replaced, so using them is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from rankless.errors import UserError
from rankless.hardware.computing import forward_pass, kept_casts
from rankless.randomness import GENERATORS, drawn_from, seed_generators, torch_seed
from rankless.world.uncompiled import PlainDispatchMode


class OwnGenerator(PlainDispatchMode):
    """A context manager in which this thread's operations on the CPU use a separate generator."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator()
        self.generator.manual_seed(seed)

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if (takes := _TAKES.get(operation)) is None:
            takes = _TAKES[operation] = _takes(operation)
        if takes == "nothing" or kwargs.get("generator") is not None:
            return operation(*args, **kwargs)
        if takes == "default":  # the operation accepts only the default generator
            with GENERATORS:
                torch.default_generator.set_state(self.generator.get_state())
                made = operation(*args, **kwargs)
                self.generator.set_state(torch.default_generator.get_state())
            return made
        if any(isinstance(one, torch.Tensor) and one.device.type != "cpu" for one in args):
            return operation(*args, **kwargs)
        return operation(*args, **{**kwargs, "generator": self.generator})


_TAKES: dict[Any, str] = {}
"""The generator that each operation accepts: ``nothing``, only the ``default`` one, or ``any``."""


def _takes(operation: Any) -> str:
    if torch.Tag.nondeterministic_seeded not in operation.tags:
        return "nothing"
    given = [one.name for one in operation._schema.arguments]
    return "any" if "generator" in given else "default"


@contextmanager
def undrawn(why: str, instead: str) -> Iterator[None]:
    """Raise a UserError if this block uses the global generators of Python or NumPy."""
    before = drawn_from()
    yield
    used = [name for name, a, b in zip(("Python", "NumPy"), before, drawn_from(), strict=True) if a != b]
    if used:
        raise UserError(
            f"{why}, but the model or the loss uses the global random generator of {' and '.join(used)}, "
            "which several micro-batches would share; use PyTorch's generator, such as torch.rand(()), or "
            f"{instead}"
        )


@contextmanager
def seeded_pass(device: torch.device, shared: bool, seed: int, *path: int | str) -> Iterator[None]:
    """Seed all generators for one pass; see :func:`key`. If ``shared``, several threads may do so at once."""
    number = torch_seed(seed, *path)
    if device.type == "cuda":
        torch.cuda.manual_seed(number)
    if shared:
        with undrawn("ranks are threads", "ranks that are processes"), OwnGenerator(number):
            yield
    else:
        seed_generators(seed, *path)
        yield


def autocast_for(*, shared: bool) -> Callable[[str, torch.device], Any]:
    """Return a function that enters the training's forward pass. If ``shared``, several threads may do so.

    No pass of the next step starts before all threads have left, so no cast outlives its weights.
    """
    return _shared_pass if shared else partial(forward_pass, training=True)


@contextmanager
def _shared_pass(precision: str, device: torch.device) -> Iterator[None]:
    with kept_casts(), forward_pass(precision, device, training=True):
        yield
