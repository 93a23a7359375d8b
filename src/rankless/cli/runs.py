"""The commands that use what was trained: evaluate, predict, digest."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rankless.cli.words import (
    Devices,
    Json,
    Target,
    Task,
    class_pairs,
    devices_here,
    flag,
    is_override,
    part,
)
from rankless.errors import UserError, counted
from rankless.printing import print_json, print_scores, say

if TYPE_CHECKING:
    from rankless.inference.predict import ImageReport, PredictionReport

app = part()

_SHOWN = 20  # images that could not be read


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
    task: Task = None,
    devices: Devices = "auto",
    split: Annotated[
        str | None, Parameter(help="The split to score on; if not given, the recipe's data.val.")
    ] = None,
    classes_map: Annotated[
        str | None,
        Parameter(
            help="Which class of the data is which of the model's, where the names do not say it: "
            "'motorbike=motorcycle, cow=' (an empty one is left out), or a file with a pair on each line.",
            metavar="PAIRS",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Score a run or a weights file on its evaluation images."""
    from rankless.launch import environments

    environments.refuse("evaluate", "run it without the launcher, once; --devices says on how many")
    count = devices_here(devices)
    if stray := [word for word in overrides if "=" not in word]:
        raise UserError(f"'{word}': expected key=value, as in evaluate.iou=0.5" for word in stray)
    if classes_map is not None:
        overrides = (*overrides, f"evaluate.classes_map={json.dumps(class_pairs(classes_map))}")
    from rankless.cli.missing import check_target

    check_target(target)
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
    usage="Usage: rankless predict TARGET SOURCE ... [KEY=VALUE ...] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless predict runs/digits photo.jpg folder/
  rankless predict runs/digits digits:val:0-7 --out found
  rankless predict yolov4.safetensors photo.jpg evaluate.iou=0.5 --device cpu
""",
)
def predict(
    target: Target,
    /,
    *sources: Annotated[
        str,
        Parameter(
            name="SOURCE KEY=VALUE",
            help="Images, folders, patterns, or scenes of the built-in data, as in digits:val:0-7; and "
            "changes to the recipe of the weights.",
        ),
    ],
    task: Task = None,
    out: Annotated[
        Path | None,
        Parameter(help="A new folder for the results; if not given, predictions, or predictions-2, -3 …"),
    ] = None,
    confidence: Annotated[
        float | None,
        Parameter(help="Leave out what scores lower, 0 to 1; if not given, 0.25 for detections."),
    ] = None,
    device: Annotated[
        str | None,
        Parameter(help="cpu, cuda or cuda:N; if not given, the first GPU if there is one.", metavar="NAME"),
    ] = None,
    force: Annotated[
        bool, Parameter(help="Take an --out that is not empty, and replace earlier results."), flag
    ] = False,
    as_json: Json = False,
) -> int:
    """Find things in images: annotated images and one predictions.json."""
    overrides = [word for word in sources if is_override(word)]
    sources = tuple(word for word in sources if word not in overrides)
    if not sources:
        raise UserError(
            "no images given: expected files, folders or patterns, "
            "as in: rankless predict runs/digits photo.jpg"
        )
    if confidence is not None and not 0 <= confidence <= 1:
        raise UserError(f"--confidence is {confidence:g}: expected a number from 0 to 1")
    from rankless.cli.missing import check_target
    from rankless.recipe.instruction_set import fix, of_weights
    from rankless.runs.directory import weights_of

    check_target(target, sources)
    if "torch" not in sys.modules:  # once it is loaded, the instruction set stays as it is
        with suppress(UserError):  # reported below, with whatever else is wrong
            fix(of_weights(weights_of(target, warn=lambda _: None)))
    from rankless.inference.predict import predict as find

    report = find(
        target,
        sources,
        out=out,
        confidence=confidence,
        device=device,
        overrides=overrides,
        force=force,
        task=task,
    )
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
        if report.images and not any(map(_is_answered, report.images)):
            say(_lower_confidence(report.best, 0.25 if confidence is None else confidence))
    return report.exit_code


def _summary(report: PredictionReport) -> str:
    """What was predicted, in one line; of a classifier each image has a line of its own already."""
    images = counted(len(report.images), "image")
    parts = [images]
    if not any(image.classes or image.prediction is not None for image in report.images):
        found = sum(len(image.detections) for image in report.images)
        parts = [f"{counted(found, 'object')} in {images}"]
    if report.failed:
        parts.append(f"{counted(len(report.failed), 'image')} not readable")
    if report.removed:
        parts.append(f"{counted(len(report.removed), 'image')} of an earlier prediction removed")
    return f"{'; '.join(parts)}; in {report.precision}; results in {report.out}"


def _is_answered(image: ImageReport) -> bool:
    return bool(image.detections or image.classes) or image.prediction is not None


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
