"""Activation checkpointing: blocks store only their inputs and are recomputed in the backward pass.

The results have the same bits: PyTorch repeats the random numbers and the autocast settings of the first
computation in the second, and running statistics are read before the second
(:mod:`rankless.engine.statistics`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rankless.errors import UserError
from rankless.hardware.precision import replaced_kernels
from rankless.world.global_norm import recomputation_contexts

_LISTS = (nn.ModuleList, nn.ModuleDict)


def checkpoint_activations(model: nn.Module) -> int:
    """Make a model recompute its blocks in the backward pass, and return the number of blocks.

    Names and state dicts do not change. Without gradients, blocks are computed as usual.
    """
    found = [*blocks(model)]
    for block in found:
        block.forward = _Checkpointed(block)
    if not found:
        raise UserError(
            f"model.checkpointing is true, but the model ({type(model).__name__}) has no blocks: modules of "
            "several layers in an nn.Sequential, nn.ModuleList or nn.ModuleDict; leave model.checkpointing "
            "out"
        )
    return len(found)


def blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield a module's blocks: members of lists that have several layers, and sequences of single layers.

    Only the outermost blocks are yielded.
    """
    for child in module.children():
        if not any(True for _ in child.children()):
            continue
        is_listed = isinstance(module, _LISTS) or _is_sequence(module)
        is_list = isinstance(child, _LISTS) or (_is_sequence(child) and not _is_flat(child))
        if is_list or not (is_listed or _is_sequence(child)):
            yield from blocks(child)
        elif any(True for _ in child.parameters()):
            yield child


def _is_sequence(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def _is_flat(module: nn.Module) -> bool:
    return not any(any(True for _ in child.children()) for child in module.children())


def _contexts() -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    """Return contexts for the first computation, which already runs in autocast, and for the second."""
    first, second = recomputation_contexts()
    return first, _inside(replaced_kernels(torch.device("cpu")), second)


@contextmanager
def _inside(*contexts: AbstractContextManager[object]) -> Iterator[None]:
    with ExitStack() as stack:
        for one in contexts:
            stack.enter_context(one)
        yield


class _Checkpointed:
    """A replacement for a block's ``forward`` that recomputes it in the backward pass."""

    def __init__(self, block: nn.Module) -> None:
        self.name = type(block).__name__
        self.forward = block.forward

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.forward(*inputs, **options)
        from torch.utils.checkpoint import checkpoint  # this imports PyTorch's compiler, which takes seconds

        tensors = [one for one in (*inputs, *options.values()) if isinstance(one, Tensor)]
        before = [one._version for one in tensors]
        made = checkpoint(self.forward, *inputs, use_reentrant=False, context_fn=_contexts, **options)
        if [one._version for one in tensors] != before:
            raise UserError(
                f"model.checkpointing is true, but a block of the model ({self.name}) changes its input in "
                "place, so it cannot be computed again; use inplace=False in its first layers, or leave "
                "model.checkpointing out"
            )
        return made
