"""The commands ``rankless evaluate``, ``errors``, ``digest`` and ``audit``."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rankless.cli.options import (
    Device,
    Devices,
    Force,
    Json,
    PredictingTarget,
    Target,
    Task,
    app,
    check_target,
    class_pairs,
    compute_on,
    devices_here,
    flag,
    fraction,
    refuse_stray,
    whole_number,
)
from rankless.cli.predicting import fix_instruction_set_of
from rankless.cli.training import fix_instruction_set
from rankless.errors import UserError, check_all, counted
from rankless.launch import environments
from rankless.printing import print_json, print_result, print_scores, say

if TYPE_CHECKING:
    from rankless.curation.model_errors import ModelErrors


Overrides = Annotated[str, Parameter(name="KEY=VALUE", help="Changes to the run's recipe.")]


@app.command(
    sort_key=2,
    usage="Usage: rankless evaluate TARGET [KEY=VALUE ...] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless evaluate runs/digits
  rankless evaluate runs/digits evaluate.iou=0.5 --json
""",
)
def evaluate(
    target: PredictingTarget,
    /,
    *overrides: Overrides,
    task: Task = None,
    devices: Devices = "auto",
    device: Device = "auto",
    split: Annotated[
        str | None, Parameter(help="Split to evaluate on. Default: the recipe's data.val.", metavar="NAME")
    ] = None,
    classes_map: Annotated[
        str | None,
        Parameter(
            help="DATA=MODEL pairs for classes whose names differ, such as 'motorbike=motorcycle, cow=', or "
            "a file with one pair per line. A class with nothing after = is ignored.",
            metavar="PAIRS",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Evaluate a run, a weights file or an export."""
    environments.refuse("evaluate", "run it once without the launcher, and set --devices")
    _, count, pairs, *_ = check_all(
        lambda: compute_on(device),
        lambda: devices_here(devices),
        lambda: None if classes_map is None else class_pairs(classes_map),
        lambda: refuse_stray(overrides, "evaluate.iou=0.5"),
        lambda: check_target(target),
    )
    if pairs is not None:
        overrides = (*overrides, f"evaluate.classes_map={json.dumps(pairs)}")
    from rankless.launch import fork_server, local

    fork_server.start()
    scores = local.evaluate(target, overrides, task=task, devices=count, split=split)
    if as_json:
        print_json(scores)
    else:
        print_scores(scores)
    return 0


@app.command(
    sort_key=4,
    usage="Usage: rankless digest TARGET [OTHERS ...] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless digest runs/one runs/two
  rankless digest runs/one --chain
""",
)
def digest(
    target: Target,
    /,
    *others: Annotated[
        Path, Parameter(help="More runs or weights files. The command prints one line for each.")
    ],
    chain: Annotated[
        bool, Parameter(help="Check each run's hash chain: checkpoints, journal, recipe, environments."), flag
    ] = False,
    as_json: Json = False,
) -> int:
    """Print the SHA-256 digest of the weights, which does not depend on the file format."""
    if chain:
        return check_chains([target, *others], as_json=as_json)
    from rankless.models.weights_files.weights import digest_file
    from rankless.runs.trained_weights import trained_weights_of

    paths = check_all(*(partial(trained_weights_of, one) for one in (target, *others)))
    found = [{"sha256": digest_file(path), "weights": str(path)} for path in paths]
    lines = (f"{one['sha256']}  {one['weights']}" for one in found)
    print_result(found if others else found[0], lines, as_json=as_json)
    return 0


_UNREADABLE = 20  # maximum number of unreadable images to list


@app.command(
    sort_key=3.5,
    usage="Usage: rankless errors TARGET [KEY=VALUE ...] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless errors runs/digits
  rankless errors runs/my --split train --count 48 --out labels.png
""",
)
def errors(
    target: Target,
    /,
    *overrides: Overrides,
    split: Annotated[
        str | None, Parameter(help="Split to examine. Default: the recipe's data.val.", metavar="NAME")
    ] = None,
    count: Annotated[
        str, Parameter(help="Number of images and of suspicious labels to show.", metavar="N")
    ] = "24",
    confidence: Annotated[
        str, Parameter(help="Ignore detections with a lower score, 0 to 1.", metavar="SCORE")
    ] = "0.25",
    out: Annotated[
        Path, Parameter(help="The contact sheet to write: .html, .png or .jpg.", metavar="FILE")
    ] = Path("errors.html"),
    force: Force = False,
    device: Device = "auto",
    as_json: Json = False,
) -> int:
    """Show the images with a model's worst errors, and labels that are probably wrong."""
    fix_instruction_set_of(target)  # before the checks, which import NumPy
    _, least, most, *_ = check_all(
        lambda: compute_on(device),
        lambda: fraction("--confidence", confidence),
        lambda: whole_number("--count", count),
        lambda: refuse_stray(overrides, "data.root=mydata"),
        lambda: check_target(target),
    )
    from rankless.curation import errors_sheet, model_errors
    from rankless.files.outputs import SHEETS, drawing
    from rankless.printing import ProgressBar

    outputs = drawing(out, "errors", SHEETS, force=force)
    opened = model_errors.open_model(target, overrides, split)
    with ProgressBar(len(opened.task.evaluation_data()), "predicting") as bar:
        found = model_errors.find_errors(opened, confidence=least, done=bar.advance)
    if found.images:
        errors_sheet.write(found, opened, most, out, outputs)
    if as_json:
        print_json({**found.as_json(most), "out": str(out) if found.images else None})
        return 0
    for source, reason in found.unreadable[:_UNREADABLE]:
        say(f"{source}: {reason}", file=sys.stderr)
    _print_errors(found, most)
    say(f"written: {out}" if found.images else "no errors found")
    return 0


def _print_errors(found: ModelErrors, count: int) -> None:
    from rankless.curation.errors_sheet import doubt, summary

    say(f"{len(found.images):,} of {counted(found.readable, 'image')} with errors ({found.split})")
    if found.is_blind and found.readable:
        best = f" (the highest score is {found.best:.2g})" if found.best else ""
        say(
            f"the model found nothing: no detection has a score of {found.confidence:g} or more{best}; "
            "train for longer, or use a lower --confidence"
        )
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in sorted(found.counts().items()))
    if kinds:
        say(f"errors: {kinds}")
    if found.images:
        say(f"\nworst images, by total error{_first(len(found.images), count)}")
    for image in found.images[:count]:
        say(f"{image.cost:6.2f}  {image.source}: {summary(found, image)}")
    if doubtful := found.doubtful():
        what = f"{counted(len(doubtful), 'label')} to check, the likeliest errors first"
        say(f"\n{what}{_first(len(doubtful), count)}")
    for wrong, one in doubtful[:count]:
        where = "" if not any(one.box) else f" at {', '.join(f'{side:.0f}' for side in one.box)}"
        say(f"{one.doubt:6.2f}  {wrong.source}: {doubt(found, one)}{where}")


def _first(there: int, count: int) -> str:
    return f" ({count:,} of {there:,} shown)" if there > count else ""


def check_chains(runs: Sequence[Path], *, as_json: bool) -> int:
    """Check the hash chains of runs, print the results, and return the exit code."""
    from rankless.launch.audit import examine
    from rankless.runs.directory import RunDirectory

    found = check_all(*(partial(examine, RunDirectory(run)) for run in runs))
    reports = [
        {
            "run": str(run),
            "ok": not chain.problems,
            "chain": [{"step": line.checkpoint, "link": line.link} for line in chain.lines],
            "kept": chain.sound,
            "problems": chain.problems,
            "notes": chain.notes,
        }
        for run, chain in zip(runs, found, strict=True)
    ]
    if as_json:
        print_json(reports if len(runs) > 1 else reports[0])
    for run, chain in zip(runs, found, strict=True) if not as_json else ():
        for line in chain.lines:
            kept = "kept" if line.checkpoint in chain.sound else chain.wrong.get(line.checkpoint, "not kept")
            say(f"{line.link}  {run} step {line.checkpoint} ({kept})")
        for text in (*chain.notes, *(f"DIFFERENT: {problem}" for problem in chain.problems)):
            say(text)
        if chain.problems:
            say(f"{counted(len(chain.problems), 'problem')} found")
        elif chain.lines:
            checked = counted(len(chain.sound), "checkpoint")
            removed = len({line.checkpoint for line in chain.lines} - {*chain.sound})
            say(f"{checked} checked, {removed:,} removed earlier; no problems found")
    return 0 if all(report["ok"] for report in reports) else 1


@app.command(
    sort_key=6,
    usage="Usage: rankless audit RUN [KEY=VALUE ...] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless audit runs/digits
  rankless audit runs/digits --steps 500 --seed 7
  rankless audit runs/mine data.root=/mnt/data --all
""",
)
def audit(
    run: Annotated[Path, Parameter(name="RUN", help="A run directory, which is not changed.")],
    /,
    *overrides: Annotated[
        str, Parameter(name="KEY=VALUE", help="Paths on this machine, for data.root and model.pretrained.")
    ],
    steps: Annotated[
        str,
        Parameter(
            help="Audit random intervals between checkpoints, with at least N steps in total.", metavar="N"
        ),
    ] = "1",
    seed: Annotated[
        str | None,
        Parameter(
            help="Random seed for the choice of intervals. Default: a random one, which is printed.",
            metavar="N",
        ),
    ] = None,
    every: Annotated[
        bool, Parameter(name="--all", help="Audit all intervals, that is, repeat the whole run."), flag
    ] = False,
    devices: Devices = "auto",
    device: Device = "auto",
    task: Task = None,
    as_json: Json = False,
) -> int:
    """Repeat parts of a run and compare the results with its checkpoints, bit for bit."""
    environments.refuse("audit", "run it once without the launcher, and set --devices")
    if every and steps != "1":
        raise UserError("--steps: has no effect with --all; remove --steps or --all")
    fix_instruction_set(None, [], run)
    _, count, wanted, drawn, *_ = check_all(
        lambda: compute_on(device),
        lambda: devices_here(devices),
        lambda: whole_number("--steps", steps),
        lambda: 1 + secrets.randbelow(10**9 - 1) if seed is None else whole_number("--seed", seed),
        lambda: refuse_stray(overrides, "data.root=FOLDER"),
    )
    from rankless.launch import fork_server
    from rankless.launch.audit import Audit

    fork_server.start()
    # With --json, only the report goes to the standard output.
    echo = partial(print, file=sys.stderr if as_json else sys.stdout, flush=True)
    report = Audit(run, overrides, task, count, echo).repeat(None if every else wanted, drawn)
    if as_json:
        print_json(report.as_json())
    if report.stopped:
        return 128 + report.stopped
    return 0 if report.ok else 1
