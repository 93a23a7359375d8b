"""Plot the predicted speed, efficiency and step time against the number of devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator, PercentFormatter, StrMethodFormatter

from rankless.files.outputs import Outputs
from rankless.launch.planning.plan import Plan

_BLUE, _ORANGE, _GREY = "#3b6ea5", "#e08e45", "#8a8a8a"


def plot(plan: Plan, title: str, out: Path, outputs: Outputs) -> None:
    figure = Figure(figsize=(13, 4.4), dpi=110, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(title.replace("$", r"\$"), fontsize=14, fontweight="bold", x=0.01, ha="left")
    speed, efficiency, step = figure.subplots(1, 3)
    devices = [row.devices for row in plan.rows]
    alone = plan.rows[0].images_per_second
    speed.plot(devices, [alone * count for count in devices], ":", color=_GREY, label="perfect")
    speed.plot(
        devices, [row.images_per_second for row in plan.rows], "-o", ms=3, color=_BLUE, label="predicted"
    )
    speed.set_yscale("log", base=10)
    speed.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    efficiency.plot(devices, [row.efficiency for row in plan.rows], "-o", ms=3, color=_BLUE)
    efficiency.set_ylim(0, 1.05)
    efficiency.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    computing = [(row.step - row.network) * 1e3 for row in plan.rows]
    step.stackplot(
        devices,
        computing,
        [row.network * 1e3 for row in plan.rows],
        colors=[_BLUE, _ORANGE],
        labels=["computing and loading", "network"],
        alpha=0.8,
    )
    _finish(speed, plan, "Images per second", legend="upper left")
    _finish(efficiency, plan, "Efficiency")
    _finish(step, plan, "A step in milliseconds", legend="upper right")
    with outputs.writing(out) as file:
        figure.savefig(file, format=out.suffix[1:].lower())


def _finish(axes: Any, plan: Plan, title: str, *, legend: str = "") -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlim(1, plan.rows[-1].devices)
    axes.axvline(plan.asked.devices, color=_GREY, lw=0.8)
    if plan.step.micro_batches < plan.rows[-1].devices:
        axes.axvspan(plan.step.micro_batches, plan.rows[-1].devices, color=_GREY, alpha=0.12, lw=0)
        axes.text(
            plan.rows[-1].devices,
            0.02,
            "larger global batch ",
            fontsize=8,
            color="#555555",
            ha="right",
            transform=axes.get_xaxis_transform(),
        )
    axes.set_title(title, fontsize=11, fontweight="bold", loc="left")
    axes.set_xlabel("devices")
    axes.spines[["top", "right"]].set_visible(False)
    if legend:
        axes.legend(frameon=False, fontsize=9, loc=legend)
