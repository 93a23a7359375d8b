"""The commands ``rankless plan``, ``fit`` and ``benchmark``, which measure speed and memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rankless.cli.options import (
    Device,
    Devices,
    Force,
    Json,
    RecipeWords,
    app,
    check_recipe,
    check_target,
    compute_on,
    device_count,
    flag,
    recipe_and_overrides,
    recipe_of,
    refuse_stray,
    refuse_without,
    whole_number,
    whole_numbers,
)
from rankless.errors import UserError, check_all
from rankless.launch import environments
from rankless.launch.planning import units
from rankless.printing import print_result, say


@app.command(
    sort_key=5.7,
    usage="Usage: rankless plan [RECIPE] [KEY=VALUE ...] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless plan digits --devices 8x4 --bandwidth 25GB/s --out plan.png
  rankless plan my.yaml --devices 64x8 --bandwidth 100Gbit/s --step-ms 210
  rankless plan digits --check 1,2,4
""",
)
def plan(
    *recipe: RecipeWords,
    devices: Annotated[
        str | None,
        Parameter(
            help="Number of machines and devices per machine, as in 8x4. Default: this machine.",
            metavar="MxN",
        ),
    ] = None,
    bandwidth: Annotated[
        str | None,
        Parameter(
            help="Network bandwidth of each machine, as in 25GB/s or 100Gbit/s. By default, it is measured "
            "between two processes on this machine.",
            metavar="RATE",
        ),
    ] = None,
    latency: Annotated[
        str | None,
        Parameter(
            help="Latency of a message. Default with --bandwidth: 20us. Otherwise, it is measured.",
            metavar="TIME",
        ),
    ] = None,
    step_ms: Annotated[
        str | None,
        Parameter(
            help="Time of a step on one device, in milliseconds. By default, it is measured here.",
            metavar="MS",
        ),
    ] = None,
    check: Annotated[
        str | None,
        Parameter(
            help="Also train here with these numbers of processes, and compare the measured times with the "
            "prediction.",
            metavar="N,N",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        Parameter(help="Plot the prediction as a .png, .jpg, .webp, .svg or .pdf file.", metavar="FILE"),
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> int:
    """Predict step time, epoch time and efficiency on 1 to 4,096 devices."""
    options = _plan_options(devices, bandwidth, latency, step_ms, check)
    if out is None:
        refuse_without("--out", {"--force": force})
    chosen, name = recipe_of(recipe)
    from rankless.launch import fork_server

    if options.check:
        fork_server.start(chosen.task)
    from rankless.files.outputs import drawing
    from rankless.launch.planning import plan as planning

    outputs = None if out is None else drawing(out, "plan", force=force)  # before anything is measured
    found = planning.plan(chosen, options, lambda line: say(line, file=sys.stderr))
    print_result({"recipe": name, **found.as_json()}, planning.lines(found), as_json=as_json)
    if out is not None and outputs is not None:
        from rankless.launch.planning import plot

        plot.plot(found, f"{Path(name).stem}: predicted", out, outputs)
        say(f"written: {out}", file=sys.stderr if as_json else sys.stdout)
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
def fit(*recipe: RecipeWords, devices: Devices = "auto", as_json: Json = False) -> int:
    """Find the largest micro-batch that fits in this device's memory, by training with ever larger ones."""
    count, (chosen, name) = check_all(lambda: device_count(devices), lambda: recipe_of(recipe))
    check_recipe(chosen, begins=False)
    from rankless.launch.planning.fit import fit as find

    found = find(chosen, count, lambda line: say(line, file=sys.stderr))
    print_result({"recipe": name, **found.as_json()}, found.lines(), as_json=as_json)
    return 0


def _plan_options(
    devices: str | None, bandwidth: str | None, latency: str | None, step_ms: str | None, check: str | None
) -> units.PlanOptions:
    others = {"--devices": devices, "--bandwidth": bandwidth, "--latency": latency, "--step-ms": step_ms}

    def refuse_both() -> None:
        if check is not None and (wrong := [name for name, value in others.items() if value is not None]):
            raise UserError(
                f"--check trains on this machine, so it cannot be combined with {' and '.join(wrong)}; "
                f"remove --check, or {' and '.join(wrong)}"
            )

    def read(how: Callable[[str], object], text: str | None) -> object:
        return None if text is None else how(text)

    *found, _ = check_all(
        lambda: read(units.devices, devices),
        lambda: read(units.bandwidth, bandwidth),
        lambda: read(units.latency, latency),
        lambda: read(units.milliseconds, step_ms),
        lambda: () if check is None else whole_numbers("--check", check),
        refuse_both,
    )
    return units.PlanOptions(*found)


@app.command(
    sort_key=10,
    usage="Usage: rankless benchmark RECIPE|TARGET [KEY=VALUE ...] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless benchmark digits
  rankless benchmark my.yaml batch.micro=16 --devices 2 --seconds 60
  rankless benchmark runs/digits --formats onnx,openvino --batch 8
""",
)
def benchmark(
    *words: Annotated[
        str,
        Parameter(
            name="RECIPE|TARGET KEY=VALUE",
            help="A recipe, a run directory or a weights file, followed by changes. Default: digits.",
        ),
    ],
    devices: Annotated[
        str | None, Parameter(help="Number of devices for training, or auto.", metavar="N")
    ] = None,
    formats: Annotated[
        str | None,
        Parameter(
            help="Export formats to time, such as onnx,openvino. Default: all of them (onnx, "
            "torchscript, pt2 and openvino).",
            metavar="NAMES",
        ),
    ] = None,
    batch: Annotated[
        str | None, Parameter(help="Batch size for prediction. Default: 1.", metavar="N")
    ] = None,
    seconds: Annotated[
        float | None,
        Parameter(
            help="Duration of the measurement in seconds. Default: 30 in total for training, and 3 for each "
            "format.",
            metavar="SECONDS",
            show_default=False,
        ),
    ] = None,
    device: Device = "auto",
    pure: Annotated[
        bool,
        Parameter(help="For training, also time the plain loop in pure half precision (Apex's O3)."),
        flag,
    ] = False,
    as_json: Json = False,
) -> int:
    """Compare a recipe's training speed with that of a plain PyTorch loop, or time a trained model."""
    if seconds is not None and not 0 < seconds <= 3600:
        raise UserError(f"--seconds is {seconds:g}: expected a number above 0 and at most 3600")
    compute_on(device)
    target, overrides = recipe_and_overrides(words)
    if target is None or _is_recipe(target):
        _refuse({"--formats": formats, "--batch": batch}, "a trained model", "a recipe")
        return _training(words, devices or "auto", seconds or 30.0, as_json, pure=pure)
    _refuse({"--devices": devices, "--pure": pure or None}, "a recipe", "a trained model")
    return _prediction(Path(target), overrides, formats or "", batch or "1", seconds or 3.0, as_json)


@app.command(show=False)
def bench(
    *words: str, devices: str | None = None, seconds: float | None = None, as_json: Json = False
) -> int:
    """Run ``benchmark`` under its former name, ``bench``."""
    say("note: 'bench' is now called 'benchmark'", file=sys.stderr)
    return benchmark(*words, devices=devices, seconds=seconds, as_json=as_json)


def _is_recipe(word: str) -> bool:
    """Return whether a word is a YAML file, a shipped recipe, or a name for which no file exists."""
    from rankless.recipe.installed import shipped

    path = Path(word)
    if path.suffix in (".yaml", ".yml") or word in shipped():
        return True
    return path.name == word and not path.suffix and not os.path.lexists(word)


def _refuse(options: dict[str, object], wanted: str, given: str) -> None:
    wrong = [name for name, value in options.items() if value is not None]
    if wrong:
        raise UserError(f"{name}: needs {wanted}, but {given} was given; remove {name}" for name in wrong)


def _training(words: Sequence[str], devices: str, seconds: float, as_json: bool, *, pure: bool) -> int:
    count = device_count(devices)
    environments.refuse("benchmark", "run it once without the launcher")
    chosen, name = recipe_of(words)
    check_recipe(chosen, begins=False)
    from rankless.launch.planning.training_benchmark import bench as measure

    found = measure(chosen, count, seconds, lambda line: say(line, file=sys.stderr), pure)
    lines = (f"{name}: {found.what()}", *found.lines())
    print_result({"recipe": name, **found.as_json()}, lines, as_json=as_json)
    return 0


def _prediction(
    target: Path, overrides: Sequence[str], formats: str, batch: str, seconds: float, as_json: bool
) -> int:
    images, *_ = check_all(
        lambda: whole_number("--batch", batch),
        lambda: refuse_stray(overrides, "data.root=mydata"),
        lambda: check_target(target),
    )
    names = [name.strip() for name in formats.split(",") if name.strip()]
    from rankless.launch.export_benchmark import benchmark as measure

    measured = measure(
        target,
        overrides=overrides,
        formats=names,
        batch=images,
        seconds=seconds,
        note=lambda what: say(f"measuring {what}", file=sys.stderr),
    )
    print_result(measured.as_json(), measured.table(), as_json=as_json)
    for sentence in () if as_json else measured.notes:
        say(f"note: {sentence}", file=sys.stderr)
    return 0
