"""The optimizer: its parameter groups, its state and its gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rankless.engine.freezing import backbone_of
from rankless.engine.muon import Muon, is_matrix
from rankless.errors import UserError
from rankless.recipe.schema import Optim
from rankless.world.process_group import World
from rankless.world.uncompiled import PlainAdam, PlainAdamW, PlainSGD


def optimizer(
    model: nn.Module,
    recipe: Optim,
    *,
    portable: bool = False,
    world: World | None = None,
    dtype: torch.dtype = torch.float32,
) -> torch.optim.Optimizer:
    """Create the optimizer of a recipe: SGD, Adam, AdamW or Muon.

    Weight decay applies to weights of two or more dimensions. It applies to biases, norms and PReLU only with
    ``optim.decay_norms_and_biases``.

    Args:
        portable: whether to compute the same bits on different CPUs. On a CPU, ``Tensor.sqrt`` uses MKL, and
            the last bit of its result depends on the processor. The fused Adam uses the IEEE square root.
        world: the ranks that share Muon's computation. They must all step together.
        dtype: dtype in which Muon orthogonalizes matrices.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    least = 0 if recipe.decay_norms_and_biases else 2
    matrices = [p for p in trained if recipe.name == "muon" and is_matrix(p)]
    chosen = {id(p) for p in matrices}
    others = [p for p in trained if id(p) not in chosen]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": recipe.weight_decay, "momentum": recipe.momentum},
        {"params": [p for p in others if p.ndim >= least], "weight_decay": recipe.weight_decay},
        {"params": [p for p in others if p.ndim < least], "weight_decay": 0.0},
    ]
    if recipe.backbone_factor != 1:
        groups = [part for group in groups for part in _by_backbone(group, model, recipe.backbone_factor)]
    groups = [group for group in groups if group["params"]]
    if recipe.name == "sgd":
        return PlainSGD(
            groups, lr=recipe.lr, momentum=recipe.momentum, nesterov=recipe.nesterov, foreach=True
        )
    options: dict[str, Any] = {
        "lr": recipe.lr,
        "betas": recipe.betas,
        "foreach": not portable,
        "fused": portable,
    }
    if recipe.name == "muon":
        return Muon(groups, world=world, dtype=dtype, **options)
    return (PlainAdam if recipe.name == "adam" else PlainAdamW)(groups, **options)


def _by_backbone(group: dict[str, Any], model: nn.Module, factor: float) -> list[dict[str, Any]]:
    """Split a group into the backbone's parameters, with a ``factor`` for the learning rate, and the rest."""
    modules = backbone_of(model, f"optim.backbone_factor is {factor:g}", "optim.backbone_factor to 1")
    inside = {id(p) for module in modules for p in module.parameters()}
    first = [p for p in group["params"] if id(p) in inside]
    others = [p for p in group["params"] if id(p) not in inside]
    return [{**group, "params": first, "factor": factor}, {**group, "params": others}]


def divide_and_clip(parameters: list[nn.Parameter], count: Tensor, limit: float) -> Tensor:
    """Convert summed gradients to their mean in place, and clip it to the global norm ``limit``.

    Returns the norm before clipping, which is not finite if any gradient is not finite. A ``count`` of zero
    is treated as one, and a ``limit`` of zero means no clipping.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    factor = 1.0 / torch.where(count == 0, 1, count)
    norm = nn.utils.get_total_norm(gradients, foreach=True) * factor
    shortened = factor * (limit / (norm + 1e-6)).clamp(max=1.0) if limit else factor
    for dtype in {gradient.dtype: None for gradient in gradients}:
        torch._foreach_mul_([g for g in gradients if g.dtype == dtype], shortened.to(dtype.to_real()))
    return norm


def state_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimizer's tensors for a checkpoint, named ``SLOT/PARAMETER``."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{slot}/{names[parameter]}": value
        for parameter, slots in optimizer.state.items()
        for slot, value in slots.items()
        if isinstance(value, Tensor)
    }


def restore_state(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor], source: str = "the state"
) -> None:
    """Restore the optimizer's tensors from :func:`state_tensors`. Error messages name ``source``."""
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        slot, _, name = key.partition("/")
        parameter = parameters.get(name)
        if parameter is None or value.shape != (() if slot == "step" else parameter.shape):
            raise UserError(
                f"{source}: the optimizer's tensor '{key}' of shape {list(value.shape)} does not match any "
                "parameter of this model; use another copy of the checkpoint"
            )
        # Adam's step is on the CPU. All other tensors have the device and layout of their parameter.
        placed = value.clone() if slot == "step" else torch.empty_like(parameter).copy_(value)
        optimizer.state[parameter][slot] = placed
