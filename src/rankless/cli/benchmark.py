"""The command benchmark: measure the speed of training, or of prediction in every format."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rankless.cli.options import (
    Device,
    Json,
    compute_on,
    device_count,
    flag,
    part,
    recipe_and_overrides,
    recipe_of,
    refuse_stray,
    whole_number,
)
from rankless.errors import UserError, check_all
from rankless.printing import print_json, say

app = part()


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
            help="A recipe, run directory or weights file, and changes to the recipe. Default: digits.",
        ),
    ],
    devices: Annotated[
        str | None, Parameter(help="Training: devices to use, a number or auto.", metavar="N")
    ] = None,
    formats: Annotated[
        str | None,
        Parameter(
            help="Prediction: the formats to measure, separated by commas: onnx, torchscript, pt2, openvino.",
            metavar="NAMES",
        ),
    ] = None,
    batch: Annotated[str | None, Parameter(help="Prediction: images at a time (1).", metavar="N")] = None,
    seconds: Annotated[
        float | None,
        Parameter(help="Seconds to measure: training in total (30), each format (3).", show_default=False),
    ] = None,
    device: Device = "auto",
    pure: Annotated[
        bool, Parameter(help="Training: also time the plain loop in pure half precision (Apex's O3)."), flag
    ] = False,
    as_json: Json = False,
) -> int:
    """Measure a recipe's training beside a plain PyTorch loop, or a trained model in every format."""
    if seconds is not None and not 0 < seconds <= 3600:
        raise UserError(f"--seconds is {seconds:g}: expected a number above 0, at most 3600")
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
    """Run ``benchmark``, which was called ``bench`` before."""
    say("note: 'bench' is now called 'benchmark'", file=sys.stderr)
    return benchmark(*words, devices=devices, seconds=seconds, as_json=as_json)


def _is_recipe(word: str) -> bool:
    """Check whether a word names a recipe: a YAML file, a shipped recipe, or a plain name without a file."""
    from rankless.recipe.installed import shipped

    path = Path(word)
    if path.suffix in (".yaml", ".yml") or word in shipped():
        return True
    return path.name == word and not path.suffix and not os.path.lexists(word)


def _refuse(options: dict[str, object], wanted: str, given: str) -> None:
    wrong = [name for name, value in options.items() if value is not None]
    if wrong:
        raise UserError(f"{name} applies to {wanted}, but {given} was given; leave it out" for name in wrong)


def _training(words: Sequence[str], devices: str, seconds: float, as_json: bool, *, pure: bool) -> int:
    count = device_count(devices)
    from rankless.launch import environments

    environments.refuse("benchmark", "run it once, without the launcher")
    chosen, name = recipe_of(words)
    from rankless.cli.path_checks import check_recipe

    check_recipe(chosen, begins=False)
    from rankless.launch.planning.bench import bench as measure

    found = measure(chosen, count, seconds, lambda line: say(line, file=sys.stderr), pure)
    if as_json:
        print_json({"recipe": name, **found.as_json()})
    else:
        say(f"{name}: {found.what()}")
        for line in found.lines():
            say(line)
    return 0


def _prediction(
    target: Path, overrides: Sequence[str], formats: str, batch: str, seconds: float, as_json: bool
) -> int:
    from rankless.cli.path_checks import check_target

    images, *_ = check_all(
        lambda: whole_number("--batch", batch),
        lambda: refuse_stray(overrides, "data.root=mydata"),
        lambda: check_target(target),
    )
    names = [name.strip() for name in formats.split(",") if name.strip()]
    from rankless.launch.benchmark import benchmark as measure

    measured = measure(
        target,
        overrides=overrides,
        formats=names,
        batch=images,
        seconds=seconds,
        note=lambda what: say(f"measuring {what}", file=sys.stderr),
    )
    if as_json:
        print_json(measured.as_json())
        return 0
    for line in measured.table():
        say(line)
    for sentence in measured.notes:
        say(f"note: {sentence}", file=sys.stderr)
    return 0
