"""The sections ``optim`` and ``schedule``: how gradients become new weights, and how fast."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from rankless.recipe.fields import (
    Clash,
    Duration,
    Fraction,
    Milestones,
    NotNegative,
    Period,
    Positive,
    ProperFraction,
    clash,
    clashes,
    config,
)


@dataclass(frozen=True, config=config)
class Optim:
    """The optimizer.

    Attributes:
        name: ``sgd`` (with momentum), ``adam``, ``adamw``, or ``muon``, which makes the steps of large
            weights orthogonal and leaves all else to AdamW.
        lr: the peak learning rate, which the schedule scales.
        momentum: momentum of SGD and Muon.
        nesterov: use Nesterov momentum in SGD.
        betas: coefficients of the running averages of Adam and AdamW.
        weight_decay: in ``sgd`` and ``adam`` added to the gradient (L2), in ``adamw`` and ``muon`` taken from
            the weights.
        decay_norms_and_biases: weight decay on all parameters; otherwise only on weights of convolutions and
            linear layers.
        clip: largest global norm of the gradient; 0 disables clipping.
    """

    name: Literal["sgd", "adam", "adamw", "muon"] = "sgd"
    lr: Positive = 0.01
    momentum: ProperFraction = 0.9
    nesterov: bool = False
    betas: Annotated[tuple[ProperFraction, ProperFraction], Field(strict=False)] = (0.9, 0.999)
    weight_decay: NotNegative = 5e-4
    decay_norms_and_biases: bool = False
    clip: NotNegative = 0.0

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> Self:
        if self.nesterov and self.name != "sgd":
            raise clash(
                f"'optim.nesterov' is true, which optim.name '{self.name}' does not have; "
                "use optim.nesterov=false, or 'sgd'",
                "nesterov",
                "name",
            )
        if self.nesterov and self.momentum == 0:
            raise clash(
                "'optim.nesterov' is true, which needs momentum, and optim.momentum is 0: "
                "give a momentum such as 0.9, or use optim.nesterov=false",
                "nesterov",
                "momentum",
            )
        return self


@dataclass(frozen=True, config=config)
class Schedule:
    """The learning rate as a function of the step.

    Attributes:
        name: ``cosine`` down to ``final``, ``step`` (times ``gamma`` at each milestone), ``poly``
            (``(1 - done) ** power``), ``exponential`` (times ``decay`` after each epoch), ``one-cycle`` (up
            and down once) or ``constant``.
        warmup: how long the rate rises from 0: steps, or as in ``5 epochs`` or ``5%`` (of the run). ``auto``
            is ``5%``, and step n has at most n / 40 of ``optim.lr``, which lowers the peak of a run of few
            steps and changes no run of 800 or more. All but ``one-cycle``.
        warmup_power: the rise is ``((step + 1) / warmup) ** warmup_power``; Darknet uses 4.
        length: when ``cosine`` and ``poly`` reach their end: ``run``, or a duration, which may be longer than
            the run, as ``200 epochs`` of 90 (``T_max`` in PyTorch).
        final: last rate of ``cosine``, as a fraction of ``optim.lr``.
        milestones: when ``step`` lowers the rate: steps, or as in ``30 epochs`` or ``80%`` (of the run), in
            increasing order; empty means ``80%`` and ``90%``.
        gamma: the factor at each milestone.
        power: exponent of ``poly``; 1 is a straight line, Darknet's classifiers use 4.
        decay: the factor of ``exponential``, after each epoch that follows the warm-up.
        rise: how long ``one-cycle`` rises to the peak, as in ``warmup``.
        div_factor: the first rate of ``one-cycle`` is ``optim.lr`` divided by this.
        final_div_factor: the last rate of ``one-cycle`` is its first one divided by this.
        cycle_momentum: in ``one-cycle`` the momentum (the first of ``optim.betas``) falls from 0.95 to 0.85
            at the peak, and rises again.
    """

    name: Literal["cosine", "step", "poly", "exponential", "one-cycle", "constant"] = "cosine"
    warmup: Literal["auto"] | Duration = "5%"
    warmup_power: Positive = 1.0
    length: Literal["run"] | Period = "run"
    final: Fraction = 0.01
    milestones: Milestones = ()
    gamma: Positive = 0.1
    power: Positive = 0.9
    decay: Annotated[float, Field(gt=0, le=1)] = 0.95
    rise: Period = "30%"
    div_factor: Annotated[float, Field(ge=1, le=1e9)] = 25.0
    final_div_factor: Annotated[float, Field(ge=1, le=1e9)] = 10_000.0
    cycle_momentum: bool = True

    @model_validator(mode="after")
    def _keys_are_the_schedules(self) -> Self:
        if found := [*self._without_effect()]:
            raise clashes(found)
        return self

    def _without_effect(self) -> Iterator[Clash]:
        for owners, keys in _OF_SOME.items():
            for key in keys:
                value = getattr(self, key)
                if self.name not in owners and value != getattr(Schedule, key):
                    known = " or ".join(f"'{owner}'" for owner in owners)
                    yield _idle(key, value, f"an effect only with schedule.name {known}")
        if self.name == "one-cycle":
            for key in ("warmup", "warmup_power"):
                if (value := getattr(self, key)) not in (getattr(Schedule, key), "auto"):
                    yield _idle(key, value, "no effect with 'one-cycle', whose rise is schedule.rise")


_OF_SOME = {
    ("cosine", "poly"): ("length",),
    ("poly",): ("power",),
    ("exponential",): ("decay",),
    ("one-cycle",): ("rise", "div_factor", "final_div_factor", "cycle_momentum"),
}


def _idle(key: str, value: object, when: str) -> Clash:
    written = str(value).lower() if isinstance(value, bool) else repr(value)
    return f"'schedule.{key}' is {written}, which has {when}: leave it out", (key, "name")
