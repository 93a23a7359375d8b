"""The commands that look at a data set: check, stats, show, anchors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rankless.cli.options import (
    Classes,
    Force,
    Format,
    Json,
    Link,
    Root,
    Splits,
    chosen_classes,
    flag,
    part,
    recipe_and_overrides,
    refuse_stray,
    whole_number,
)
from rankless.errors import UserError, counted
from rankless.printing import print_json, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankless.recipe.schema import Recipe

app = part()


@app.command(
    sort_key=1,
    usage="Usage: rankless data check ROOT [OPTIONS]",
    help_epilogue="""\
Exit code 0 if nothing is wrong, 1 if something is, 2 for a mistake in the command.

Examples:
  rankless data check mydata
  rankless data check mydata --fix --out mydata-clean
""",
)
def check(
    root: Root,
    /,
    *,
    split: Splits = (),
    format: Format = "auto",
    classes: Classes = "auto",
    quick: Annotated[
        bool, Parameter(help="Read only the headers of images, and skip the search for duplicates."), flag
    ] = False,
    fix: Annotated[bool, Parameter(help="Write a copy without the entries that are wrong."), flag] = False,
    drop_invalid: Annotated[
        bool,
        Parameter(
            help="With --fix: also leave out boxes that stop a training. Their objects become background."
        ),
        flag,
    ] = False,
    out: Annotated[
        Path | None,
        Parameter(help="With --fix: the folder of the copy. Default: ROOT-fixed.", metavar="FOLDER"),
    ] = None,
    link: Link = False,
    as_json: Json = False,
) -> int:
    """Check a data set for errors and likely mistakes."""
    if out is not None and not fix:
        raise UserError("--out says where --fix writes: add --fix, or leave --out out")
    if drop_invalid and not fix:
        raise UserError("--drop-invalid says what --fix leaves out: add --fix, or leave it out")
    if link and not fix:
        raise UserError("--link says how --fix brings images: add --fix, or leave it out")
    from rankless.cli.data_text import print_check, print_fix
    from rankless.curation.checking import check as look
    from rankless.curation.data_set import beside, must_be_outside
    from rankless.curation.fixing import fix as write_fixed
    from rankless.files.work_folder import refuse_existing

    target = out or beside(root, "fixed")
    if fix:
        must_be_outside(root, target)
        refuse_existing(target)
    checked = look(root, format, split, classes=chosen_classes(classes), quick=quick)
    fixed = write_fixed(checked, target, drop_invalid=drop_invalid, link=link) if fix else None
    if as_json:
        report = checked.as_json()
        if fixed is not None:
            report["fixed"] = {"out": str(fixed.out), "changes": fixed.changes}
        print_json(report)
    else:
        print_check(checked)
        if fixed is not None:
            print_fix(fixed)
    return 0 if checked.ok else 1


@app.command(
    sort_key=2,
    usage="Usage: rankless data stats ROOT [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless data stats mydata
  rankless data stats mydata --out stats.png
""",
)
def stats(
    root: Root,
    /,
    *,
    split: Splits = (),
    format: Format = "auto",
    classes: Classes = "auto",
    out: Annotated[
        Path | None,
        Parameter(help="Also draw the statistics: a .png, .jpg, .webp, .svg or .pdf file.", metavar="FILE"),
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> int:
    """Print statistics of images, classes and boxes."""
    if force and out is None:
        raise UserError("--force says what --out may replace: add --out, or leave it out")
    from rankless.cli.data_text import print_statistics
    from rankless.curation.data_set import open_data_set
    from rankless.curation.statistics import statistics
    from rankless.files.outputs import drawing

    outputs = drawing(out, "data stats", force=force) if out is not None else None
    data = open_data_set(root, format, split, classes=chosen_classes(classes), examined=True)
    stats = statistics(data)
    if out is not None and outputs is not None:
        from rankless.curation.statistics_plot import plot

        plot(data, out, outputs)
    if as_json:
        print_json(stats.as_json())
    else:
        print_statistics(stats)
        if outputs is not None:
            say(f"\ndrawn: {out}" + (" (replaced)" if outputs.replaced else ""))
    return 0


@app.command(
    sort_key=3,
    usage="Usage: rankless data show ROOT [RECIPE] [KEY=VALUE ...] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless data show mydata --class cat --out cats.html
  rankless data show mydata --augmented yolov4-tiny data.augment.mosaic=1
  rankless data show digits
""",
)
def show(
    root: Root,
    /,
    *recipe: Annotated[
        str,
        Parameter(
            name="RECIPE KEY=VALUE", help="With --augmented: the recipe of the training, and changes to it."
        ),
    ],
    split: Annotated[
        str | None, Parameter(help="The split to show. Default: the first.", metavar="NAME")
    ] = None,
    format: Format = "auto",
    classes: Classes = "auto",
    count: Annotated[str, Parameter(help="Number of images to show.", metavar="N")] = "16",
    seed: Annotated[int, Parameter(help="Seed of the random choice of images.", metavar="N")] = 0,
    class_name: Annotated[
        str | None, Parameter(name="--class", help="Show only images with this class.", metavar="NAME")
    ] = None,
    augmented: Annotated[
        bool, Parameter(help="Show the images as a training sees them, augmented."), flag
    ] = False,
    out: Annotated[Path, Parameter(help="The file to write: .png, .jpg or .html.", metavar="FILE")] = Path(
        "contact-sheet.png"
    ),
    force: Force = False,
) -> int:
    """Draw images with their annotations."""
    number = whole_number("--count", count)
    if seed < 0:
        raise UserError(f"--seed has '{seed}': expected a whole number of at least 0")
    if recipe and not augmented:
        raise UserError(f"'{recipe[0]}' would change nothing: a recipe and its changes go with --augmented")
    recipe_for = _recipe_for(root, recipe)
    from rankless.curation import contact_sheet
    from rankless.curation.sampling import select
    from rankless.files.outputs import SHEETS, drawing

    outputs = drawing(out, "data show", SHEETS, force=force)  # before the data is read
    selected = select(
        root,
        format,
        split=split,
        count=number,
        seed=seed,
        class_name=class_name,
        classes=chosen_classes(classes),
        augmented=recipe_for if augmented else None,
    )
    contact_sheet.write(selected, out, outputs)
    unreadable = sum(one.image is None for one in selected.shown)
    failed = f", {unreadable} not readable" if unreadable else ""
    say(f"{selected.title}{failed}: {out}" + (" (replaced)" if outputs.replaced else ""))
    return 0


def _recipe_for(root: str, words: tuple[str, ...]) -> Callable[[str], Recipe]:
    """Return a function that makes the recipe named by the words, or a task's default one."""
    name, overrides = recipe_and_overrides(words)
    refuse_stray(overrides, "data.augment.mosaic=1")

    def chosen(task: str) -> Recipe:
        from rankless.recipe import load

        if name is None and task == "detect" and root != "digits":
            return load.default(overrides)
        return load.load(name or ("digits" if task == "detect" else "resnet18"), overrides)

    return chosen


@app.command(
    sort_key=4,
    usage="Usage: rankless data anchors ROOT [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless data anchors mydata
  rankless data anchors mydata --model yolov4-tiny --image-size 320,512
""",
)
def anchors(
    root: Root,
    /,
    *,
    split: Annotated[str, Parameter(help="The split to read.", metavar="NAME")] = "train",
    format: Format = "auto",
    classes: Classes = "auto",
    model: Annotated[
        str, Parameter(help="The detector that will use the anchors.", metavar="NAME")
    ] = "yolov4",
    count: Annotated[
        str | None, Parameter(help="Number of anchors. Default: as many as the model has.", metavar="N")
    ] = None,
    image_size: Annotated[
        str | None,
        Parameter(
            help="Side of the input in pixels, or HEIGHT,WIDTH. Default: the model's.",
            metavar="N",
            allow_leading_hyphen=True,
        ),
    ] = None,
    seed: Annotated[int, Parameter(help="Seed of k-means.", metavar="N")] = 0,
    as_json: Json = False,
) -> int:
    """Compute the anchors that fit the boxes best."""
    number = None if count is None else whole_number("--count", count)
    size = None if image_size is None else _size(image_size)
    from rankless.curation.fitting_anchors import fitted_anchors

    fitted = fitted_anchors(
        root,
        format,
        split=split,
        classes=chosen_classes(classes),
        model=model,
        count=number,
        size=size,
        seed=seed,
    )
    if as_json:
        print_json(fitted.as_json())
        return 0
    default = fitted.default
    height, width = fitted.image_size
    anchors, boxes = counted(len(fitted.anchors), "anchor"), counted(fitted.boxes, "box", "boxes")
    say(f"{anchors} for {boxes} on an input of {width} × {height} pixels")
    published = f"with the {len(default.anchors)} of {model} {default.average_iou:.4f}"
    say(f"average IoU {fitted.average_iou:.4f}; {published}\n")
    say(fitted.recipe_line)
    if len(fitted.anchors) != len(default.anchors):
        count = counted(len(default.anchors), "anchor")
        say(f"\n{model} takes {count}; for another number set model.num_anchors, those per head")
    return 0


def _size(text: str) -> tuple[int, int]:
    written = re.fullmatch(r"\[?\s*\d{1,5}\s*([,x×]\s*\d{1,5}\s*)?\]?", text)
    numbers = [int(word) for word in re.findall(r"\d+", text)] if written else []
    if not written or min(numbers) < 8:
        raise UserError(
            f"--image-size has '{text}': expected a side in pixels, or height,width, as in 320,512"
        )
    if any(side % 32 for side in numbers):
        near = ",".join(str(max(32, round(side / 32) * 32)) for side in numbers)
        raise UserError(f"--image-size has '{text}': a detector needs multiples of 32, such as {near}")
    return numbers[0], numbers[-1]
