"""Plots of runs as an image for papers and slides."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from rankless.errors import UserError
from rankless.files.outputs import Outputs
from rankless.report.charts import Point, smoothed
from rankless.report.collected import Collected
from rankless.report.training import by_task, score_points, spans_decades

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = ("#2467b3", "#c25a0c", "#2a8352", "#a83a72", "#6a55b8", "#84681a", "#137f8a", "#b03a3a")
"""Colors of lines and bars, also used for other charts."""
_GRAY = "#8a8a8a"


def plot(runs: Sequence[Collected], out: Path, outputs: Outputs) -> None:
    """Write a figure of the runs' losses, scores, learning rates and step times to ``out``."""
    if not any(run.step or run.evaluations for run in runs):
        raise UserError(f"{runs[0].run.journal}: contains no steps or evaluations; train longer first")
    with outputs.writing(out) as file:
        save(figure(runs), file, out.suffix[1:].lower())


def figure(runs: Sequence[Collected], *, details: bool = True) -> Figure:
    """Return a figure of losses and scores and, with ``details``, of learning rates and step times."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)  # inches
    tasks = by_task(runs)
    rows = len(tasks) + details
    made = Figure(figsize=(12, 3.75 * rows), dpi=120, layout=layout, facecolor="white")
    title = " · ".join(run.name for run in runs) if len(runs) < 4 else f"{len(runs)} runs"
    made.suptitle(title.replace("$", r"\$"), fontsize=14, fontweight="bold", x=0.01, ha="left")
    panels = made.subplots(rows, 2, squeeze=False)
    for (loss, scores), (task, members) in zip(panels, tasks.items(), strict=False):
        for at in members:
            beside = tuple(panels[-1]) if details else ()
            _draw(runs[at], COLORS[at % len(COLORS)], (loss, scores, *beside), alone=len(runs) == 1)
        of = f" ({task})" if len(tasks) > 1 else ""
        if spans_decades([(0, y) for line in loss.lines for y in line.get_ydata()]):
            loss.set_yscale("log")
        _finish(loss, f"Loss{of}", legend=True)
        _finish(scores, f"Scores{of}", legend=True)
    if details:
        _finish(panels[-1][0], "Learning rate", legend=len(runs) > 1)
        _finish(panels[-1][1], "Step time in ms", legend=len(runs) > 1)
    return made


def save(made: Figure, file: Path | BinaryIO, format: str) -> None:
    """Write a figure to a file in an image format that matplotlib supports."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)  # characters in a run's name
        made.savefig(file, format=format)


def _draw(run: Collected, color: str, panels: tuple[Any, ...], *, alone: bool) -> None:
    (loss, scores, *beside), name = panels, run.name.replace("$", r"\$")
    points = list(run.steps.points("loss"))
    if alone:
        _line(loss, points, _GRAY, lw=0.6, alpha=0.5)
    _line(loss, smoothed(points), color, label="training" if alone else name)
    label, other = ("validation", COLORS[1]) if alone else (f"{name}, validation", color)
    _line(loss, score_points(run, "loss"), other, label=label, ls="--", marker="o", ms=3)
    if alone:
        shown = dict.fromkeys(name for name in (run.drawn_score, "AP50", "AP75", "top5") if name)
        for number, score in enumerate(shown):
            _line(scores, score_points(run, score), COLORS[number], label=score, marker="o", ms=3)
    elif run.drawn_score:
        label = f"{name}: {run.drawn_score}"
        _line(scores, score_points(run, run.drawn_score), color, label=label, marker="o", ms=3)
    seconds = [(x, 1e3 * y) for x, y in run.steps.points("seconds")]
    for axes, values in zip(beside, (list(run.steps.points("lr")), smoothed(seconds)), strict=False):
        _line(axes, values, color, label=name)


def _line(axes: Any, points: Sequence[Point], color: str, **style: Any) -> None:
    if points:
        axes.plot([x for x, _ in points], [y for _, y in points], color=color, **style)


def _finish(axes: Any, title: str, *, legend: bool) -> None:
    axes.set_title(title, fontsize=11, fontweight="bold", loc="left")
    axes.set_xlabel("step")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.set_xlim(left=0)
    if (
        axes.get_yscale() == "linear"
        and axes.lines
        and min(min(line.get_ydata()) for line in axes.lines) >= 0
    ):
        axes.set_ylim(bottom=0)
    if legend and axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=9)
