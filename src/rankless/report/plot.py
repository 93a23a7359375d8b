"""The curves of runs as an image for papers and slides."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankless.errors import UserError
from rankless.files.outputs import Outputs
from rankless.report.charts import Point, smoothed
from rankless.report.collected import Collected
from rankless.report.training import score_points

_COLORS = ("#2467b3", "#c25a0c", "#2a8352", "#a83a72", "#6a55b8", "#84681a", "#137f8a", "#b03a3a")
_GRAY = "#8a8a8a"


def plot(runs: Sequence[Collected], out: Path, outputs: Outputs) -> None:
    """Write the image.

    Raises:
        UserError: there is nothing to draw, or it cannot be written.
    """
    if not any(run.step or run.evaluations for run in runs):
        raise UserError(f"{runs[0].run.journal}: has no step and no evaluation; train for longer first")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)  # inches
    figure = Figure(figsize=(12, 7.5), dpi=120, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    title = " · ".join(run.name for run in runs) if len(runs) < 4 else f"{len(runs)} runs"
    figure.suptitle(title.replace("$", r"\$"), fontsize=14, fontweight="bold", x=0.01, ha="left")
    (loss, scores), (rate, time) = figure.subplots(2, 2)
    for at, run in enumerate(runs):
        color, name = _COLORS[at % len(_COLORS)], run.name.replace("$", r"\$")
        points = list(run.steps.points("loss"))
        if len(runs) == 1:
            _line(loss, points, _GRAY, lw=0.6, alpha=0.5)
        _line(loss, smoothed(points), color, label="training" if len(runs) == 1 else name)
        label = "validation" if len(runs) == 1 else f"{name}, validation"
        other = _COLORS[1] if len(runs) == 1 else color
        _line(loss, score_points(run, "loss"), other, label=label, ls="--", marker="o", ms=3)
        shown = [name for name in (run.score_name, "AP50", "AP75", "top5") if name] if len(runs) == 1 else []
        for number, score in enumerate(dict.fromkeys(shown)):
            _line(scores, score_points(run, score), _COLORS[number], label=score, marker="o", ms=3)
        if len(runs) > 1 and run.score_name:
            label = f"{name}: {run.score_name}"
            _line(scores, score_points(run, run.score_name), color, label=label, marker="o", ms=3)
        _line(rate, list(run.steps.points("lr")), color, label=name)
        seconds = smoothed([(x, 1e3 * y) for x, y in run.steps.points("seconds")])
        _line(time, seconds, color, label=name)
    _finish(loss, "Loss", legend=True)
    _finish(scores, "Scores", legend=True)
    _finish(rate, "Learning rate", legend=len(runs) > 1)
    _finish(time, "Milliseconds of a step", legend=len(runs) > 1)
    with outputs.writing(out) as file, warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)  # of a run's name
        figure.savefig(file, format=out.suffix[1:].lower())


def _line(axes: Any, points: Sequence[Point], color: str, **style: Any) -> None:
    if points:
        axes.plot([x for x, _ in points], [y for _, y in points], color=color, **style)


def _finish(axes: Any, title: str, *, legend: bool) -> None:
    axes.set_title(title, fontsize=11, fontweight="bold", loc="left")
    axes.set_xlabel("step")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.set_xlim(left=0)
    if axes.lines and min(min(line.get_ydata()) for line in axes.lines) >= 0:
        axes.set_ylim(bottom=0)
    if legend and axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=9)
