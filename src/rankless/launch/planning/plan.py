"""``rankless plan``: predict the speed on more devices from a measured step and a performance model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rankless.errors import counted
from rankless.hardware.compute_device import compute_device
from rankless.hardware.cores import usable_cores
from rankless.launch import local
from rankless.launch.opening import checked, devices_here, with_precision
from rankless.launch.planning.measurement_worker import quick
from rankless.launch.planning.measuring import Exchanged, Steps, fitted, loopback, opened_steps
from rankless.launch.planning.model import SIGMA, Link, Machine, Row, Workload, row, rows
from rankless.launch.planning.units import PlanOptions, shown_bandwidth, shown_time
from rankless.launch.sharing import refuse_idle
from rankless.recipe.schema import Recipe
from rankless.tasks import resolve_recipe


def advice(devices: int, micro_batches: int, micro: int) -> Iterator[str]:
    """Yield advice about the batch if a step has fewer micro-batches than ``devices``."""
    if devices <= micro_batches:
        return
    needed = devices * micro
    yield (
        f"a step has {counted(micro_batches, 'micro-batch', 'micro-batches')}, so at most "
        f"{counted(micro_batches, 'device')} can share it; {counted(devices, 'device')} need "
        f"batch.images={needed} (or a smaller batch.micro), which changes the weights"
    )
    if needed <= 8192:
        yield (
            "up to about 8,000 images, a learning rate proportional to the batch size, after a warm-up of a "
            "few epochs, preserved the accuracy of ResNet-50 on ImageNet (Goyal et al. 2017); detectors have "
            "been trained in this way with batches of 256 images (Peng et al. 2018)"
        )
    elif needed <= 32768:
        yield (
            "beyond about 8,000 images, a learning rate proportional to the batch size lost accuracy (Goyal "
            "et al. 2017); layer-wise rates reach about 32,000: LARS for ResNet-50 (You et al. 2017) and "
            "LAMB for BERT (You et al. 2020); Rankless supports neither"
        )
    else:
        yield (
            "there are few results beyond the 32,000 images of LARS and LAMB (You et al. 2017, 2020); use a "
            "smaller batch.micro or fewer devices"
        )
    yield (
        "a batch larger than the task's gradient noise scale saves hardly any steps; this critical size is "
        "larger for harder tasks and grows during training (McCandlish et al. 2018)"
    )


LATENCY = 20e-6
"""Latency in seconds that is assumed if only the bandwidth is given."""
_STEPS, _WARM_UP = 12, 3  # training steps of a check, and excluded steps at its start


@dataclass(frozen=True)
class Checked:
    """A step's predicted and measured time in seconds with ``processes`` processes on this machine."""

    processes: int
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """The relative error of the prediction, which is positive if the predicted time is too long."""
        return self.predicted / self.measured - 1.0


@dataclass(frozen=True)
class Plan:
    """The result of :func:`plan`."""

    work: Workload
    machine: Machine
    link: Link
    asked: Row
    rows: list[Row]
    assumptions: list[str]  # sources of the inputs, as sentences
    advice: list[str]  # advice on a larger global batch, as sentences
    checks: list[Checked] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the plan as plain data, in seconds, bytes and bytes per second."""

        def of(each: Row) -> dict[str, Any]:
            return {**asdict(each), "network_share": each.network_share, "uneven": each.uneven}

        return {
            "asked": of(self.asked),
            "rows": [of(each) for each in self.rows],
            "step": asdict(self.work),
            "machine": asdict(self.machine),
            "link": asdict(self.link),
            "assumptions": self.assumptions,
            "advice": self.advice,
            "check": [{**asdict(each), "error": each.error} for each in self.checks],
        }


def plan(recipe: Recipe, options: PlanOptions, say: Callable[[str], None]) -> Plan:
    """Predict the speed on more devices, after measuring the inputs that the options do not set."""
    recipe, _ = checked(recipe, None, [])
    recipe = with_precision(resolve_recipe(recipe))
    refuse_idle("--check has {}", options.check, recipe)
    on_cpu = compute_device().type == "cpu"
    slots = max(usable_cores() // recipe.threads, 1)
    machines, each = options.devices or (1, devices_here(recipe.threads))
    several = options.step is None and on_cpu and max(each, *options.check, 0) > 1
    busy = slots if several else 1
    seconds: dict[int, list[float]] = {count: [] for count in options.check}
    with opened_steps(recipe, busy) as steps:
        if options.step is None:
            network = several or options.bandwidth is None
            exchanges = _measure(recipe, options, steps, busy, seconds, say, network=network)
            work, contention = steps.measured()
            inside = fitted(exchanges, work.add) if several else None
            machine = Machine(each, slots, contention, inside) if on_cpu else Machine(each)
            assumptions = list(_measured_assumptions(work, machine))
        else:
            work, machine = steps.given(options.step), Machine(each)
            exchanges = [loopback()] if options.bandwidth is None else []
            assumptions = [
                f"one device takes {shown_time(options.step)} for a step of the recipe (given), a third "
                "of it for forward passes; loading was not measured"
            ]
    link, about = _link(options, exchanges, work.add, in_parts=on_cpu and options.step is None)
    found = row(work, machine, link, machines * each)
    return Plan(
        work,
        machine,
        link,
        found,
        rows(work, machine, link, machines * each),
        [*assumptions, about],
        list(advice(found.devices, work.micro_batches, work.micro)),
        [
            Checked(count, row(work, replace(machine, devices=count), link, count).step, quick(taken))
            for count, taken in seconds.items()
        ],
    )


def _measure(
    recipe: Recipe,
    options: PlanOptions,
    steps: Steps,
    busy: int,
    seconds: Mapping[int, list[float]],
    say: Callable[[str], None],
    *,
    network: bool,
) -> list[Exchanged]:
    """Alternate between the measurements, so that other work on the machine affects all of them equally."""
    exchanges = []
    alone = "one process" if busy == 1 else f"one process and of {busy} at the same time"
    for _ in range(options.rounds if seconds else 1):
        say(f"measuring steps of {alone} …")
        steps.measure(busy, options.seconds)
        if network:
            say("measuring the exchange between two processes on this machine …")
            exchanges.append(loopback())
        for count, taken in seconds.items():
            say(f"training with {counted(count, 'process', 'processes')} …")
            taken += local.step_seconds(recipe, count, _STEPS, _WARM_UP)
    return exchanges


def _measured_assumptions(work: Workload, machine: Machine) -> Iterator[str]:
    yield (
        f"one device takes {shown_time(work.computing(work.micro_batches))} for a step: per micro-batch, "
        f"{shown_time(work.load)} loading, {shown_time(work.forward)} forward, {shown_time(work.backward)} "
        f"backward; {shown_time(work.update)} for the update (measured here)"
    )
    if machine.slots is None:
        return
    slower = f" (each {machine.contention:.2f} times as slow as alone, measured)"
    yield (
        "every machine is assumed to be like this one: up to "
        f"{counted(machine.slots, 'process', 'processes')} compute at the same time"
        f"{slower if machine.contention > 1 else ''}; more processes share the cores evenly"
    )
    if machine.inside is not None and machine.inside.copy:
        yield (
            "the processes of a machine exchange data through its memory at "
            f"{shown_bandwidth(1 / machine.inside.copy)} (measured between two processes)"
        )


def _link(
    options: PlanOptions, exchanges: Sequence[Exchanged], add: float, *, in_parts: bool
) -> tuple[Link, str]:
    if options.bandwidth is not None:
        latency = LATENCY if options.latency is None else options.latency
        link = Link(options.bandwidth, latency, in_parts=in_parts)
        about = "given" if options.latency is not None else "bandwidth given, latency assumed"
        order = "in parts, over gloo" if in_parts else "bucket by bucket, over NCCL"
        return link, (
            f"network: {shown_bandwidth(link.bandwidth)} for each machine and for each device, "
            f"{shown_time(link.latency)} latency ({about}); transfers overlap with computing ({order})"
        )
    link = replace(fitted(exchanges, add), copy=0.0)
    if options.latency is not None:
        link = replace(link, latency=options.latency)
    return link, (
        f"network: {shown_bandwidth(link.bandwidth)}, {shown_time(link.latency)} latency, measured between "
        "two processes on this machine over gloo and the loopback interface, where the cores move the bytes "
        "and nothing overlaps; for other machines, use --bandwidth and --latency"
    )


_HEAD = (
    f"{'devices':>8}{'batch':>7} {'step':>8}{'images/s':>9}{'epoch':>8}{'efficiency':>11}{'network':>8}"
    f"{'ring':>8}{'loading':>13}"
)


def lines(plan: Plan) -> Iterator[str]:
    """Yield the table, the assumptions and the advice of a plan, line by line."""
    if plan.checks:
        yield f"{'processes':>10}{'predicted':>12}{'measured':>12}{'difference':>12}"
        for check in plan.checks:
            times = f"{shown_time(check.predicted):>12}{shown_time(check.measured):>12}"
            yield f"{check.processes:>10}{times}{check.error:>+12.0%}"
        yield ""
    yield _HEAD
    yield from (_line(each, plan) for each in plan.rows)
    yield ""
    found = plan.asked
    where = f" on {counted(found.machines, 'machine')}" if found.machines > 1 else ""
    yield (
        f"→ {counted(found.devices, 'device')}{where}: step {shown_time(found.step)}, of which "
        f"{shown_time(found.network)} network; {found.images_per_second:,.1f} images/s"
    )
    if any(each.batch > plan.work.micro_batches * plan.work.micro for each in plan.rows):
        yield "* with a larger global batch, because the recipe's has too few micro-batches"
    for sentence in (*plan.assumptions, *_model_notes(plan), *plan.advice):
        yield f"- {sentence}"


def _line(one: Row, plan: Plan) -> str:
    mark = "→" if one.devices == plan.asked.devices else " "
    star = "*" if one.batch > plan.work.micro_batches * plan.work.micro else " "
    need = f"{one.loading:,.0f}/s"
    if one.loaders is not None:
        need += f", {one.loaders:,}p"
    digits = 1 if one.images_per_second < 10_000 else 0
    speed = f"{shown_time(one.step):>8}{one.images_per_second:>9,.{digits}f}{shown_time(one.epoch):>8}"
    network = f"{one.efficiency:>11.0%}{one.network_share:>8.1%}{shown_time(one.ring):>8}"
    return f"{mark}{one.devices:>7,}{one.batch:>7,}{star}{speed}{network}{need:>13}"


def _model_notes(plan: Plan) -> Iterator[str]:
    yield (
        "network: the part of a step spent waiting for the fixed tree's exchange; ring: the time of a step "
        "with a ring all-reduce instead of the tree; loading: the images that each machine must load per "
        "second and, with p, the number of loader processes needed for this"
    )
    if plan.asked.devices > 1:
        yield (
            f"if the computing times of devices vary by {SIGMA:.0%}, all {plan.asked.devices:,} "
            f"wait for the slowest one, and a step takes {shown_time(plan.asked.uneven)}"
        )
