"""The commands plan and fit: predict the speed on more devices, and find the largest micro-batch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

from cyclopts import Parameter

from rankless.cli.options import (
    Devices,
    Force,
    Json,
    RecipeWords,
    device_count,
    part,
    recipe_of,
    whole_number,
)
from rankless.errors import UserError, check_all
from rankless.launch.planning import units
from rankless.printing import print_json, say

app = part()
Value = TypeVar("Value")


@app.command(
    sort_key=5.7,
    usage="Usage: rankless plan [RECIPE] [KEY=VALUE ...] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless plan digits --devices 8x4 --bandwidth 25GB/s --latency 20us --out plan.png
  rankless plan my.yaml --devices 64x8 --bandwidth 100Gbit/s --step-ms 210
  rankless plan digits --check 1,2,4
""",
)
def plan(
    *recipe: RecipeWords,
    devices: Annotated[
        str | None,
        Parameter(
            help="Number of machines and of devices in each, as in 8x4. Default: this machine.", metavar="MxN"
        ),
    ] = None,
    bandwidth: Annotated[
        str | None,
        Parameter(
            help="Bandwidth of each machine's network, as in 25GB/s or 100Gbit/s. Default: measured between "
            "two processes here.",
            metavar="RATE",
        ),
    ] = None,
    latency: Annotated[
        str | None,
        Parameter(help="Latency of a message. Default with --bandwidth: 20us.", metavar="TIME"),
    ] = None,
    step_ms: Annotated[
        str | None,
        Parameter(
            help="Time of a step on one device of those machines. Default: measured here.", metavar="MS"
        ),
    ] = None,
    check: Annotated[
        str | None,
        Parameter(
            help="Also train with these numbers of processes here, and compare with the prediction.",
            metavar="N,N",
        ),
    ] = None,
    out: Annotated[
        Path | None, Parameter(help="Draw the plan: a .png, .jpg, .webp, .svg or .pdf file.", metavar="FILE")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> int:
    """Predict step time, epoch time and efficiency on 1 to 4,096 devices."""
    asked = _asked(devices, bandwidth, latency, step_ms, check)
    if force and out is None:
        raise UserError("--force says what --out may replace: add --out, or leave --force out")
    chosen, name = recipe_of(recipe)
    from rankless.launch import fork_server

    if asked.check:
        fork_server.start(chosen.task)
    from rankless.files.outputs import drawing
    from rankless.launch.planning import plan as planning
    from rankless.launch.planning import report

    outputs = None if out is None else drawing(out, "plan", force=force)  # before anything is measured
    found = planning.plan(chosen, asked, lambda line: say(line, file=sys.stderr))
    if as_json:
        print_json({"recipe": name, **found.as_json()})
    else:
        for line in report.lines(found):
            say(line)
    if out is not None and outputs is not None:
        from rankless.launch.planning import plot

        plot.plot(found, f"{Path(name).stem}: predicted", out, outputs)
        say(f"drawn: {out}", file=sys.stderr if as_json else sys.stdout)
    return 0


@app.command(
    sort_key=5.8,
    usage="Usage: rankless fit [RECIPE] [KEY=VALUE ...] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless fit yolov4 data.root=path/to/data
  rankless fit my.yaml model.checkpointing=true --devices 4
""",
)
def fit(
    *recipe: RecipeWords,
    devices: Devices = "auto",
    as_json: Json = False,
) -> int:
    """Find the largest micro-batch that fits into this device's memory, by training."""
    count, (chosen, name) = check_all(lambda: device_count(devices), lambda: recipe_of(recipe))
    from rankless.cli.path_checks import check_recipe

    check_recipe(chosen, begins=False)
    from rankless.launch.planning.fit import fit as find

    found = find(chosen, count, lambda line: say(line, file=sys.stderr))
    if as_json:
        print_json({"recipe": name, **found.as_json()})
    else:
        for line in found.lines():
            say(line)
    return 0


def _asked(
    devices: str | None, bandwidth: str | None, latency: str | None, step_ms: str | None, check: str | None
) -> units.PlanOptions:
    """Read the options of a plan; report all wrong ones together."""
    problems: list[str] = []

    def read(how: Callable[[str], Value], text: str | None) -> Value | None:
        try:
            return None if text is None else how(text)
        except UserError as error:
            problems.extend(error.problems)
            return None

    asked = units.PlanOptions(
        read(units.devices, devices),
        read(units.bandwidth, bandwidth),
        read(units.latency, latency),
        read(units.milliseconds, step_ms),
        read(_counts, check) or (),
    )
    others = {"--devices": devices, "--bandwidth": bandwidth, "--latency": latency, "--step-ms": step_ms}
    if check is not None and (wrong := [name for name, value in others.items() if value is not None]):
        problems.append(
            f"--check trains on this machine, {' and '.join(wrong)} describes others: leave out one"
        )
    if problems:
        raise UserError(problems)
    return asked


def _counts(text: str) -> tuple[int, ...]:
    return tuple(whole_number("--check", each, ", as in 1,2,4") for each in text.split(","))
