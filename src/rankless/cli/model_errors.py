"""The command errors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rankless.cli.options import (
    Device,
    Force,
    Json,
    Target,
    compute_on,
    fraction,
    part,
    refuse_stray,
    whole_number,
)
from rankless.errors import check_all, counted
from rankless.printing import print_json, say

if TYPE_CHECKING:
    from rankless.curation.model_errors import ModelErrors

app = part()

_UNREADABLE = 20  # unreadable images that are listed at most


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
    *overrides: Annotated[str, Parameter(name="KEY=VALUE", help="Changes to the run's recipe.")],
    split: Annotated[
        str | None, Parameter(help="The split to examine. Default: the recipe's data.val.")
    ] = None,
    count: Annotated[
        str, Parameter(help="Number of images to list and draw, and of likely wrong labels.", metavar="N")
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
    """List and draw a model's worst errors, and labels that are likely wrong."""
    from rankless.cli.path_checks import check_target

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
    say(f"drawn: {out}" if found.images else "nothing is wrong")
    return 0


def _print_errors(found: ModelErrors, count: int) -> None:
    from rankless.curation.errors_sheet import doubt, summary

    say(f"{counted(len(found.images), 'image')} of {found.looked_at:,} with errors ({found.split})")
    if found.is_blind and found.looked_at:
        say(
            f"the model found nothing: no detection scores {found.confidence:g} or more"
            f"{f', the best {found.best:.2g}' if found.best else ''}; train for longer, or give a lower "
            "--confidence"
        )
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in sorted(found.counts().items()))
    if kinds:
        say(f"errors: {kinds}")
    if found.images:
        say(f"\nworst images (total error of each{_first(len(found.images), count)})")
    for image in found.images[:count]:
        say(f"{image.cost:6.2f}  {image.source}: {summary(found, image)}")
    if doubtful := found.doubtful():
        what = f"{counted(len(doubtful), 'label')} to check, where the model disagrees"
        say(f"\n{what} (the surest first{_first(len(doubtful), count)})")
    for wrong, one in doubtful[:count]:
        where = "" if not any(one.box) else f" at {', '.join(f'{side:.0f}' for side in one.box)}"
        say(f"{one.doubt:6.2f}  {wrong.source}: {doubt(found, one)}{where}")


def _first(there: int, count: int) -> str:
    """Return a note that only the first ``count`` items are listed; an empty string if all are."""
    return f"; {count:,} of {there:,}" if there > count else ""
