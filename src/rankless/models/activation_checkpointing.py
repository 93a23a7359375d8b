"""Activation checkpointing: blocks store only their inputs and are recomputed in the backward pass.

The results are bitwise identical to those without checkpointing. PyTorch restores the random state and the
autocast settings for the recomputation, and :mod:`rankless.engine.running_statistics` reads running
statistics beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rankless.errors import UserError
from rankless.hardware.precision import replaced_kernels
from rankless.world.global_norm import recomputation_contexts

_LISTS = (nn.ModuleList, nn.ModuleDict)


def checkpoint_activations(model: nn.Module) -> int:
    """Make a model recompute its blocks in the backward pass, and return the number of blocks.

    Names and state dicts do not change. Without gradients, nothing is recomputed.
    """
    found = [*blocks(model)]
    for block in found:
        block.forward = _Checkpointed(block)
    if not found:
        raise UserError(
            f"model.checkpointing is true, but the model ({type(model).__name__}) has no blocks; expected "
            "modules with several layers in an nn.Sequential, nn.ModuleList or nn.ModuleDict; remove "
            "model.checkpointing"
        )
    return len(found)


def blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost blocks of a module.

    A block is either a sequence of single layers, or a member of a list that itself has several layers.
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
    first, second = recomputation_contexts()
    return first, _with_kernels(second)


@contextmanager
def _with_kernels(context: AbstractContextManager[object]) -> Iterator[None]:
    with replaced_kernels(torch.device("cpu")), context:  # the forward pass already runs in the former
        yield


class _Checkpointed:
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
                "place, so it cannot be recomputed; use inplace=False in its first layers, or remove "
                "model.checkpointing"
            )
        return made
