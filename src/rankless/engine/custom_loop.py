"""The engine for custom training loops.

The user's loop handles the optimizer, the learning rate, evaluation and saving. This module handles
everything that involves the number of ranks. The weights do not depend on that number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from rankless.data.loader import MicroBatches
from rankless.data.torch_dataset import from_dataset
from rankless.engine.accumulate import make_accumulator
from rankless.engine.forward_state import ForwardState
from rankless.engine.optim import divide_and_clip
from rankless.engine.running_statistics import RunningStatistics, batch_norms
from rankless.engine.schedule import StepSchedule
from rankless.engine.soundness import synchronize, weight_difference
from rankless.engine.totals import Flags
from rankless.errors import UserError
from rankless.randomness import kept_generators
from rankless.recipe.schema import Recipe
from rankless.structures import LossSum
from rankless.tasks.protocol import Examples
from rankless.world.bits import bit_sum, short_hash
from rankless.world.process_group import World

_ADVICE = (
    "; expected the same update on every rank; use only gradients of Steps, no unseeded random numbers and "
    "no `if` on the rank (a loss that uses another model adds the gradients of one rank to that model; "
    "freeze it in that loss with requires_grad_(False))"
)

Loss = Callable[[nn.Module, Any], LossSum]
"""Computes the loss from the model and a micro-batch on the model's device."""


@dataclass(frozen=True)
class Step:
    """One step. Until the next step, each parameter's ``grad`` is the gradient of the mean loss.

    Attributes:
        number: index of the step, starting at 0.
        epoch: number of epochs completed after this step.
        loss: mean over the global batch, the same on every rank.
        gradient_norm: norm of the gradient before clipping.
    """

    number: int
    epoch: float
    loss: float
    gradient_norm: float


class Steps:
    """The steps of a custom training loop.

    Args:
        ranks: the ranks, from :func:`rankless.join`.
        model: the model, on the CPU. It is moved to the rank's device, and every rank gets the weights of
            rank 0.
        loss: a function of the model and a micro-batch that returns a :class:`rankless.LossSum`, with the
            summed loss and the number to divide it by. It may use other models, as in a GAN, whose gradients
            stay as they are; to train them, use other steps.
        data: a map-style data set or :class:`rankless.Examples`. Random transforms of a map-style data set
            are seeded for each item.
        batch: number of images per step, independent of the number of ranks.
        micro: number of images per micro-batch, which must divide ``batch``. Batch norms compute their
            statistics over a micro-batch. At most ``batch / micro`` ranks can share a step.
        seed: seed for the order of the images, dropout and transforms.
        clip: maximum norm of a step's gradient, or 0 for no clipping.
        workers: number of loader processes per rank. Results do not depend on it.
        collate: a function that combines a list of items into a micro-batch of tensors, or of tuples, lists
            and dicts of tensors.
        precision: precision of the forward pass, ``fp32`` or ``bf16``.

    Raises:
        UserError: the sizes do not match, there are more ranks than micro-batches, or ranks have different
            layers.
    """

    def __init__(
        self,
        ranks: World,
        model: nn.Module,
        loss: Loss,
        data: Any,
        *,
        batch: int = 64,
        micro: int = 8,
        seed: int = 0,
        clip: float = 0.0,
        workers: int = 0,
        collate: Callable[[list[Any]], Any] = default_collate,
        precision: Literal["fp32", "bf16"] = "fp32",
    ) -> None:
        if precision not in ("fp32", "bf16"):
            raise UserError(f"precision is '{precision}'; expected fp32 or bf16")
        self.ranks, self.model, self.workers, self.clip = ranks, model, workers, clip
        sizes: Any = {"images": batch, "micro": micro}  # the recipe reports invalid values
        self.recipe = Recipe(batch=sizes, seed=seed, precision=precision, reduce="exact")
        self.data: Examples = data if callable(getattr(data, "item", None)) else from_dataset(data, seed=seed)
        self.collate = _Collate(collate)
        synchronize(model, ranks)
        model.to(ranks.device)
        norms = batch_norms(model)
        others = ForwardState(model, norms, ranks, self.recipe.batch.micro_batches)
        self.statistics = RunningStatistics(norms, ranks.device, others)
        self.statistics.give_back()  # between steps, the norms have the user's settings
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.loop = _Loop(loss)  # the accumulator uses only a task's loss
        task: Any = self.loop
        self.accumulator = make_accumulator(task, model, self.statistics, self.recipe, ranks, owns_all=False)

    def epochs(self, count: int, start: int = 0) -> Iterator[Step]:
        """Yield each step after computing its gradients. The body of the loop applies them.

        Args:
            count: number of epochs, counted from step 0.
            start: the first step. To continue a loop, pass the ``number`` of its last step plus one.

        Raises:
            UserError: a loss or a gradient is not finite, or the weights differ between ranks. This is
                compared in every step, for the weights after the step before, and after the last step. If the
                loop ends with ``break``, the last update is not compared.
        """
        schedule = StepSchedule(replace(self.recipe, epochs=count), len(self.data))
        lines = schedule.lines(start, self.ranks.own_micro_batches(self.recipe.batch.micro_batches))
        options: Any = {"workers": self.workers, "pin_memory": self.ranks.device.type == "cuda"}
        with MicroBatches(self.data, self.collate, lines, seed=self.recipe.seed, **options) as batches:
            for number in range(start, schedule.steps):
                self.statistics.take()
                try:
                    with kept_generators():  # so that the loop's body draws the same numbers on every rank
                        step = self._step(number, batches, schedule.epoch(number + 1))
                finally:
                    self.statistics.give_back()
                yield step
        self._compare("after the last step")

    def _compare(self, when: str) -> None:
        if problem := weight_difference(when, self.model.state_dict(), self.ranks, _ADVICE):
            raise UserError(problem)

    def _step(self, number: int, batches: Iterator[Any], epoch: float) -> Step:
        self.statistics.begin()
        count = self.recipe.batch.micro_batches
        bits = (53 - count.bit_length()) // 2  # so that the sum of squares is exact in float64
        sums = [bit_sum(one).to(self.ranks.device) for one in _tensors(self.model)]
        self.loop.hash = short_hash(torch.stack(sums), bits).double()
        totals = self.accumulator.run(number, batches, lambda loss: loss, Flags())
        numbers = totals.read(divide_and_clip(self.parameters, totals.count, self.clip))
        # Of all numbers with this sum, equal ones have the smallest sum of squares.
        if int(numbers.parts[_HASH]) ** 2 != count * int(numbers.parts[_SQUARE]):
            self.statistics.undo()
            self._compare(f"before step {number}")
        if not math.isfinite(numbers.loss) or not math.isfinite(numbers.gradient_norm):
            self.statistics.undo()
            raise UserError(
                f"step {number}: the loss is {numbers.mean_loss:g}, and the gradient's norm is "
                f"{numbers.gradient_norm:g}; expected finite numbers; use a smaller learning rate"
            )
        self.statistics.end(totals.statistics, has_new=numbers.has_new)
        return Step(number, epoch, numbers.mean_loss, numbers.gradient_norm)


def _tensors(model: nn.Module) -> list[Tensor]:
    return [value for value in model.state_dict().values() if isinstance(value, Tensor)]


_HASH, _SQUARE = "hash of the weights", "square of the hash"


class _Loop:
    """The loss as a task. Its parts also contain the hash of the weights before the step, and its square."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self.hash = torch.zeros(())

    def loss(self, model: nn.Module, batch: _Batch) -> LossSum:
        loss = self._loss(model, batch.value)
        if not isinstance(loss, LossSum):
            return loss  # the accumulator reports it
        return replace(loss, parts={**loss.parts, _HASH: self.hash, _SQUARE: self.hash**2})


class _Collate:
    """Wraps ``collate`` to make batches of any type movable to a device."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, items: Sequence[Any]) -> _Batch:
        return _Batch(self.collate(list(items)))


@dataclass(frozen=True)
class _Batch:
    value: Any

    def to(self, device: torch.device) -> _Batch:
        return _Batch(_moved(self.value, device))


def _moved(value: Any, device: torch.device) -> Any:
    if callable(getattr(value, "to", None)):
        return value.to(device)
    if isinstance(value, dict):
        return {name: _moved(one, device) for name, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_moved(one, device) for one in value))
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return type(value)(_moved(one, device) for one in value)  # type: ignore[call-arg]
    return value
