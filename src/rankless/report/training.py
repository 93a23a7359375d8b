"""Panels of a run's training: losses, learning rates, scores, times and events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankless.report.charts import FEW, Axes, Line, Mark, Point, line_chart, smoothed, stacked_chart
from rankless.report.collected import Collected, as_number
from rankless.report.markup import card, duration, number, table, text

_GROUPS = (
    ("Average precision", ("AP", "AP50", "AP75")),
    ("AP by object size", ("APs", "APm", "APl")),
    ("Average recall", ("AR1", "AR10", "AR100")),
    ("Accuracy", ("top1", "top5")),
    ("Mean over classes", ("precision", "recall", "f1")),
)
_UNSHOWN = ("ARs", "ARm", "ARl", "unreadable")
_MOST_MARKS = 40
_SEEN = 0.25
"""Fraction of a panel's height below which a line looks flat."""
_SERIOUS = ("death", "error", "not saved", "late", "slow", "full disk", "silent error")
_UNITS = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
_PAUSE = 0.02
"""Fraction of the total time above which the time between two steps is drawn as a gap."""
_MOST_RANKS = 16
_LONGEST = 1e10  # seconds; a longer time means that the clock was wrong


def marked(run: Collected) -> list[tuple[dict[str, Any], str, str]]:
    """Return the restarts and failures among the events, each with the label and the kind of its mark."""
    found = []
    for entry in run.events:
        kind = entry["event"]
        if kind == "resume" or kind in _SERIOUS:
            label = f"{kind} after step {entry['step']}: {entry.get('text') or entry.get('reason') or ''}"
            found.append((entry, label.rstrip(": "), "bad" if kind in _SERIOUS else "start"))
    return found[-_MOST_MARKS:]


def steps_axes(run: Collected, *, log: bool = False) -> Axes:
    """Return the axes of a chart over all steps, with marks for events."""
    marks = [Mark(entry["step"], label, kind) for entry, label, kind in marked(run)]
    return Axes(x_range=(0, max(run.step, 1)), log=log, marks=marks)


def score_points(run: Collected, name: str) -> list[Point]:
    """Return one point per evaluation that has the score ``name``."""
    return [
        (float(step), float(scores[name]))
        for step, scores in run.evaluations
        if as_number(scores.get(name)) is not None
    ]


def loss_charts(run: Collected) -> str:
    """Return charts of the losses, the parts of the loss, the learning rate and the gradient norm."""
    steps = run.steps
    loss, norm = list(steps.points("loss")), list(steps.points("gradient_norm"))
    validation = score_points(run, "loss")
    parts = [name for name in steps.names if name.startswith("part:")]
    parts = [name for name in parts if f"part:{name.partition('/')[2]}" not in parts]  # no single heads
    # With few steps, the smoothed line would equal the line of the steps and hide it.
    few, smooth = len(loss) < FEW, "" if len(loss) < FEW else ", smoothed"
    gray = "Gray: each step." if steps.width == 1 else f"Gray: means of {steps.width:,} steps."
    gray = "Each step, not smoothed." if few else gray
    lines = [] if few else [Line("each step", loss, None, "faint")]
    lines += [Line(f"training{smooth}", smoothed(loss), 0), Line("validation", validation, 1, "dots")]
    axes = steps_axes(run, log=spans_decades([*loss, *validation]))
    charts = [line_chart("Loss", lines, axes, gray)]
    if len(parts) > 1:
        lines = [
            Line(name.removeprefix("part:"), smoothed(list(steps.points(name))), color)
            for color, name in enumerate(parts)
        ]
        for group in by_scale(lines):
            title = "Parts of the training loss"
            if len(group) < len(lines):
                title += f": {', '.join(line.name for line in group)}"
            charts.append(line_chart(title, group, steps_axes(run), "" if few else "Smoothed."))
    lines = [Line("learning rate", list(steps.points("lr")))]
    charts.append(line_chart("Learning rate", lines, steps_axes(run)))
    lines = [] if few else [Line("each step", norm, None, "faint")]
    lines.append(Line("each step" if few else "smoothed", smoothed(norm), 2))
    axes = steps_axes(run, log=spans_decades(norm))
    charts.append(
        line_chart("Gradient norm", lines, axes, f"The norm of the mean gradient before clipping. {gray}")
    )
    return "".join(charts)


def by_scale(lines: Sequence[Line]) -> list[list[Line]]:
    """Group lines into panels by scale, so that no line looks flat next to the others."""
    groups, rest = [], [line for line in lines if line.points]
    while rest:
        spans = [(min(y for _, y in line.points), max(y for _, y in line.points)) for line in rest]
        whole = max(high for _, high in spans) - min(low for low, _ in spans)
        seen = [high - low >= _SEEN * whole for low, high in spans]
        seen[0] |= not any(seen)  # all lines are flat and far apart
        groups.append([line for line, fits in zip(rest, seen, strict=True) if fits])
        rest = [line for line, fits in zip(rest, seen, strict=True) if not fits]
    return groups


def spans_decades(points: Sequence[Point]) -> bool:
    """Check whether values span two decades or more and need a logarithmic axis."""
    values = [y for _, y in points]
    return bool(values) and min(values) > 0 and max(values) > 100 * min(values)


def score_charts(run: Collected) -> str:
    """Return charts of the scores by step, with related scores in one panel."""
    names = {
        name: None
        for _, scores in run.evaluations
        for name, value in scores.items()
        if isinstance(value, float)
    }
    charts = []
    for title, group in _GROUPS:
        if group[0] in names:
            lines = [Line(name, score_points(run, name), color, "dots") for color, name in enumerate(group)]
            charts.append(line_chart(title, lines, steps_axes(run)))
    grouped = {name for _, group in _GROUPS for name in group} | {"loss", *_UNSHOWN}
    for name in [name for name in names if name not in grouped][:8]:
        title = "Validation NLL" if name == "nll" else name
        line = Line(name, score_points(run, name), 0, "dots")
        charts.append(line_chart(title, [line], steps_axes(run)))
    return "".join(charts)


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
    gaps = [(x, 0.0) for pause in pauses for x in pause]
    smooth = [
        Line(name, sorted([*smoothed(line), *gaps], key=lambda point: point[0]), color)
        for color, (name, line) in enumerate(rows.items())
    ]
    note = "Rank 0, smoothed. On GPUs, the host cannot tell what the device waits for."
    if clock.whole:
        steps = run.steps.total("seconds")
        note += f" The steps took {duration(steps)}"
        if (rest := clock.whole - steps) >= 1:
            note += f", and evaluations, checkpoints and pauses took {duration(rest)}"
        note += "."
    note += " The images/s and the waiting time above exclude the first step of each start."
    return stacked_chart("Step time in ms", smooth, clock.axes(), note) + _spread(run, clock)


def _parts(run: Collected, clock: _Clock) -> tuple[dict[str, list[Point]], list[tuple[float, float]]]:
    """Return how many milliseconds the parts of each step took, and the start and end of each pause."""
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
        "Median per micro-batch since the previous evaluation, excluding the wait for other ranks.",
    )


def events_panel(run: Collected) -> str:
    """Return a table of the run's last 200 events in order."""
    rows = [
        (
            number(entry["step"], "event", "at"),
            text(entry["event"]),
            "<br>".join(map(text, _said(entry).split("\n"))),
        )
        for entry in run.events[-200:]
    ]
    if not rows:
        return ""
    return card("Events", table(("after step", "event", ""), rows, kind="events"))


def _said(entry: Mapping[str, Any]) -> str:
    said = str(entry.get("text") or entry.get("reason") or "")
    if "world_size" in entry:
        ranks = entry["world_size"]
        said = f"on {ranks} {'rank' if ranks == 1 else 'ranks'}{'; ' if said else ''}{said}"
    return said if len(said) <= 600 else f"{said[:600]}…"


def by_task(runs: Sequence[Collected]) -> dict[str, list[int]]:
    """Group the indices of the runs by task, because losses of different tasks are not comparable."""
    groups: dict[str, list[int]] = {}
    for at, run in enumerate(runs):
        groups.setdefault(str(run.recipe.get("task", "")), []).append(at)
    return groups


def compared(runs: Sequence[Collected]) -> str:
    """Return charts that compare the scores, losses, learning rates and step times of several runs."""

    def chart(title: str, values: Mapping[int, Sequence[Point]], style: str = "") -> str:
        lines = [Line(runs[at].name, points, at, style) for at, points in values.items() if points]
        return line_chart(title, lines, Axes(x_range=(0, max(run.step for run in runs) or 1)))

    def of_steps(name: str) -> dict[int, list[Point]]:
        return {at: smoothed(list(run.steps.points(name))) for at, run in enumerate(runs)}

    names = dict.fromkeys(name for run in runs if (name := run.drawn_score))
    others = ("AP50",) if "AP" in names else ()
    charts = [
        chart(name, {at: score_points(run, name) for at, run in enumerate(runs)}, "dots")
        for name in (*names, *others)
    ]
    losses, groups = of_steps("loss"), by_task(runs)
    for task, members in groups.items():
        of = f" ({task})" if len(groups) > 1 else ""
        charts.append(chart(f"Training loss{of}, smoothed", {at: losses[at] for at in members}))
        validation = {at: score_points(runs[at], "loss") for at in members}
        charts.append(chart(f"Validation loss{of}", validation, "dots"))
    charts.append(chart("Learning rate", {at: list(run.steps.points("lr")) for at, run in enumerate(runs)}))
    seconds = {at: [(x, 1e3 * y) for x, y in points] for at, points in of_steps("seconds").items()}
    charts.append(chart("Step time in ms, smoothed", seconds))
    return "".join(charts)
