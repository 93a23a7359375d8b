"""The timeline of a run, which shows how its time was spent and marks pauses, restarts and errors."""

from __future__ import annotations

from dataclasses import dataclass

from rankless.report.charts import Axes, Line, Mark, Point, line_chart, smoothed, stacked_chart
from rankless.report.collected import Collected
from rankless.report.markup import duration
from rankless.report.training import marked, steps_axes

_UNITS = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
_PAUSE = 0.02
"""Fraction of the total time above which the time between two steps is drawn as a gap."""
_MOST_RANKS = 16
_LONGEST = 1e10  # seconds; a longer time means that the clock was wrong


@dataclass(frozen=True)
class _Clock:
    """The horizontal axis: the time since the start of the first step, or steps if no times are known."""

    run: Collected
    whole: float

    @property
    def unit(self) -> tuple[float, str]:
        return next(unit for unit in _UNITS if self.whole >= 2 * unit[0] or unit[0] == 1.0)

    def at(self, step: float, when: float | None = None) -> float:
        if not self.whole:
            return step
        return self.run.elapsed(step, when) / self.unit[0]

    def axes(self) -> Axes:
        if not self.whole:
            return steps_axes(self.run)
        marks = [
            Mark(x, label, kind)
            for entry, label, kind in marked(self.run)
            if (x := self.at(entry["step"], entry["when"])) < _LONGEST
        ]
        end = max([self.whole / self.unit[0], *(mark.x for mark in marks)])
        return Axes(f"{self.unit[1]} since the start", x_range=(0, end), marks=marks)


def time_charts(run: Collected) -> str:
    """Return charts that show how each step's time was spent and how the ranks' times differ."""
    whole = run.times[1] - run.times[0] if run.times else 0.0
    clock = _Clock(run, whole if whole < _LONGEST else 0.0)
    rows, pauses = _parts(run, clock)
    smooth = [
        Line(name, _with_pauses(smoothed(line), pauses), color)
        for color, (name, line) in enumerate(rows.items())
    ]
    note = "Rank 0, smoothed. On GPUs, the host does not see what the device waits for."
    if clock.whole:
        steps = run.steps.total("seconds")
        note += f" The steps took {duration(steps)}"
        if (rest := clock.whole - steps) >= 1:
            note += f", and evaluations, checkpoints and pauses took {duration(rest)}"
        note += "."
    note += " The images/s and the waiting time above exclude the first step of each start."
    return stacked_chart("Step time in ms", smooth, clock.axes(), note) + _spread(run, clock)


def _parts(run: Collected, clock: _Clock) -> tuple[dict[str, list[Point]], list[tuple[float, float]]]:
    """Return the milliseconds of each step by part, and the start and end of each pause."""
    rows: dict[str, list[Point]] = {"computing": [], "waiting for images": [], "network and other ranks": []}
    pauses: list[tuple[float, float]] = []
    before = 0.0
    for one in run.steps.bins:
        seconds = one.mean("seconds")
        if seconds is None:
            continue
        waited, network = one.mean("waited") or 0.0, one.mean("network") or 0.0
        x = (one.first + one.last) / 2
        if clock.whole and (elapsed := one.mean("elapsed")) is not None:
            half = seconds * (one.counts["seconds"] - 1) / 2
            began, x = (elapsed - half - seconds) / clock.unit[0], elapsed / clock.unit[0]
            if before and began - before > _PAUSE * clock.whole / clock.unit[0]:
                pauses.append((before, began))
            before = (elapsed + half) / clock.unit[0]
        for line, value in zip(rows.values(), (seconds - waited - network, waited, network), strict=True):
            line.append((x, 1e3 * min(max(value, 0.0), 1e9)))
    return rows, pauses


def _with_pauses(points: list[Point], pauses: list[tuple[float, float]]) -> list[Point]:
    """Insert points with value zero at both ends of each pause."""
    return sorted([*points, *((x, 0.0) for pause in pauses for x in pause)], key=lambda point: point[0])


def _spread(run: Collected, clock: _Clock) -> str:
    ranks = max((len(times) for _, times in run.spread), default=0)
    lines = [
        Line(
            f"rank {rank}",
            [(clock.at(step), times[rank]) for step, times in run.spread if rank < len(times)],
            rank,
            "dots",
        )
        for rank in range(min(ranks, _MOST_RANKS))
    ]
    return line_chart(
        "Computing time per rank in ms",
        lines,
        clock.axes(),
        "Median per micro-batch since the previous evaluation, without waiting for other ranks.",
    )
