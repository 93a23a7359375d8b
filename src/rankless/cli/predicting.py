"""The command ``rankless predict``."""

from __future__ import annotations

import glob
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rankless.cli.options import (
    Json,
    PredictingTarget,
    Task,
    app,
    check_target,
    flag,
    fraction,
    is_override,
    whole_number,
)
from rankless.data.builtin import is_built_in
from rankless.errors import UserError, check_all, counted
from rankless.files import reading
from rankless.hardware.heap import hold_freed_memory
from rankless.printing import print_json, say

if TYPE_CHECKING:
    from rankless.inference.report import PredictionReport


_LOW = 0.05  # if the highest score is below this, the model has hardly learned
_SHOWN = 20  # maximum number of unreadable or classified images to list
_KEYS = {"--iou": "evaluate.iou", "--max": "evaluate.detections", "--tta": "evaluate.tta"}


@app.command(
    sort_key=3,
    usage="Usage: rankless predict TARGET SOURCE ... [KEY=VALUE ...] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless predict runs/digits digits:val:0-7 --out found
  rankless predict runs/my photo.jpg folder/ clip.mp4 --confidence 0.4
  rankless predict yolov4.safetensors webcam:0 --classes person,car
""",
)
def predict(
    target: PredictingTarget,
    /,
    *sources: Annotated[
        str,
        Parameter(
            name="SOURCE KEY=VALUE",
            help="Images, videos, folders, patterns, webcam:0, rtsp://…, built-in scenes such as "
            "digits:val:0-7, or a list of them in @FILE or @- (standard input). KEY=VALUE changes the recipe "
            "of the weights.",
        ),
    ],
    task: Task = None,
    out: Annotated[
        Path | None,
        Parameter(
            help="New folder for the results. Default: predictions or, if it exists, predictions-2, -3 …"
        ),
    ] = None,
    save: Annotated[
        str | None,
        Parameter(
            help="Results to write: annotated, json, jsonl, coco, yolo, voc, label-studio, cvat, csv, "
            "counts, crops, heatmaps. Default: annotated,json.",
            metavar="KINDS",
        ),
    ] = None,
    format: Annotated[str | None, Parameter(help="Same as --save.", metavar="KINDS")] = None,
    confidence: Annotated[
        str | None,
        Parameter(help="Minimum score to report, 0 to 1. Default: 0.25 for detections.", metavar="SCORE"),
    ] = None,
    classes: Annotated[
        str | None,
        Parameter(help="Report only these classes: names or numbers, as in cat,dog.", metavar="NAMES"),
    ] = None,
    iou: Annotated[
        str | None,
        Parameter(
            help="NMS threshold: if two boxes overlap by more than this, drop the lower-scoring one.",
            metavar="IOU",
        ),
    ] = None,
    most: Annotated[
        str | None, Parameter(name="--max", help="Maximum number of detections per image.", metavar="N")
    ] = None,
    tta: Annotated[
        str | None,
        Parameter(
            help="Test-time augmentation: none, flip (adds the flipped image) or full (adds flips and other "
            "sizes).",
            metavar="KIND",
        ),
    ] = None,
    device: Annotated[
        str | None,
        Parameter(
            help="Devices to use: cpu, cuda:1 or cuda:0,cuda:1. Default: all GPUs, or the CPU.",
            metavar="NAMES",
        ),
    ] = None,
    batch: Annotated[
        str | None,
        Parameter(
            help="Batch size. Default: 16 on a GPU. On a CPU, 4 for Darknet networks without live sources, "
            "otherwise 1.",
            metavar="N",
        ),
    ] = None,
    resume: Annotated[bool, Parameter(help="Continue the interrupted prediction in --out."), flag] = False,
    force: Annotated[
        bool, Parameter(help="Allow a nonempty --out folder, and replace earlier results in it."), flag
    ] = False,
    as_json: Json = False,
) -> int:
    """Predict on images and videos, and draw the results."""
    overrides = [word for word in sources if is_override(word)]
    sources = tuple(word for word in sources if word not in overrides)
    if save is not None and format is not None:
        raise UserError("--save and --format are the same option; remove one of them")
    given = {"--iou": iou, "--max": most, "--tta": tta, "--format": format}
    kinds = format if format is not None else "annotated,json" if save is None else save
    fix_instruction_set_of(target)  # before the checks, which import NumPy
    ours, least, images, _, sources, _ = check_all(
        lambda: _as_overrides(given, overrides),
        lambda: None if confidence is None else fraction("--confidence", confidence),
        lambda: None if batch is None else whole_number("--batch", batch),
        lambda: check_kinds(kinds, "--save" if format is None else "--format"),
        lambda: _expand_lists(sources),
        lambda: check_target(target),
    )
    overrides += ours
    hold_freed_memory()
    from rankless.inference.predict import predict as find

    with _name_given_options(given):
        report = find(
            target,
            sources,
            out=out,
            confidence=least,
            classes=_words(classes or ""),
            device=device,
            batch=images,
            overrides=overrides,
            save=_words(kinds),
            force=force,
            resume=resume,
            task=task,
            progress=True,
        )
    _print_failed(report)
    if as_json:
        print_json(report.as_json())
    elif report.exit_code < UserError.exit_code:
        _print(report, 0.25 if least is None else least)
    return report.exit_code


def check_kinds(kinds: str, option: str) -> None:
    """Raise a UserError for unknown kinds of results given by ``--save`` or ``--format``."""
    from rankless.inference.formats import kinds_named

    kinds_named(_words(kinds), option)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _as_overrides(options: dict[str, str | None], overrides: Sequence[str]) -> list[str]:
    """Convert the options that set recipe keys to ``key=value`` overrides, and check their values."""
    given = {option: value for option, value in options.items() if value is not None and option in _KEYS}
    keys = {word.partition("=")[0] for word in overrides}
    if twice := [option for option in given if _KEYS[option] in keys]:
        raise UserError(
            f"{option} and {_KEYS[option]} set the same value; remove one of them" for option in twice
        )
    ours = [f"{_KEYS[option]}={value}" for option, value in given.items()]
    from rankless.recipe import load

    with _name_given_options(options):
        load.default(ours)
    return ours


@contextmanager
def _name_given_options(options: dict[str, str | None]) -> Iterator[None]:
    """Within the context, errors about recipe keys name the options that the user gave."""
    try:
        yield
    except UserError as error:
        if type(error) is not UserError:
            raise
        problems = list(error.problems)
        for option in (one for one, value in options.items() if value is not None and one in _KEYS):
            pattern = rf"^command line: (?:key )?'{re.escape(_KEYS[option])}'"
            problems = [re.sub(pattern, option, problem) for problem in problems]
        raise UserError(problems) from error


def _expand_lists(sources: Sequence[str]) -> tuple[str, ...]:
    """Return the sources, with each ``@FILE`` replaced by the file's lines; ``@-`` is standard input."""
    if not sources:
        raise UserError(
            "no images given: expected files, folders or patterns, "
            "as in: rankless predict runs/digits photo.jpg"
        )
    every: list[str] = []
    problems = []
    for source in sources:
        if not source.startswith("@") or os.path.lexists(source):
            every.append(source)
            continue
        try:
            text = sys.stdin.read() if source == "@-" else reading.read_text(Path(source[1:]))
        except (OSError, UnicodeDecodeError) as error:
            problems.append(
                f"'{source}': the list cannot be read: {reading.reason(error)}; expected one path per line"
            )
            continue
        if not (lines := [line for line in text.splitlines() if line.strip()]):
            problems.append(f"'{source}': the list is empty; expected one path per line")
        every += lines
    for one in every:
        scheme, colon, rest = one.partition(":")
        is_named = colon and (scheme == "webcam" or rest.startswith("//") or is_built_in(scheme))
        if not (is_named or os.path.lexists(one) or glob.has_magic(one)):
            problems.append(f"'{one}': no such file or folder{_camera_hint(one)}")
    if problems:
        raise UserError(problems)
    return tuple(every)


def _camera_hint(source: str) -> str:
    if not source.isdigit() and not source.startswith("/dev/video"):
        return ""
    there = ", ".join(sorted(map(str, Path("/dev").glob("video*")))) or "none"
    return f"; for a camera, use webcam:0 or /dev/video0 (cameras on this machine: {there})"


def fix_instruction_set_of(target: Path) -> None:
    """Restrict PyTorch to the CPU instruction set that the weights were trained with."""
    from rankless.hardware.instruction_set import fix
    from rankless.recipe.recorded import instruction_set_of
    from rankless.runs.directory import weights_of

    if "torch" not in sys.modules:  # a loaded PyTorch does not change its instruction set
        with suppress(UserError):  # the error is reported later, with the other problems
            fix(instruction_set_of(weights_of(target, warn=lambda _: None)))


def _print_failed(report: PredictionReport) -> None:
    error = "error: " if report.exit_code == UserError.exit_code else ""
    for source, reason in report.failed[:_SHOWN]:
        say(f"{error}{source}: {reason}", file=sys.stderr)
    if len(report.failed) > _SHOWN:
        say(f"… and {len(report.failed) - _SHOWN:,} more, listed in {report.out}", file=sys.stderr)


def _print(report: PredictionReport, confidence: float) -> None:
    classified = (each for each in report.images if each.classes)
    for image in islice(classified, _SHOWN):
        where = image.source if image.frame is None else f"{image.source} at {image.time:.2f} s"
        say(f"{where}: {image.classes[0]['name']} {image.classes[0]['score']:.0%}")
    if any(True for _ in classified):
        say(f"… and {len(report.images) - _SHOWN:,} more")
    for note in report.notes:
        say(f"note: {note}")
    has_results, frames, found = False, 0, Counter[str]()
    for image in report.images:
        has_results |= bool(image.detections or image.classes) or image.prediction is not None
        found.update(each["name"] for each in image.detections)
        frames += image.frame is not None
    say(_summary(report, found, frames))
    if report.images and not has_results:
        say(_lower_confidence(report.best, confidence))


def _summary(report: PredictionReport, found: Counter[str], frames: int) -> str:
    still = len(report.images) - frames
    kinds = [counted(still, "image")] if still or not frames else []
    images = " and ".join([*kinds, *([counted(frames, "frame")] if frames else [])])
    parts = [images]
    if not any(image.classes or image.prediction is not None for image in islice(report.images, 1)):
        parts = [f"{counted(found.total(), 'object')} in {images}"]
    if report.failed:
        failed = len(report.failed)
        parts.append(
            f"{counted(failed, 'source')} could not be read completely"
            if frames
            else f"{counted(failed, 'image')} could not be read"
        )
    if report.removed:
        parts.append(f"{counted(len(report.removed), 'file')} of an earlier prediction removed")
    if report.per_second:
        parts.append(f"{report.per_second:.3g} {'frames' if frames > still else 'images'} per second")
    return f"{'; '.join(parts)}; in {report.precision}; results in {report.out}"


def _lower_confidence(best: float, confidence: float) -> str:
    if not best:
        return f"no score was close to --confidence {confidence:g}; train for longer"
    steps = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0)
    lower = next(step for step in steps if step < best)
    said = f"the highest score is {best:.2g}, but --confidence is {confidence:g}; try --confidence {lower:g}"
    return said if best >= _LOW else f"{said}, or train for longer"
