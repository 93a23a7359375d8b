"""The learning rate and momentum of each step, as functions of the step without any saved state."""

from __future__ import annotations

import math

import torch

from rankless.engine.schedule import StepSchedule
from rankless.recipe.schema import Optim

_SOONEST = 40  # minimum steps until ``auto`` reaches the full rate, which affects runs of up to 800 steps
_MOMENTA = 0.95, 0.85  # for one-cycle at both ends and at the peak, as in PyTorch and Smith (2018)


def rate(run: StepSchedule, step: int) -> float:
    """Return the factor for ``optim.lr`` in the step with index ``step``.

    The factor during warm-up is ``((step + 1) / warmup) ** warmup_power``. All schedules start after the
    warm-up, except ``step``, whose milestones are counted from the start of the run. With the warm-up
    ``auto``, the factor is at most ``(step + 1) / 40``.
    """
    factor, schedule = _rate(run, step), run.recipe.schedule
    limited = schedule.warmup == "auto" and schedule.name != "one-cycle"
    return min(factor, (step + 1) / _SOONEST) if limited else factor


def _rate(run: StepSchedule, step: int) -> float:
    schedule = run.recipe.schedule
    if schedule.name == "one-cycle":
        first = 1 / schedule.div_factor
        return _cycle(run, step, first, 1.0, first / schedule.final_div_factor)
    warmup = run.warmup
    if step < warmup:
        return float(((step + 1) / warmup) ** schedule.warmup_power)
    after, rest = step - warmup, run.decay
    if schedule.name == "cosine":
        done = after / max(rest - 1, 1)
        return schedule.final + (1 - schedule.final) * (1 + math.cos(math.pi * min(done, 1.0))) / 2
    if schedule.name == "step":
        return float(schedule.gamma ** sum(step >= milestone for milestone in run.milestones))
    if schedule.name == "poly":
        return float(max(0.0, 1 - after / rest) ** schedule.power)
    if schedule.name == "exponential":
        return float(schedule.decay ** (after * run.recipe.batch.images // run.images))
    return 1.0


def momentum(run: StepSchedule, step: int) -> float | None:
    """Return the momentum (Adam's first beta) at ``step``, or None if the schedule does not set it."""
    schedule = run.recipe.schedule
    if schedule.name != "one-cycle" or not schedule.cycle_momentum:
        return None
    end, peak = _MOMENTA
    return _cycle(run, step, end, peak, end)


def _cycle(run: StepSchedule, step: int, first: float, peak: float, last: float) -> float:
    """Return the value at ``step`` of a cosine curve from ``first`` to ``peak``, followed by one to ``last``.

    The result equals that of ``torch.optim.lr_scheduler.OneCycleLR``.
    """
    top, end = float(run.rise) - 1, run.steps - 1
    if step <= top:
        return _between(first, peak, step / top if top else 1.0)
    return _between(peak, last, (step - top) / (end - top))


def _between(start: float, end: float, done: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * done)) / 2


def set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of every parameter group, multiplied by the group's ``factor`` if it has one."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("factor", 1.0)


def set_momentum(optimizer: torch.optim.Optimizer, recipe: Optim, value: float | None) -> None:
    """Set the momentum of every parameter group unless ``value`` is None."""
    if value is None:
        return
    for group in optimizer.param_groups:
        if "momentum" in group:
            group["momentum"] = value
        else:
            group["betas"] = (value, recipe.betas[1])
