"""Steps, epochs and learning rates, computed from the recipe and the number of images.

Steps divide an endless stream of images into global batches. Therefore, an epoch may end in the middle of a
step, and no image is dropped or repeated. The step that processes an epoch's last image belongs to that
epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

import torch

from rankless.data.order import Line, micro_batch
from rankless.errors import UserError, counted
from rankless.recipe.durations import RunLength
from rankless.recipe.schema import Optim, Recipe

_FEW = 20  # minimum steps in a run, and steps per epoch that a suggested batch aims for
_SMALLEST = 8  # minimum images in a suggested batch, because of batch norm
_SOONEST = 40  # minimum steps until ``auto`` reaches the full rate, which affects runs of up to 800 steps
_MOMENTA = 0.95, 0.85  # for one-cycle at both ends and at the peak, as in PyTorch and Smith (2018)


@dataclass(frozen=True)
class StepSchedule:
    """The number of steps in a run, and what happens at each step."""

    recipe: Recipe
    images: int

    @cached_property
    def length(self) -> RunLength:
        return RunLength(self.recipe.epochs, self.images, self.recipe.batch.images)

    @cached_property
    def steps(self) -> int:
        return self.length.steps

    @cached_property
    def warmup(self) -> int:
        """Number of warm-up steps, or 0 for ``one-cycle``."""
        schedule = self.recipe.schedule
        if schedule.name == "one-cycle":
            return 0
        return self.length.whole("5%" if schedule.warmup == "auto" else schedule.warmup)

    @cached_property
    def decay(self) -> int:
        """Number of steps of ``cosine`` or ``poly`` decay after warm-up, possibly past the end of the run."""
        length = self.recipe.schedule.length
        return max(1, (self.steps if length == "run" else self.length.whole(length)) - self.warmup)

    @cached_property
    def rise(self) -> Fraction:
        """Number of steps for which the learning rate of ``one-cycle`` rises, at least one."""
        return max(self.length.exact(self.recipe.schedule.rise), Fraction(1))

    @cached_property
    def milestones(self) -> tuple[int, ...]:
        """Steps at which the schedule ``step`` reduces the learning rate."""
        asked = self.recipe.schedule.milestones or ("80%", "90%")
        exact = [self.length.exact(one) for one in asked]
        if any(later <= earlier for earlier, later in pairwise(exact)):
            steps = ", ".join(f"{one!r} is step {self.length.whole(one):,}" for one in asked)
            raise UserError(
                f"schedule.milestones: with {counted(self.images, 'training image')} and "
                f"{counted(self.recipe.epochs, 'epoch')}, {steps}; expected increasing steps; sort the "
                "milestones"
            )
        return tuple(map(math.ceil, exact))

    @cached_property
    def released_at(self) -> int:
        """Index of the step before which the backbone is released."""
        return self.length.whole(self.recipe.model.freeze)

    def epoch(self, step: int) -> float:
        """Return the number of epochs completed after ``step`` steps."""
        return step * self.recipe.batch.images / self.images

    def is_evaluated(self, step: int) -> bool:
        """Check whether the weights are evaluated after ``step`` steps."""
        if self.recipe.data.val == "none":
            return False
        return step == self.steps or self.length.ends(step, self.recipe.evaluate.every)

    def warnings(self) -> list[str]:
        """Return warnings about settings that do not suit the number of images."""
        found, batch = [], self.recipe.batch.images
        if batch > self.images:
            found.append(
                f"batch.images is {batch:,}, but the data has {counted(self.images, 'training image')}, so "
                f"each step uses every image {batch / self.images:.1f} times; {self._smaller_batch()}"
            )
        elif self.steps < _FEW and self.images < _FEW * batch and self._smaller_batch():
            found.append(
                f"the run has only {counted(self.steps, 'step')} (batch.images is {batch:,} for "
                f"{counted(self.images, 'training image')}), too few to learn much; train for more epochs, "
                f"or {self._smaller_batch()}"
            )
        key, rise, usual = "warmup", self.warmup, "5%"
        if self.recipe.schedule.name == "one-cycle":
            key, rise, usual = "rise", math.ceil(self.rise), "30%"
        if rise >= self.steps:
            smaller = f"use a smaller schedule.{key} (usually {usual}) or more epochs"
            found.append(
                f"the learning rate's warm-up takes the whole run ({counted(self.steps, 'step')}; "
                f"schedule.{key} is {getattr(self.recipe.schedule, key)}); "
                f"{smaller if self.steps > 1 else 'train for more epochs'}"
            )
        if (every := self.recipe.check.recompute) > self.steps:
            found.append(
                f"check.recompute is {every:,}, but the run has {counted(self.steps, 'step')}, so no step is "
                "checked; use a smaller number"
            )
        return [*found, *self._perhaps_epochs()]

    def _smaller_batch(self) -> str:
        """Return advice to use a smaller batch with enough steps per epoch, or an empty string.

        The suggested learning rate is proportional to the batch for SGD, and to its square root for Adam. A
        batch that several devices could share keeps at least two micro-batches.
        """
        batch = max(_SMALLEST, 1 << max(self.images // _FEW, 1).bit_length() - 1)
        if batch >= self.recipe.batch.images:
            return "use a smaller batch.images" if self.recipe.batch.images > self.images else ""
        micro, largest = self.recipe.batch.micro, batch // min(2, self.recipe.batch.micro_batches)
        also = "" if largest % micro == 0 else f" batch.micro={largest}"
        optim, ratio = self.recipe.optim, batch / self.recipe.batch.images
        lr = optim.lr * (ratio if optim.name == "sgd" else ratio**0.5)
        return f"add batch.images={batch}{also} optim.lr={lr:.3g}"

    def _perhaps_epochs(self) -> Iterator[str]:
        """Yield warnings about numbers of steps that may be meant as epochs, the unit of earlier versions."""
        recipe, epoch = self.recipe, self.length.exact("1 epoch")
        for key, value in (
            ("evaluate.every", recipe.evaluate.every),
            ("model.freeze", recipe.model.freeze),
            ("data.augment.close_mosaic", recipe.data.augment.close_mosaic),
        ):
            if isinstance(value, int) and 0 < value <= recipe.epochs and epoch > 1:
                in_epochs = f"{value} epoch{'s' * (value > 1)}"
                yield (
                    f"{key} is {value}, meaning {counted(value, 'step')}, but an epoch has "
                    f"{float(epoch):.4g} steps; if you mean epochs, use {key}='{in_epochs}'"
                )

    def lines(
        self, start: int, mine: range, extra: Callable[[int], Sequence[int]] = lambda step: ()
    ) -> Iterator[Line]:
        """Yield the images of each micro-batch in ``mine`` for every step from ``start`` on.

        In each step, the micro-batches ``extra(step)`` come first.
        """
        recipe = self.recipe
        for step in range(start, self.steps):
            for micro in (*extra(step), *mine):
                yield Line(step, micro_batch(self.images, recipe.seed, step, micro, recipe.batch))


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
    """Return the value at ``step`` of a curve from ``first`` to ``peak`` and on to ``last``.

    Each part of the curve is half a period of a cosine. The result equals that of
    ``torch.optim.lr_scheduler.OneCycleLR``.
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
