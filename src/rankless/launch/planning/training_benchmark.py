"""``rankless benchmark``: compare a recipe's training speed with that of a plain PyTorch loop."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from rankless.data.builtin import is_built_in
from rankless.engine.loader_count import loader_processes
from rankless.errors import ShortageError, UserError, counted
from rankless.hardware import memory
from rankless.hardware.compute_device import compute_device
from rankless.hardware.cores import usable_cores
from rankless.hardware.precision import resolve
from rankless.launch.devices import visible
from rankless.launch.local import ranks_for
from rankless.launch.opening import begin, checked, with_precision
from rankless.launch.planning.bare_process import PURE
from rankless.launch.planning.measurement_worker import MeasurementProcess, guarded, rank_variables
from rankless.recipe.load import to_json
from rankless.recipe.schema import Recipe
from rankless.runs.directory import RunDirectory
from rankless.tasks import resolve_recipe

Mode = tuple[int, str]
"""A mode of the plain loop: the number of images at a time, and the precision."""
_MOST = 200  # steps per turn
_USABLE = 0.9  # fraction of the free memory; other programs need some, too


@dataclass(frozen=True)
class Shares:
    """The parts of a step on rank 0, as fractions (0–1) of its duration."""

    compute: float  # forward and backward passes
    waiting: float
    network: float  # exchanging data with other ranks, including the wait for them
    other: float  # optimizer, weight averaging and journal


class _Processes(ExitStack):
    """A context manager that ends its processes on exit."""

    def __init__(self) -> None:
        super().__init__()
        self.log = self.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - closed with this context
        self.processes: list[MeasurementProcess] = []

    def _answers(self) -> list[dict[str, Any]]:
        return [process.answer() for process in self.processes]


class Ranks(_Processes):
    """Processes that train a recipe with Rankless and measure its speed.

    Attributes:
        seconds: durations of the steps on rank 0, one list per turn.
        memory: largest peak memory of a rank in bytes.
        startup: duration until the end of the first step on rank 0 in seconds.
    """

    def __init__(self, recipe: Recipe, ranks: int, folder: Path) -> None:
        super().__init__()
        self.recipe, self.ranks, self.folder = recipe, ranks, folder
        self.seconds: list[list[float]] = []
        self.memory = 0
        self.startup = 0.0
        self._parts: dict[str, float] = defaultdict(float)
        # Loaders prepare batches during the turn of the plain loop; steps that use them are excluded.
        workers = loader_processes(recipe, ranks, compute_device().type)
        self._prepared = -(-2 * workers * ranks // recipe.batch.micro_batches)

    def __enter__(self) -> Self:
        run = RunDirectory(self.folder / "run")
        run.path.mkdir()
        begin(run, self.recipe)
        for rank in range(self.ranks):
            process = MeasurementProcess(
                "benchmark_rank",
                f"training with {counted(self.ranks, 'device')}",
                self.log,
                variables=rank_variables(rank, self.ranks),
                arguments=(str(run.path), str(self.folder / "meeting")),
            )
            self.processes.append(self.enter_context(process))
        try:
            for process in self.processes:
                process.ask(to_json(self.recipe))
            self.startup = self._answers()[0]["steps"][0]["seconds"]  # the first step allocates memory
            self._usual = self._turn(1)[0]["seconds"]
        except BaseException:
            self.close()
            raise
        return self

    def turn(self, budget: float) -> None:
        """Train for about ``budget`` seconds, but at least one step."""
        count = min(max(round(budget / self._usual), 1), _MOST)
        steps = self._turn(self._prepared + count)[self._prepared :]
        self.seconds.append([step["seconds"] for step in steps])
        self._usual = statistics.fmean(self.seconds[-1])
        for step in steps:
            for part, seconds in step.items():
                self._parts[part] += seconds

    def shares(self) -> Shares:
        """Return the parts of rank 0's steps as fractions."""
        total = self._parts["seconds"]
        waiting, network = self._parts["waited"] / total, self._parts["network"] / total
        inside = self._parts["accumulated"] / total
        compute = max(inside - waiting - network, 0.0)
        return Shares(compute, waiting, network, max(1.0 - compute - waiting - network, 0.0))

    def _turn(self, count: int) -> list[dict[str, float]]:
        for process in self.processes:
            process.ask(count)
        answers = self._answers()
        self.memory = max(answer["memory"] for answer in answers)
        steps: list[dict[str, float]] = answers[0]["steps"]
        return steps


class Bare(_Processes):
    """A plain PyTorch loop in a separate process.

    Attributes:
        rounds: durations of the steps by mode, one list per turn.
        memory: peak memory in bytes after the first turn of each mode.
    """

    def __init__(self, recipe: Recipe, threads: int) -> None:
        super().__init__()
        self.recipe, self.threads = recipe, threads
        self.rounds: dict[Mode, list[list[float]]] = defaultdict(list)
        self.memory: dict[Mode, int] = {}
        self._usual: dict[Mode, float] = {}

    def largest(self, images: int) -> int:
        """Return the size of the largest batch that fits into memory, at most ``images``."""
        while True:
            over: list[int] = []
            try:
                self._start()
                with guarded(self.processes[0].pid, self._free()) as over:
                    self.turn((images, self.recipe.precision), 0.0)
                return images
            except UserError as error:
                is_shortage = isinstance(error, ShortageError) or over
                if not is_shortage or images <= self.recipe.batch.micro:
                    raise
            self.processes.pop().end()
            images = self._smaller(images)

    def turn(self, mode: Mode, budget: float) -> None:
        """Train for about ``budget`` seconds, but at least one step."""
        count = min(max(round(budget / self._usual[mode]), 1), _MOST) if mode in self._usual else 1
        self.processes[0].ask([*mode, count])
        (answer,) = self._answers()
        self.rounds[mode].append(answer["seconds"])
        self._usual[mode] = statistics.fmean(answer["seconds"])
        self.memory.setdefault(mode, answer["memory"])

    def forget(self) -> None:
        """Discard the measurements but keep the expected duration of a step."""
        self.rounds.clear()

    def _start(self) -> None:
        process = self.enter_context(MeasurementProcess("bare_process", "a plain loop", self.log))
        self.processes.append(process)
        process.ask([to_json(self.recipe), self.threads])
        process.answer()

    def _free(self) -> int:
        return int(_USABLE * memory.available()) if compute_device().type == "cpu" else 0

    def _smaller(self, images: int) -> int:
        whole, least = self.recipe.batch.images, self.recipe.batch.micro
        return max((size for size in range(least, images // 2 + 1) if whole % size == 0), default=least)


_ROUNDS = 5
_ENDLESS = 1_000_000  # epochs, and steps
_RATE = 1e-9  # learning rate that prevents divergence
_DISTURBED = 1.3
"""Ratio of best to median speed above which a measurement counts as disturbed by other work."""


_WAITING, _NETWORK, _OTHER = 0.05, 0.15, 0.15
"""Minimum fractions of a step's time for which advice is given."""
_WORTH = 1.05
"""Minimum speedup for which advice is given."""


@dataclass(frozen=True)
class Speed:
    """The training speed of Rankless, or of the plain loop in one mode."""

    what: str  # rankless or plain
    images: int  # number of images at a time (Rankless's micro-batch or the plain loop's batch)
    precision: str
    best: float  # images per second in the fastest step
    median: float  # images per second in the median step
    beside: tuple[float, float]  # best and median speed relative to the plain loop's first mode
    memory: int  # peak memory of a process or a GPU in bytes


@dataclass(frozen=True)
class Bench:
    """The result of :func:`bench`."""

    recipe: Recipe
    devices: int
    workers: int
    cores: int  # usable cores on this machine
    step: float  # median duration of a Rankless step in seconds
    shares: Shares
    speeds: list[Speed]  # of Rankless, of the plain loop with its largest batch, and in other modes
    notes: list[str]
    eager: Speed | None = None  # of Rankless with compute=eager, if the recipe's compute is compiled

    def advice(self) -> list[tuple[str, str]]:
        """Return pairs of a recipe key (or an option) and advice about it, starting with the most useful."""
        found = [*_images(self), *_micro(self), *_precision(self)]
        shares = self.shares
        if shares.network >= _NETWORK:
            text = (
                f"{shares.network:.0%} of a step is spent waiting for other devices: fewer devices or a "
                "larger batch.images may be better; `rankless plan` predicts the speed"
            )
            found.append(("--devices", text))
        if shares.other >= _OTHER:
            text = (
                f"{shares.other:.0%} of a step is spent on the optimizer and other work that is done once "
                "per step: a larger batch needs fewer steps but changes the weights"
            )
            found.append(("batch.images", text))
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the result as plain data, in seconds, bytes and images per second."""
        batch = self.recipe.batch
        return {
            "devices": self.devices,
            "workers": self.workers,
            "batch": {"images": batch.images, "micro": batch.micro},
            "precision": self.recipe.precision,
            "step": self.step,
            "shares": asdict(self.shares),
            "speeds": [asdict(one) for one in self.speeds],
            **({"eager": asdict(self.eager)} if self.eager else {}),
            "advice": [{"key": key, "text": text} for key, text in self.advice()],
            "notes": self.notes,
        }

    def what(self) -> str:
        """Describe the devices and the batch."""
        batch, on_cpu = self.recipe.batch, compute_device().type == "cpu"
        ranks = counted(self.devices, "process", "processes") if on_cpu else counted(self.devices, "GPU")
        return f"{ranks}, {batch.images} images per step in micro-batches of {batch.micro}"

    def lines(self) -> Iterator[str]:
        """Yield a table of at most 80 columns, the parts of a step, notes and advice, line by line."""
        yield f"{'images/s':36}{'best':>8}{'median':>8}{'vs. plain':>16}{'memory':>12}"
        ours, *plain = self.speeds
        names = {"rankless": "train compiled" if self.eager else "rankless train", "eager": "train eager"}
        for one in (ours, *([self.eager] if self.eager else []), *plain):
            name = names.get(one.what, "plain loop")
            name = f"{name}, {one.images} at a time, {one.precision}"
            beside = f"{one.beside[0]:.2f}; {one.beside[1]:.2f}"
            taken = f"{one.memory / 2**30:.2f} GiB" if one.memory else "–"
            yield f"{name:36}{one.best:8.1f}{one.median:8.1f}{beside:>16}{taken:>12}"
        yield ""
        shares = self.shares
        yield (
            f"a step of {self.step * 1000:,.0f} ms: compute {shares.compute:.0%}, waiting for images "
            f"{shares.waiting:.0%}, network {shares.network:.0%}, other {shares.other:.0%}"
        )
        yield from self.notes
        for key, text in (advice := self.advice()):
            yield f"{key}: {text}"
        if not advice:
            yield "changing workers, data.cache, batch.micro or precision would not help much"


def _images(found: Bench) -> Iterator[tuple[str, str]]:
    share, data = found.shares.waiting, found.recipe.data
    if share < _WAITING:
        return
    idle = found.cores - found.devices * found.recipe.threads
    more = max(found.workers + 1, 2 * found.workers)
    cores = f"{idle} of {found.cores} cores are free" if idle > 0 else "no core is free"
    yield (
        "workers",
        f"{share:.0%} of a step is spent waiting for images, with "
        f"{counted(found.workers, 'loader process', 'loader processes')} per device; try workers={more} "
        f"({cores})",
    )
    if data.cache == "none" and not is_built_in(data.root):
        yield "data.cache", "with ram or disk, every image is decoded only once; the weights stay the same"


def _micro(found: Bench) -> Iterator[tuple[str, str]]:
    batch, whole = found.recipe.batch, found.speeds[1]
    parts = [one for one in found.speeds[2:] if (one.images, one.precision) == (batch.micro, whole.precision)]
    gain = 1 / parts[0].beside[0] if parts else 1.0
    largest = batch.images // found.devices
    if gain < _WORTH or largest <= batch.micro:
        return
    sizes = (size for size in range(batch.micro + 1, largest + 1) if batch.images % size == 0)
    larger = next(sizes, None)
    if larger is None or batch.images // larger < found.devices:
        return
    sees = (
        ""
        if found.recipe.batch_norm != "micro"
        else "; batch norm then sees more images at a time, so the weights change"
    )
    yield (
        "batch.micro",
        f"{whole.images} images at a time are {gain:.2f} times as fast as {batch.micro}: try "
        f"batch.micro={larger} (`rankless fit` finds the largest){sees}",
    )


def _precision(found: Bench) -> Iterator[tuple[str, str]]:
    whole = found.speeds[1]
    for one in found.speeds[2:]:
        is_other = one.images == whole.images and one.precision != whole.precision
        if is_other and not one.precision.startswith(PURE) and one.beside[0] >= _WORTH:
            yield (
                "precision",
                f"the plain loop is {one.beside[0]:.2f} times as fast in {one.precision} as in "
                f"{whole.precision}: try precision={one.precision}, which changes the weights",
            )


def bench(
    recipe: Recipe, devices: int | None, seconds: float, say: Callable[[str], None], pure: bool = False
) -> Bench:
    """Train a recipe with Rankless and with a plain loop in turns, and compare the speeds.

    By default, as many ``devices`` share a step as in training. The measurement takes about ``seconds``,
    not counting startup. With ``pure``, the plain loop is also measured in half precision without float32
    weights.
    """
    recipe, _ = checked(recipe, None, [])
    busy = os.getloadavg()[0] > usable_cores() / 2  # before this function starts processes
    with ExitStack() as stack:
        count = stack.enter_context(visible(devices))
        recipe = steady(resolve_recipe(recipe))
        ranks = ranks_for(count, recipe)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rankless-bench-")))
        say(f"training with {counted(ranks, 'device')} …")
        ours = stack.enter_context(Ranks(recipe, ranks, folder))
        eager = None
        if recipe.compute == "compiled":
            say("training with compute=eager …")
            (folder / "eager").mkdir()
            eager = stack.enter_context(Ranks(replace(recipe, compute="eager"), ranks, folder / "eager"))
        say("training in a plain loop …")
        bare = stack.enter_context(Bare(recipe, _threads(recipe, ranks)))
        whole = bare.largest(recipe.batch.images)
        modes = _modes(recipe, whole, pure)
        for mode in modes[1:]:
            bare.turn(mode, 0.0)
        bare.forget()
        say(f"measuring for about {seconds:.0f} s …")
        turns: list[Callable[[float], None]] = [ours.turn, *(partial(bare.turn, mode) for mode in modes)]
        turns += [eager.turn] if eager else []
        for number in range(_ROUNDS):
            for turn in turns if number % 2 else reversed(turns):
                turn(seconds / _ROUNDS / len(turns))
        return _summary(recipe, ranks, ours, eager, bare, modes, busy)


def steady(recipe: Recipe) -> Recipe:
    """Return the recipe with uniform steps and without evaluations or checkpoints."""
    return replace(
        with_precision(recipe),
        data=replace(recipe.data, multi_scale=0.0),
        model=replace(recipe.model, freeze=0),
        epochs=_ENDLESS,
        optim=replace(recipe.optim, lr=_RATE),
        evaluate=replace(recipe.evaluate, every=0),
        checkpoint=replace(recipe.checkpoint, every=_ENDLESS),
    )


def _threads(recipe: Recipe, ranks: int) -> int:
    # On a CPU, the plain loop gets as many threads as all ranks together.
    return recipe.threads if compute_device().type == "cuda" else min(ranks * recipe.threads, usable_cores())


def _modes(recipe: Recipe, whole: int, pure: bool = False) -> list[Mode]:
    modes: list[Mode] = [(whole, recipe.precision)]
    if recipe.batch.micro < whole:
        modes.append((recipe.batch.micro, recipe.precision))
    fast = resolve("auto", compute_device(), recipe.cpu_isa)
    if recipe.precision in ("fp32", "tf32") and fast == "bf16":
        modes.append((whole, fast))
    if pure:
        halves = [one for one in (recipe.precision, fast) if one in ("bf16", "fp16")]
        modes.append((whole, PURE + (halves or ["bf16"])[0]))
    return modes


def _summary(
    recipe: Recipe,
    ranks: int,
    ours: Ranks,
    eager: Ranks | None,
    bare: Bare,
    modes: Sequence[Mode],
    busy: bool,
) -> Bench:
    images = recipe.batch.images
    plain = bare.rounds[modes[0]]

    def speed(what: str, at_once: int, precision: str, rounds: list[list[float]], memory: int) -> Speed:
        steps = [each for one in rounds for each in one]
        pairs = (statistics.fmean(b) / statistics.fmean(a) for a, b in zip(rounds, plain, strict=True))
        best = min(map(min, plain)) / min(steps)
        return Speed(
            what,
            at_once,
            precision,
            images / min(steps),
            images / statistics.median(steps),
            (best, statistics.median(pairs)),
            memory,
        )

    def of_ranks(what: str, measured: Ranks) -> Speed:
        return speed(what, recipe.batch.micro, recipe.precision, measured.seconds, measured.memory)

    speeds = [of_ranks("rankless", ours)]
    speeds += [speed("plain", *mode, bare.rounds[mode], bare.memory[mode]) for mode in modes]
    notes = []
    if eager:
        notes.append(
            f"the first step ended after {ours.startup:,.0f} s with compute=compiled, and after "
            f"{eager.startup:,.0f} s with compute=eager"
        )
    if modes[0][0] < images:
        notes.append(
            f"the plain loop uses {counted(modes[0][0], 'image')} at a time: {images} do not fit into memory"
        )
    if busy or any(one.best > _DISTURBED * one.median for one in speeds):
        notes.append(
            "other work on this machine disturbed the measurement; compare the best steps, or measure again"
        )
    if compute_device().type == "cuda" and ranks > 1:
        notes.append(f"the plain loop uses one GPU: perfect scaling would be {ranks} times its speed")
    if modes[-1][1].startswith(PURE):
        notes.append(
            f"{modes[-1][1]} (Apex's O3) is only a reference for speed: recipes do not support it, because "
            "weights in half precision lose small updates to rounding"
        )
    return Bench(
        recipe,
        ranks,
        loader_processes(recipe, ranks, compute_device().type),
        usable_cores(),
        statistics.median(each for one in ours.seconds for each in one),
        ours.shares(),
        speeds,
        notes,
        of_ranks("eager", eager) if eager else None,
    )
