"""The optimizer: its parameter groups, its state, and the gradients it is given."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

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
    """SGD, Adam, AdamW or Muon.

    Weight decay is on weights of two or more dimensions, unless the recipe wants it on biases, norms and
    PReLU too.

    Args:
        model: what is trained.
        recipe: its section ``optim``.
        portable: the same bits on different CPUs. ``Tensor.sqrt`` is MKL's there, whose last bit depends on
            the processor; the root in the fused Adam is IEEE's.
        world: ranks that share what Muon computes; all of them step at once.
        dtype: in which Muon makes matrices orthogonal.
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


def divide_and_clip(parameters: list[nn.Parameter], count: Tensor, limit: float) -> Tensor:
    """Turn summed gradients into the mean, and shorten them to a global norm of at most ``limit``.

    Args:
        parameters: their ``grad`` is changed in place.
        count: scalar, what the summed loss is divided by; zero counts as one.
        limit: 0 leaves the length as it is.

    Returns:
        The norm before it was clipped, a scalar; it is not finite where any gradient is not.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    factor = 1.0 / torch.where(count == 0, 1, count)
    norm = nn.utils.get_total_norm(gradients, foreach=True) * factor
    shortened = factor * (limit / (norm + 1e-6)).clamp(max=1.0) if limit else factor
    torch._foreach_mul_(gradients, shortened.to(gradients[0]))
    return norm


def state_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimizer's state as ``SLOT/PARAMETER`` -> tensor, for a checkpoint."""
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
    """Restore what :func:`state_tensors` returned.

    Args:
        optimizer, model: of the run.
        tensors: each of the shape of its parameter, or a scalar for ``step``.
        source: of the tensors, for messages.
    """
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        slot, _, name = key.partition("/")
        parameter = parameters.get(name)
        if parameter is None or value.shape != (() if slot == "step" else parameter.shape):
            raise UserError(
                f"{source}: the optimizer's tensor '{key}' with shape {list(value.shape)} belongs to no "
                "parameter of this model; take another copy of the checkpoint"
            )
        # Adam counts its steps in a tensor on the CPU; everything else lies like its parameter.
        placed = value.clone() if slot == "step" else torch.empty_like(parameter).copy_(value)
        optimizer.state[parameter][slot] = placed
