"""The sections ``optim`` and ``schedule``: how gradients become new weights, and how fast."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass

from rankless.recipe.fields import (
    Bool,
    Duration,
    Float,
    Fraction,
    Milestones,
    NotNegative,
    Only,
    Period,
    Positive,
    ProperFraction,
    clash,
    config,
)


@dataclass(frozen=True, config=config)
class Optim:
    """The optimizer."""

    name: Literal["sgd", "adam", "adamw", "muon"] = "sgd"
    """``sgd`` (with momentum), ``adam``, ``adamw``, or ``muon``, which makes the steps of large weights
    orthogonal and leaves all else to AdamW."""
    lr: Positive = 0.01
    """The peak learning rate, which the schedule scales."""
    momentum: ProperFraction = 0.9
    """Momentum of SGD and Muon."""
    nesterov: Annotated[Bool, Only("optim.name", ("sgd",))] = False
    """Use Nesterov momentum in SGD."""
    betas: tuple[ProperFraction, ProperFraction] = (0.9, 0.999)
    """Coefficients of the running averages of Adam and AdamW."""
    weight_decay: NotNegative = 5e-4
    """In ``sgd`` and ``adam`` added to the gradient (L2), in ``adamw`` and ``muon`` taken from the
    weights."""
    decay_norms_and_biases: Bool = False
    """Weight decay on all parameters; otherwise only on weights of convolutions and linear layers."""
    clip: NotNegative = 0.0
    """Largest global norm of the gradient; 0 disables clipping."""

    @field_validator("nesterov")
    @classmethod
    def _nesterov_has_momentum(cls, nesterov: bool, info: ValidationInfo) -> bool:
        if nesterov and info.data.get("momentum") == 0 and info.data.get("name") == "sgd":
            raise clash(
                "'optim.nesterov' is true, which needs momentum, and optim.momentum is 0: "
                "give a momentum such as 0.9, or use optim.nesterov=false",
                "optim.nesterov",
                "optim.momentum",
            )
        return nesterov


def _schedule(*names: str) -> Only:
    return Only("schedule.name", names)


_WITH_WARMUP = _schedule("cosine", "step", "poly", "exponential", "constant")


@dataclass(frozen=True, config=config)
class Schedule:
    """The learning rate as a function of the step."""

    name: Literal["cosine", "step", "poly", "exponential", "one-cycle", "constant"] = "cosine"
    """``cosine`` down to ``final``, ``step`` (times ``gamma`` at each milestone), ``poly`` (``(1 - done) **
    power``), ``exponential`` (times ``decay`` after each epoch), ``one-cycle`` (up and down once) or
    ``constant``."""
    warmup: Annotated[Literal["auto"] | Duration, _WITH_WARMUP] = "5%"
    """How long the rate rises from 0: steps, or as in ``5 epochs`` or ``5%`` (of the run). ``auto`` is ``5%``,
    and step n has at most n / 40 of ``optim.lr``, which lowers the peak of a run of few steps and changes no
    run of 800 or more. All but ``one-cycle``."""
    warmup_power: Annotated[Positive, _WITH_WARMUP] = 1.0
    """The rise is ``((step + 1) / warmup) ** warmup_power``; Darknet uses 4."""
    length: Annotated[Literal["run"] | Period, _schedule("cosine", "poly")] = "run"
    """When ``cosine`` and ``poly`` reach their end: ``run``, or a duration, which may be longer than the run,
    as ``200 epochs`` of 90 (``T_max`` in PyTorch)."""
    final: Fraction = 0.01
    """Last rate of ``cosine``, as a fraction of ``optim.lr``."""
    milestones: Milestones = ()
    """When ``step`` lowers the rate: steps, or as in ``30 epochs`` or ``80%`` (of the run), in increasing
    order; empty means ``80%`` and ``90%``."""
    gamma: Positive = 0.1
    """The factor at each milestone."""
    power: Annotated[Positive, _schedule("poly")] = 0.9
    """Exponent of ``poly``; 1 is a straight line, Darknet's classifiers use 4."""
    decay: Annotated[Float, Field(gt=0, le=1), _schedule("exponential")] = 0.95
    """The factor of ``exponential``, after each epoch that follows the warm-up."""
    rise: Annotated[Period, _schedule("one-cycle")] = "30%"
    """How long ``one-cycle`` rises to the peak, as in ``warmup``."""
    div_factor: Annotated[Float, Field(ge=1, le=1e9), _schedule("one-cycle")] = 25.0
    """The first rate of ``one-cycle`` is ``optim.lr`` divided by this."""
    final_div_factor: Annotated[Float, Field(ge=1, le=1e9), _schedule("one-cycle")] = 10_000.0
    """The last rate of ``one-cycle`` is its first one divided by this."""
    cycle_momentum: Annotated[Bool, _schedule("one-cycle")] = True
    """In ``one-cycle`` the momentum (the first of ``optim.betas``) falls from 0.95 to 0.85 at the peak, and
    rises again."""
