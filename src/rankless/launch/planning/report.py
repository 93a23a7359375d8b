"""The text that ``rankless plan`` prints."""

from __future__ import annotations

from collections.abc import Iterator

from rankless.errors import counted
from rankless.launch.planning.model import SIGMA, Row
from rankless.launch.planning.plan import Plan
from rankless.launch.planning.units import shown_time

_HEAD = (
    f"{'devices':>8}{'batch':>9}  {'step':>9}{'images/s':>11}{'epoch':>11}{'efficiency':>12}{'network':>9}"
    f"{'ring':>10}{'loading/machine':>21}"
)


def lines(plan: Plan) -> Iterator[str]:
    """Yield the table, the assumptions and the advice of a plan, line by line."""
    if plan.checks:
        yield from _checks(plan)
        yield ""
    yield _HEAD
    for row in plan.rows:
        yield _line(row, plan)
    yield ""
    row = plan.asked
    where = f" on {counted(row.machines, 'machine')}" if row.machines > 1 else ""
    yield (
        f"→ {counted(row.devices, 'device')}{where}: step {shown_time(row.step)}, of which "
        f"{shown_time(row.network)} network; {row.images_per_second:,.1f} images/s"
    )
    if any(each.batch > plan.work.micro_batches * plan.work.micro for each in plan.rows):
        yield "* a larger global batch than the recipe's, which has too few micro-batches"
    for sentence in (*plan.assumptions, *_of_the_model(plan), *plan.advice):
        yield f"- {sentence}"


def _line(row: Row, plan: Plan) -> str:
    mark = "→" if row.devices == plan.asked.devices else " "
    star = "*" if row.batch > plan.work.micro_batches * plan.work.micro else " "
    need = f"{row.loading:,.0f} images/s"
    if row.loaders is not None:
        need += f", {row.loaders:,}p"
    speed = f"{shown_time(row.step):>9}{row.images_per_second:>11,.1f}{shown_time(row.epoch):>11}"
    network = f"{row.efficiency:>12.0%}{row.network_share:>9.1%}{shown_time(row.ring):>10}"
    return f"{mark}{row.devices:>7,}{row.batch:>9,}{star} {speed}{network}{need:>21}"


def _checks(plan: Plan) -> Iterator[str]:
    yield f"{'processes':>10}{'predicted':>12}{'measured':>12}{'difference':>12}"
    for check in plan.checks:
        yield (
            f"{check.processes:>10}{shown_time(check.predicted):>12}{shown_time(check.measured):>12}"
            f"{check.error:>+12.0%}"
        )


def _of_the_model(plan: Plan) -> Iterator[str]:
    yield (
        "network: the part of a step spent waiting for the fixed tree's exchange; ring: a step with a ring "
        "all-reduce in its place; p: loader processes needed to deliver that many images"
    )
    if plan.asked.devices > 1:
        yield (
            f"if the computing times of devices vary by {SIGMA:.0%}, all wait for the slowest of "
            f"{plan.asked.devices:,}, and a step takes {shown_time(plan.asked.uneven)}"
        )
