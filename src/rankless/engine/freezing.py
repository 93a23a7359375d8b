"""Freeze a model's backbone during the first epochs (``model.freeze``).

While the backbone is frozen, its parameters have no gradients and are not in the optimizer, and its batch
norms use their running statistics without updating them.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from rankless.engine.running_statistics import batch_norms
from rankless.errors import UserError


class Backbone:
    """The backbone of a model, frozen until it is released.

    The model's method ``backbone()`` returns the modules to freeze. Parameters whose ``requires_grad`` is
    already False are never trained. ``norms`` contains the batch norms of the frozen backbone.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = backbone_of(model, "model.freeze is set", "model.freeze to 0")
        named = {id(p): p for module in modules for p in module.parameters()}
        self.parameters = [p for p in named.values() if p.requires_grad]
        norms = {id(norm): norm for module in modules for norm in batch_norms(module)}
        self.norms: list[_BatchNorm] = list(norms.values())
        for parameter in self.parameters:
            parameter.requires_grad_(False)
        if not any(p.requires_grad for p in model.parameters()):
            raise UserError(
                f"model.freeze: backbone() of {type(model).__name__} contains all parameters, so nothing "
                "remains to train; remove the head from backbone(), or set model.freeze to 0"
            )

    def release(self) -> None:
        for parameter in self.parameters:
            parameter.requires_grad_(True)
        self.norms = []


def backbone_of(model: nn.Module, needed_by: str, off: str) -> list[nn.Module]:
    """Return the modules of a model's backbone.

    For error messages, ``needed_by`` is the setting that needs the backbone, and ``off`` turns it off.
    """
    kind = type(model).__name__
    method = getattr(model, "backbone", None)
    if not callable(method) or isinstance(method, nn.Module):
        raise UserError(
            f"{needed_by}, but the model ({kind}) does not define its backbone; add a method backbone() that "
            f"returns its modules, as in `return [self.stem, self.layers]`, or set {off}"
        )
    parts = method()
    modules = list(parts) if isinstance(parts, Iterable) and not isinstance(parts, nn.Module) else [parts]
    inside = {id(module) for module in model.modules()}
    strangers = [type(m).__name__ for m in modules if not isinstance(m, nn.Module) or id(m) not in inside]
    if strangers or not modules:
        raise UserError(
            f"{needed_by}, but backbone() of {kind} returned {', '.join(strangers) or 'nothing'}; expected "
            "modules of the model"
        )
    return modules
