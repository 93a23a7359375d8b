"""The commands that train and use what was trained: train, evaluate, predict, digest, verify."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rankless.cli.words import (
    Force,
    Hosts,
    Json,
    Python,
    Ssh,
    Sync,
    Target,
    flag,
    loaded,
    part,
    recipe_and_overrides,
    whole_number,
)
from rankless.errors import UserError, counted
from rankless.printing import print_json, print_scores, say

if TYPE_CHECKING:
    from rankless.inference.predict import PredictionReport
    from rankless.launch.member import Asked

app = part()

_SHOWN = 20  # images that could not be read

Devices = Annotated[
    str, Parameter(help="GPUs to use, or processes where there is no GPU: a number, or auto.", metavar="N")
]


@app.command(
    sort_key=1,
    usage="Usage: rankless train [RECIPE] [KEY=VALUE ...] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless train digits
  rankless train digits epochs=5 optim.lr=0.02 --run runs/short --devices 2
  rankless train --resume --run runs/short epochs=20
  rankless train my.yaml --hosts a,b:4
  torchrun --nproc-per-node 8 -m rankless train digits --out runs/digits
""",
)
def train(
    *recipe: Annotated[
        str,
        Parameter(
            name="RECIPE KEY=VALUE",
            help="A shipped recipe or a YAML file (if not given: digits, or the defaults with other data or "
            "another model; a resumed run brings its own), "
            "and changes to it, such as optim.lr=0.02.",
        ),
    ],
    run: Annotated[
        Path | None,
        Parameter(
            name=("--run", "--out"),
            help="The run directory; if not given, runs/RECIPE, or RECIPE-2, -3 …",
        ),
    ] = None,
    devices: Devices = "auto",
    resume: Annotated[bool, Parameter(help="Go on from the last checkpoint in --run."), flag] = False,
    sink: Annotated[
        tuple[str, ...],
        Parameter(
            help="An observer of your own, package.module:Class or file.py:Class, whose code is run; "
            "repeatable. A run does not remember it: give it again with --resume.",
            negative="",
            metavar="SINK",
            show_default=False,
        ),
    ] = (),
    hosts: Hosts = None,
    min_hosts: Annotated[str, Parameter(help="Go on with so many when others are lost.", metavar="N")] = "1",
    sync: Sync = False,
    ssh: Ssh = "ssh",
    python: Python = None,
) -> int:
    """Train a recipe; the weights are the same on any number of devices and machines."""
    from rankless.launch import environments

    if environment := environments.detect():
        from rankless.launch import member

        is_first = environment.rank == 0

        def ask() -> member.Asked:
            if hosts is not None:
                raise UserError(
                    "--hosts: starts ranks by itself, but a launcher has started this one; leave out either"
                )
            asked = _asked_of_a_rank(recipe, run, devices, resume=resume, is_first=is_first)
            return replace(asked, sinks=sink)

        return member.train(environment, ask, run, resume=resume)
    from rankless.launch.run_lock import refuse_nothing
    from rankless.runs.directory import RunDirectory, new_run_directory

    count = _device_count(devices)
    name, overrides = recipe_and_overrides(recipe)
    _refuse_resuming_nothing(run, resume)
    if resume and run is not None and name is None:
        if hosts is None:
            refuse_nothing(RunDirectory(run))
        chosen = None
    else:
        chosen, name = loaded(name, overrides)
    if hosts is not None:
        from rankless.launch.hosts.coordinator import train_on_hosts
        from rankless.launch.hosts.gang import way_over
        from rankless.launch.hosts.names import parse_hosts
        from rankless.launch.hosts.training import Wanted

        least = whole_number("--min-hosts", min_hosts)
        called = Path(name or "run").stem
        wanted = Wanted(chosen, overrides, run, called, count, resume=resume, sinks=sink, least=least)
        return train_on_hosts(wanted, parse_hosts(hosts), way_over(ssh, python, sync=sync))
    if run is None:
        run = new_run_directory(Path(name or "run").stem)
    from rankless.launch import fork_server, local
    from rankless.launch.resume import recipe_of_run

    chosen = chosen or recipe_of_run(RunDirectory(run), overrides)
    fork_server.start(chosen.task)
    return local.train(chosen, run, devices=count, resume=resume, sinks=sink)


def _asked_of_a_rank(
    words: Sequence[str], run: Path | None, devices: str, *, resume: bool, is_first: bool
) -> Asked:
    """Read what the rank of a cluster's launcher is to train, with its instruction set in use.

    Raises:
        UserError: a mistake in the words or in the recipe.
    """
    from rankless.launch.member import Asked
    from rankless.recipe import load
    from rankless.recipe.instruction_set import fix
    from rankless.runs.directory import RunDirectory

    count = _device_count(devices)
    name, overrides = recipe_and_overrides(words)
    _refuse_resuming_nothing(run, resume)
    if not resume or run is None or name is not None:
        chosen, name = loaded(name, overrides)
        fix(chosen.cpu_isa)
        return Asked(chosen, Path(name).stem, count)
    with suppress(UserError):  # PyTorch is imported below
        fix(load.load(RunDirectory(run).recipe).cpu_isa)
    from rankless.launch.resume import recipe_of_run
    from rankless.launch.run_lock import refuse_nothing

    directory = RunDirectory(run)
    try:
        refuse_nothing(directory)
        return Asked(recipe_of_run(directory, overrides), run.name, count)
    except UserError:
        if is_first and (directory.recipe.exists() or directory.steps()):
            raise
        return Asked(None, run.name, count)  # another machine has the run, and brings the recipe


def _refuse_resuming_nothing(run: Path | None, resume: bool) -> None:
    if resume and run is None:
        raise UserError("--resume needs the run to go on with: add --run, as in --resume --run runs/digits")


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
    target: Target,
    /,
    *overrides: Annotated[str, Parameter(name="KEY=VALUE", help="Changes to the run's recipe.")],
    task: Annotated[
        str | None,
        Parameter(
            help="A task of your own, package.module:Class or file.py:Class, whose code is run; the one that "
            "TARGET names is not.",
            metavar="TASK",
        ),
    ] = None,
    devices: Devices = "auto",
    split: Annotated[
        str | None, Parameter(help="The split to score on; if not given, the recipe's data.val.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Score a run or a weights file on its evaluation images."""
    from rankless.launch import environments

    environments.refuse("evaluate", "run it without the launcher, once; --devices says on how many")
    count = _device_count(devices)
    if stray := [word for word in overrides if "=" not in word]:
        raise UserError(f"'{word}': expected key=value, as in evaluate.iou=0.5" for word in stray)
    from rankless.launch import fork_server, local

    fork_server.start()
    scores = local.evaluate(target, overrides, task=task, devices=count, split=split)
    if as_json:
        print_json(scores)
    else:
        print_scores(scores)
    return 0


@app.command(
    sort_key=3,
    usage="Usage: rankless predict TARGET SOURCE ... [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless predict runs/digits photo.jpg folder/
  rankless predict runs/digits digits:val:0-7 --out found
""",
)
def predict(
    target: Target,
    /,
    *sources: Annotated[
        str,
        Parameter(
            name="SOURCE",
            help="Images, folders, patterns, or scenes of the built-in data, as in digits:val:0-7.",
        ),
    ],
    out: Annotated[Path, Parameter(help="Where the results go.")] = Path("predictions"),
    confidence: Annotated[
        float | None,
        Parameter(help="Leave out what scores lower, 0 to 1; if not given, 0.25 for detections."),
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> int:
    """Find things in images: annotated images and one predictions.json."""
    if not sources:
        raise UserError(
            "no images given: expected files, folders or patterns, "
            "as in: rankless predict runs/digits photo.jpg"
        )
    if confidence is not None and not 0 <= confidence <= 1:
        raise UserError(f"--confidence is {confidence:g}: expected a number from 0 to 1")
    from rankless.recipe.instruction_set import fix, of_weights
    from rankless.runs.directory import weights_of

    if "torch" not in sys.modules:  # once it is loaded, the instruction set stays as it is
        with suppress(UserError):  # reported below, with whatever else is wrong
            fix(of_weights(weights_of(target, warn=lambda _: None)))
    from rankless.inference.predict import predict as find

    report = find(target, sources, out=out, confidence=confidence, force=force)
    for source, reason in report.failed[:_SHOWN]:
        say(f"{source}: {reason}", file=sys.stderr)
    if len(report.failed) > _SHOWN:
        say(f"… and {len(report.failed) - _SHOWN:,} more; they are in {report.out}", file=sys.stderr)
    if as_json:
        print_json(report.as_json())
    else:
        for image in (each for each in report.images if each.classes):
            best = image.classes[0]
            say(f"{image.source}: {best['name']} {best['score']:.0%}")
        say(_summary(report))
        if report.images and not any(image.detections or image.classes for image in report.images):
            say(_lower_confidence(report.best, 0.25 if confidence is None else confidence))
    return report.exit_code


def _summary(report: PredictionReport) -> str:
    """What was predicted, in one line; of a classifier each image has a line of its own already."""
    images = counted(len(report.images), "image")
    parts = [images]
    if not any(image.classes for image in report.images):
        found = sum(len(image.detections) for image in report.images)
        parts = [f"{counted(found, 'object')} in {images}"]
    if report.failed:
        parts.append(f"{counted(len(report.failed), 'image')} not readable")
    if report.removed:
        parts.append(f"{counted(len(report.removed), 'image')} of an earlier prediction removed")
    return f"{'; '.join(parts)}; results in {report.out}"


def _lower_confidence(best: float, confidence: float) -> str:
    """Say what to try where nothing was found."""
    if not best:
        return f"no score came near --confidence {confidence:g}; try --confidence 0.01, or train for longer"
    lower = next(step for step in (0.2, 0.1, 0.05, 0.02, 0.01, 0.0) if step < best)
    return f"the highest score is {best:.2g}, and --confidence is {confidence:g}; try --confidence {lower:g}"


@app.command(
    sort_key=4,
    usage="Usage: rankless digest TARGET [OPTIONS]",
    help_epilogue="Example:\n  rankless digest runs/digits\n",
)
def digest(target: Target, /, *, as_json: Json = False) -> int:
    """Print the SHA-256 of the weights: equal weights, equal digest."""
    from rankless.models.checkpoints.weights import digest_file
    from rankless.runs.directory import weights_of

    path = weights_of(target)
    sha256 = digest_file(path)
    if as_json:
        print_json({"sha256": sha256, "weights": str(path)})
    else:
        say(f"{sha256}  {path}")
    return 0


@app.command(
    sort_key=5,
    usage="Usage: rankless verify [RECIPE] [KEY=VALUE ...] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless verify
  rankless verify my.yaml batch.images=24 --worlds 1,2,3 --steps 5
  rankless verify my.yaml --hosts a,b:4
""",
)
def verify(
    *recipe: Annotated[
        str,
        Parameter(
            name="RECIPE KEY=VALUE",
            help="A shipped recipe or a YAML file (digits if not given), and changes to it.",
        ),
    ],
    worlds: Annotated[str, Parameter(help="Numbers of processes to compare.", metavar="N,N")] = "1,2",
    steps: Annotated[str, Parameter(help="Steps to train with each.", metavar="N")] = "20",
    hosts: Hosts = None,
    sync: Sync = False,
    ssh: Ssh = "ssh",
    python: Python = None,
    as_json: Json = False,
) -> int:
    """Prove that the number of processes, or of --hosts, changes no bit of the weights."""
    from rankless.launch import environments

    environments.refuse("verify", "run it without the launcher, once")
    sizes = [whole_number("--worlds", size, ", as in 1,2,3") for size in worlds.split(",")]
    step_count = whole_number("--steps", steps)
    name, overrides = recipe_and_overrides(recipe)
    chosen, _ = loaded(name, overrides)
    from rankless.launch import fork_server
    from rankless.launch.verify import verify as compare

    # With --json the standard output is the report's alone.
    log = sys.stderr if as_json else sys.stdout

    def echo(line: str) -> None:
        print(line, file=log, flush=True)

    if hosts is not None:
        from rankless.launch.hosts.gang import way_over
        from rankless.launch.hosts.names import parse_hosts
        from rankless.launch.hosts.verifying import verify_on_hosts

        report = verify_on_hosts(
            chosen, parse_hosts(hosts), step_count, way_over(ssh, python, sync=sync), echo
        )
    else:
        fork_server.start(chosen.task)
        report = compare(chosen, sizes, step_count, echo)
    if as_json:
        print_json(report.as_json())
    return 0 if report.ok else 1


def _device_count(devices: str) -> int | None:
    return None if devices == "auto" else whole_number("--devices", devices, ", or auto")
