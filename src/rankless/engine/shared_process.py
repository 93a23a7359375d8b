"""State that threads of a process share: torch's generators and autocast's cache.

A forward pass draws the same numbers as in a separate process, because it has a separate generator: while it
runs, every operation that would draw from the CPU's default generator gets this one. Each GPU has its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rankless.hardware.precision import autocast
from rankless.randomness import GENERATORS
from rankless.world.uncompiled import PlainDispatchMode


class OwnGenerator(PlainDispatchMode):
    """A context manager in which this thread's operations on the CPU draw from a separate generator."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator()
        self.generator.manual_seed(seed)

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the operation, with this generator if it would draw from the default one."""
        kwargs = kwargs or {}
        if (takes := _TAKES.get(operation)) is None:
            takes = _TAKES[operation] = _takes(operation)
        if takes == "nothing" or kwargs.get("generator") is not None:
            return operation(*args, **kwargs)
        if takes == "default":
            return self._borrowing(operation, args, kwargs)
        if any(isinstance(one, torch.Tensor) and one.device.type != "cpu" for one in args):
            return operation(*args, **kwargs)
        return operation(*args, **{**kwargs, "generator": self.generator})

    def _borrowing(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an operation that takes only the default generator, with this generator's state in it."""
        with GENERATORS:
            torch.default_generator.set_state(self.generator.get_state())
            made = operation(*args, **kwargs)
            self.generator.set_state(torch.default_generator.get_state())
        return made


_TAKES: dict[Any, str] = {}
"""Generator that each operation takes: ``nothing`` for none, only the ``default`` one, or ``any``."""


def _takes(operation: Any) -> str:
    if torch.Tag.nondeterministic_seeded not in operation.tags:
        return "nothing"
    given = [one.name for one in operation._schema.arguments]
    return "any" if "generator" in given else "default"


class SharedCasts:
    """Autocast for forward passes that run in several threads: of ranks, or of a rank's micro-batches.

    All threads of a process share autocast's cache of cast weights, and every thread that leaves autocast
    clears it. That would change the number of casts in the passes that still run, and so the bits of their
    gradients. Here only the last thread to leave clears it. No pass of the next step begins before all have
    left, so no cast outlives its weights.
    """

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0

    @contextmanager
    def autocast(self, precision: str, device: torch.device) -> Iterator[None]:
        """Do the same as :func:`rankless.hardware.precision.autocast`."""
        with self._lock:
            self._inside += 1
        torch.autocast_increment_nesting()  # so the inner autocast, not the outermost, clears nothing
        try:
            with autocast(precision, device):
                yield
        finally:
            torch.autocast_decrement_nesting()
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    torch.clear_autocast_cache()


_CASTS = SharedCasts()


def autocast_for(*, shared: bool) -> Callable[[str, torch.device], Any]:
    """Return the autocast for forward passes; ``shared`` if others run in this process at the same time."""
    return _CASTS.autocast if shared else autocast
