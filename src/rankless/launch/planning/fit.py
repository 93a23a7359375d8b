"""``rankless fit``: find the largest micro-batch that this device can train.

With ``batch_norm: sync``, a device holds all its micro-batches in memory at the same time, so the largest
share of a step is found instead.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from rankless.errors import OneValueError, ShortageError, UserError, counted
from rankless.hardware import memory
from rankless.hardware.compute_device import compute_device
from rankless.launch.opening import checked, devices_here, with_precision
from rankless.launch.planning.measurement_worker import guarded
from rankless.launch.planning.measuring import StepProcess
from rankless.recipe.schema import Batch, Recipe
from rankless.tasks import open_task, resolve_recipe
from rankless.world.tree import most_sums

_USABLE = 0.9  # fraction of the free memory; other programs, libraries and the exchange need some, too
_MICRO_BATCHES = 2  # per measured step; the gradients of the first one are in memory during the second one
_GIB = 1 << 30
_TOO_SMALL = "too small: batch norm sees one value per channel"


@dataclass(frozen=True)
class Tried:
    """The result for one micro-batch size (with ``batch_norm: sync``, for one size of a device's share)."""

    micro: int
    memory: int | None = None  # peak memory of a device in bytes; None if not measured
    speed: float | None = None  # images per second of a device; None if the size does not fit
    problem: str = ""  # why the size does not fit; empty if it fits

    @property
    def too_small(self) -> bool:
        """Whether a batch norm would see only one value per channel."""
        return self.problem == _TOO_SMALL

    @property
    def may_fit_if_larger(self) -> bool:
        """Whether a batch norm needs more values, or the sums of fewer micro-batches would fit."""
        return self.too_small or bool(self.problem and self.memory)


@dataclass(frozen=True)
class Fitted:
    """The result of :func:`fit`."""

    recipe: Recipe
    devices: int  # number of devices that share a step; processes on a CPU also share the memory
    free: int  # available memory of each device in bytes
    sees: bool  # whether the model has batch norms that compute statistics of each micro-batch
    tried: list[Tried]

    @property
    def largest(self) -> Tried:
        return [one for one in self.tried if not one.problem][-1]

    @property
    def is_sync(self) -> bool:
        """Whether the tried sizes are shares of a step (``batch_norm: sync``)."""
        return self.recipe.batch_norm == "sync"

    @property
    def needed(self) -> int:
        """The number of devices for a step if each computes the largest share (``batch_norm: sync``)."""
        batch = self.recipe.batch
        return -(-batch.micro_batches // (self.largest.micro // batch.micro))

    def as_json(self) -> dict[str, Any]:
        """Return the result as plain data, in bytes and images per second."""
        return {
            "largest": self.largest.micro,
            **({"devices_needed": self.needed} if self.is_sync else {}),
            "tried": [asdict(one) for one in self.tried],
            "free": self.free,
            "devices": self.devices,
            "batch_norm_sees": self.largest.micro if self.sees else None,
        }

    def lines(self) -> Iterator[str]:
        """Yield a table of the tried sizes, the largest and the fastest size, and hints, line by line."""
        batch, largest = self.recipe.batch, self.largest
        kind = "process" if compute_device().type == "cpu" else "GPU"
        yield f"{_gib(self.free)} for each {kind}, {counted(self.devices, 'device')}, {self.recipe.precision}"
        yield f"{'images held' if self.is_sync else 'batch.micro'}     memory  images/s"
        for one in self.tried:
            taken = _gib(one.memory) if one.memory else "–"
            yield f"{one.micro:11} {taken:>10}  {one.problem or f'{one.speed:8.1f}'}"
        best = max((one for one in self.tried if one.speed), key=lambda one: one.speed or 0.0)
        if self.is_sync:
            yield (
                f"the largest share that fits on a device: {counted(largest.micro, 'image')}; "
                f"batch.images={batch.images} needs {counted(self.needed, 'device')}"
            )
            yield from self._more_room()
            return
        yield f"the largest that fits: batch.micro={largest.micro}"
        if best.micro != largest.micro:
            yield f"the fastest: batch.micro={best.micro}"
        if self.sees and largest.micro != batch.micro:
            yield (
                f"batch norm then sees {counted(largest.micro, 'image')} at a time instead of {batch.micro}, "
                "so the weights change (batch.images and the learning rate stay the same)"
            )
        if batch.images // largest.micro == self.devices and largest.micro != batch.images:
            yield f"with a larger size, a step would have too few micro-batches for {self.devices} devices"
        yield from self._more_room()

    def _more_room(self) -> Iterator[str]:
        if not self.recipe.model.checkpointing and self.tried[-1].problem:
            yield "a larger size would fit with model.checkpointing=true"


def fit(recipe: Recipe, devices: int | None, say: Callable[[str], None], free: int | None = None) -> Fitted:
    """Find the largest micro-batch by training steps of increasing size in separate processes.

    By default, as many ``devices`` share a step as in training, and ``free`` is the memory in bytes that each
    of them can use. ``say`` is called with progress lines.
    """
    recipe, _ = checked(recipe, None, [])
    recipe = with_precision(resolve_recipe(recipe))
    ranks = devices or min(devices_here(recipe.threads), recipe.batch.images)
    on_cpu = compute_device().type == "cpu"
    if free is None:
        free = int(_USABLE * (memory.available() / ranks if on_cpu else torch.cuda.mem_get_info()[0]))
    is_sync = recipe.batch_norm == "sync"
    shares = [recipe.batch.micro * count for count in range(1, recipe.batch.micro_batches + 1)]
    sizes = shares if is_sync else _sizes(recipe.batch.images, ranks)
    search = _Search(_with_largest_inputs(recipe), ranks, free, on_cpu, say)
    search.run(sizes)
    tried = sorted(search.tried.values(), key=lambda one: one.micro)
    found = Fitted(recipe, ranks, free, search.sees and recipe.batch_norm == "micro", tried)
    if all(one.problem for one in tried):
        too_large = [one for one in tried if not one.too_small]
        if not too_large:
            raise UserError(
                f"batch norm sees one value per channel even with {counted(tried[-1].micro, 'image')}, too "
                "few for a variance; use a larger model.image_size or batch.images, or batch_norm=frozen"
            )
        share = "a device's share" if is_sync else "a micro-batch"
        raise UserError(
            f"{share} of {counted(too_large[0].micro, 'image')} does not fit into the memory of this "
            f"device ({_gib(free)} free): {too_large[0].problem}; use a smaller model or smaller images"
        )
    return found


def _sizes(images: int, ranks: int) -> list[int]:
    if ranks > images:
        raise UserError(
            f"--devices is {ranks}, but batch.images is {images}; use at most {counted(images, 'device')}"
        )
    return [size for size in range(1, images // ranks + 1) if images % size == 0]


def _with_largest_inputs(recipe: Recipe) -> Recipe:
    sizes = getattr(open_task(recipe).training_data(), "step_sizes", None)
    model, data = replace(recipe.model, freeze=0), recipe.data
    if recipe.data.multi_scale and sizes is not None:
        model, data = replace(model, image_size=sizes.choices()[-1]), replace(data, multi_scale=0.0)
    return replace(recipe, model=model, data=data)


class _Search:
    def __init__(
        self, recipe: Recipe, ranks: int, free: int, on_cpu: bool, say: Callable[[str], None]
    ) -> None:
        self.recipe, self.ranks, self.free, self.on_cpu, self.say = recipe, ranks, free, on_cpu, say
        self.is_sync = recipe.batch_norm == "sync"
        self.tried: dict[int, Tried] = {}
        self.sees = False  # whether the model has a batch norm in training mode

    def run(self, sizes: Sequence[int]) -> None:
        """Double the size until it does not fit into memory, and then bisect."""
        low, high, at = -1, len(sizes), 0
        while at < high:
            if not self._fits(sizes[at]):
                high = at
                break
            low = at
            doubled = (n for n in range(low + 1, len(sizes)) if sizes[n] >= 2 * sizes[low])
            at = next(doubled, max(low + 1, len(sizes) - 1))
        while low >= 0 and high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(sizes[middle]) else (low, middle)

    def _fits(self, micro: int) -> bool:
        expected = self._expected(micro)
        if self.on_cpu and expected > self.free:
            self.tried[micro] = Tried(micro, problem=f"not tried: would need about {_gib(expected)}")
        else:
            what = f"{counted(micro, 'image')} at a time" if self.is_sync else f"batch.micro={micro}"
            self.say(f"training with {what} …")
            self.tried[micro] = self._try(micro)
        return not self.tried[micro].problem or self.tried[micro].may_fit_if_larger

    def _expected(self, micro: int) -> int:
        """Extrapolate the bytes that a size needs from the two largest sizes that fit, or return 0."""
        known = sorted((one.micro, one.memory) for one in self.tried.values() if one.memory)
        if len(known) < 2:
            return 0
        (less, below), (size, taken) = known[-2:]
        return int(taken + (taken - below) / (size - less) * (micro - size))

    def _try(self, micro: int) -> Tried:
        each_micro, count = (self.recipe.batch.micro, 1) if self.is_sync else (micro, _MICRO_BATCHES)
        batch = Batch(images=count * micro, micro=each_micro)
        with tempfile.TemporaryFile() as log, StepProcess(replace(self.recipe, batch=batch), log) as process:
            try:
                with guarded(process.pid, self.free if self.on_cpu else 0) as over:
                    facts = process.answer()
                    self.sees = bool(facts["norms"])
                    process.ask(["fit", 0.0, 1])
                    answer = process.answer()
            except ShortageError as error:
                return Tried(micro, problem="; ".join(error.problems))
            except OneValueError:
                return Tried(micro, problem=_TOO_SMALL)
            except UserError:
                if not over:
                    raise
                return Tried(micro, problem=f"needs more than {_gib(self.free)}")
        each = answer["load"] + answer["compute"]
        seconds = each * batch.micro_batches / count + answer["update"] * micro / self.recipe.batch.images
        taken = int(answer["memory"]) + self._more_sums(micro) * int(facts["gradients"])
        problem = "too large with the partial sums of all micro-batches" if taken > self.free else ""
        return Tried(micro, taken, None if problem else micro / seconds, problem)

    def _more_sums(self, micro: int) -> int:
        """Return how many more sums of gradients than in a measured step are in memory at the same time."""
        if self.is_sync or self.recipe.reduce != "exact":
            return 0
        count = self.recipe.batch.images // micro
        most = max(most_sums(count, rank, self.ranks) for rank in range(self.ranks))
        return max(most - most_sums(_MICRO_BATCHES, 0, 1), 0)


def _gib(size: int) -> str:
    return f"{size / _GIB:.2f} GiB"
