"""The leaves of an autograd graph."""

from __future__ import annotations

from torch import Tensor
from torch.autograd.graph import get_gradient_edge


def leaves(value: Tensor) -> set[Tensor]:
    """Return the leaf tensors for which a backward pass from ``value`` computes gradients.

    Blocks that PyTorch recomputes with ``use_reentrant=True`` hide their leaves.
    """
    found: set[Tensor] = set()
    todo = [get_gradient_edge(value).node]
    seen = set(todo)
    while todo:
        node = todo.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            found.add(leaf)
        new = {following for following, _ in node.next_functions if following is not None} - seen
        seen |= new
        todo += new
    return found
