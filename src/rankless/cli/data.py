"""The commands under ``rankless data``."""

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
    Range,
    Root,
    Splits,
    chosen_classes,
    chosen_range,
    flag,
    fraction,
    group,
    recipe_and_overrides,
    refuse_stray,
    refuse_without,
    repeatable,
    whole_number,
)
from rankless.errors import UserError, check_all
from rankless.printing import print_json, say
from rankless.task_kinds import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rankless.curation.converting import Converted
    from rankless.recipe.schema import Recipe

data = group(
    name="data",
    help="Inspect, check, convert and split data sets.",
    help_epilogue="Start with:\n  rankless data check mydata\n  rankless data show mydata",
    usage="Usage: rankless data COMMAND ROOT [OPTIONS]",
    sort_key=10,
)

Out = Annotated[Path, Parameter(help="A new folder for the result.", metavar="FOLDER")]


@data.command(
    sort_key=1,
    usage="Usage: rankless data check ROOT [OPTIONS]",
    help_epilogue="""\
The exit code is 0 if the data has no errors, 1 if it has some, and 2 for a
mistake in the command.

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
        bool, Parameter(help="Read only image headers, and do not search for duplicates."), flag
    ] = False,
    fix: Annotated[
        bool, Parameter(help="Write a copy of the data without the faulty entries."), flag
    ] = False,
    drop_invalid: Annotated[
        bool,
        Parameter(
            help="With --fix: also drop boxes that would make training fail. Their objects become background."
        ),
        flag,
    ] = False,
    out: Annotated[
        Path | None, Parameter(help="With --fix: folder for the copy. Default: ROOT-fixed.", metavar="FOLDER")
    ] = None,
    link: Link = False,
    value_range: Range = "full",
    as_json: Json = False,
) -> int:
    """Check a data set for errors and likely mistakes."""
    values = chosen_range(value_range)
    if not fix:
        refuse_without("--fix", {"--out": out, "--drop-invalid": drop_invalid, "--link": link})
    from rankless.cli.data_text import print_check, print_fix
    from rankless.curation.checking import check as check_data
    from rankless.curation.data_set import folder_beside, must_be_outside
    from rankless.curation.fixing import fix as write_fixed
    from rankless.files.work_folder import refuse_existing

    target = out or folder_beside(root, "fixed")
    if fix:
        must_be_outside(root, target)
        refuse_existing(target)
    checked = check_data(root, format, split, classes=chosen_classes(classes), quick=quick, values=values)
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


@data.command(
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
        Parameter(help="Also plot the statistics to a .png, .jpg, .webp, .svg or .pdf file.", metavar="FILE"),
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> int:
    """Print statistics about images, classes and boxes."""
    if out is None:
        refuse_without("--out", {"--force": force})
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
            say(f"\nwritten: {out}" + (" (replaced)" if outputs.replaced else ""))
    return 0


@data.command(
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
        str, Parameter(name="RECIPE KEY=VALUE", help="With --augmented: the recipe, followed by changes.")
    ],
    split: Annotated[
        str | None, Parameter(help="Split to show. Default: the first one.", metavar="NAME")
    ] = None,
    format: Format = "auto",
    classes: Classes = "auto",
    count: Annotated[str, Parameter(help="Number of images to show.", metavar="N")] = "16",
    seed: Annotated[int, Parameter(help="Random seed for the choice of images.", metavar="N")] = 0,
    class_name: Annotated[
        str | None,
        Parameter(name="--class", help="Show only images that contain this class.", metavar="NAME"),
    ] = None,
    augmented: Annotated[bool, Parameter(help="Show the images augmented, as in training."), flag] = False,
    value_range: Range = "full",
    out: Annotated[Path, Parameter(help="The file to write: .png, .jpg or .html.", metavar="FILE")] = Path(
        "contact-sheet.png"
    ),
    force: Force = False,
) -> int:
    """Write a contact sheet of images with their annotations."""
    number = whole_number("--count", count)
    if seed < 0:
        raise UserError(f"--seed is '{seed}': expected a whole number of at least 0")
    if recipe and not augmented:
        raise UserError(f"'{recipe[0]}': a recipe has no effect without --augmented; add --augmented")
    if augmented and value_range != "full":
        raise UserError("--range has no effect with --augmented; use data.range in the recipe")
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
        augmented=_recipe_for(root, recipe) if augmented else None,
        values=chosen_range(value_range),
    )
    contact_sheet.write(selected, out, outputs)
    unreadable = sum(one.image is None for one in selected.shown)
    failed = f", {unreadable} unreadable" if unreadable else ""
    say(f"{selected.title}{failed}: {out}" + (" (replaced)" if outputs.replaced else ""))
    return 0


def _recipe_for(root: str, words: tuple[str, ...]) -> Callable[[str], Recipe]:
    """Return a function that loads the given recipe or, if none is given, the default recipe of a task."""
    name, overrides = recipe_and_overrides(words)
    refuse_stray(overrides, "data.augment.mosaic=1")

    def recipe_for(task: str) -> Recipe:
        from rankless.data.builtin import is_built_in
        from rankless.recipe import load

        chosen = name or ("digits" if is_built_in(root) else kind_of(task).shown)
        return load.load(chosen, overrides) if chosen else load.default(overrides)

    return recipe_for


@data.command(
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
    split: Annotated[str, Parameter(help="Split to read.", metavar="NAME")] = "train",
    format: Format = "auto",
    classes: Classes = "auto",
    model: Annotated[
        str, Parameter(help="Detector for which to compute anchors.", metavar="NAME")
    ] = "yolov4",
    count: Annotated[
        str | None, Parameter(help="Number of anchors. Default: as many as the model has.", metavar="N")
    ] = None,
    image_size: Annotated[
        str | None,
        Parameter(
            help="Input size in pixels: one side, or HEIGHT,WIDTH. Default: the model's.",
            metavar="N",
            allow_leading_hyphen=True,
        ),
    ] = None,
    seed: Annotated[int, Parameter(help="Random seed for k-means.", metavar="N")] = 0,
    as_json: Json = False,
) -> int:
    """Compute anchors that fit the boxes, with k-means."""
    number = None if count is None else whole_number("--count", count)
    size = None if image_size is None else _size(image_size)
    from rankless.cli.data_text import print_anchors
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
    else:
        print_anchors(fitted)
    return 0


def _size(text: str) -> tuple[int, int]:
    written = re.fullmatch(r"\[?\s*\d{1,5}\s*([,x×]\s*\d{1,5}\s*)?\]?", text)
    numbers = [int(word) for word in re.findall(r"\d+", text)] if written else []
    if not written or min(numbers) < 8:
        raise UserError(f"--image-size is '{text}': expected a side or height,width in pixels, as in 320,512")
    if any(side % 32 for side in numbers):
        near = ",".join(str(max(32, round(side / 32) * 32)) for side in numbers)
        raise UserError(f"--image-size is '{text}': a detector needs multiples of 32, such as {near}")
    return numbers[0], numbers[-1]


@data.command(
    sort_key=5,
    usage="Usage: rankless data convert ROOT --to FORMAT --out FOLDER [OPTIONS]",
    help_epilogue="""\
The command lists the information that the new format cannot store. It then
reads the result back and compares everything else, bit for bit. The exit code
is 0 if everything is equal, otherwise 1.

Example:
  rankless data convert VOCdevkit --to coco --out voc-as-coco
""",
)
def convert(
    root: Root,
    /,
    *,
    to: Annotated[
        str,
        Parameter(
            help="The format to write: webdataset, coco, voc, darknet (or yolo), csv, lines, image-folder.",
            metavar="FORMAT",
        ),
    ],
    out: Out,
    format: Format = "auto",
    classes: Classes = "auto",
    link: Link = False,
    as_json: Json = False,
) -> int:
    """Convert a data set to another format."""
    from rankless.curation.converting import convert as write

    done = write(root, to, out, format, classes=chosen_classes(classes), how="link" if link else "copy")
    return _report_conversion(done, as_json)


def _report_conversion(done: Converted, as_json: bool) -> int:
    from rankless.cli.data_text import print_conversion

    if as_json:
        print_json(done.as_json())
    else:
        print_conversion(done)
    return 1 if done.differences else 0


@data.command(
    sort_key=6,
    usage="Usage: rankless data split ROOT --out FOLDER [OPTIONS]",
    help_epilogue="""\
An image's name determines its split, so adding images does not move the
others, except with --stratify. Duplicates and near duplicates stay in the same
split.

Examples:
  rankless data split mydata --val 0.2 --test 0.1 --out mydata-split
  rankless data split mydata --stratify --group "(patient\\d+)_" --out new
""",
)
def split(
    root: Root,
    /,
    *,
    out: Out,
    val: Annotated[str, Parameter(help="Fraction of the images for validation.", metavar="FRACTION")] = "0.2",
    test: Annotated[
        str, Parameter(help="Fraction of the images for a test split.", metavar="FRACTION")
    ] = "0",
    stratify: Annotated[
        bool, Parameter(help="Keep the proportions of the classes the same in every split."), flag
    ] = False,
    group: Annotated[
        str | None,
        Parameter(
            help="Keep images in the same split if this pattern matches the same text in their paths.",
            metavar="REGEX",
        ),
    ] = None,
    near: Annotated[
        bool,
        Parameter(
            negative="--no-near",
            help="Keep near duplicates in the same split. Identical images always stay together.",
        ),
    ] = True,
    seed: Annotated[int, Parameter(help="Random seed for the split.", metavar="N")] = 0,
    source: Annotated[
        tuple[str, ...],
        Parameter(name="--split", help="Use only this existing split. Repeatable.", metavar="NAME"),
        repeatable,
    ] = (),
    format: Format = "auto",
    classes: Classes = "auto",
    link: Link = False,
    as_json: Json = False,
) -> int:
    """Split a data set into train, val and test, regardless of its existing splits."""
    fractions = check_all(lambda: fraction("--val", val), lambda: fraction("--test", test))
    from rankless.cli.data_text import print_division
    from rankless.curation.splitting import split as divide

    done = divide(
        root,
        out,
        format,
        splits=source,
        classes=chosen_classes(classes),
        val=fractions[0],
        test=fractions[1],
        stratify=stratify,
        group=group,
        near=near,
        seed=seed,
        link=link,
    )
    if as_json:
        print_json(done.as_json())
    else:
        print_division(done)
    return 0


@data.command(
    sort_key=7,
    usage="Usage: rankless data pack ROOT --out FOLDER [OPTIONS]\n"
    "       rankless data pack ROOT --decoded [RECIPE] [KEY=VALUE ...]",
    help_epilogue="""\
Examples:
  rankless data pack mydata --out shards --shard-size 256
  rankless data pack mydata --decoded my.yaml
""",
)
def pack(
    root: Root,
    /,
    *recipe: Annotated[
        str, Parameter(name="RECIPE KEY=VALUE", help="With --decoded: the recipe, followed by changes.")
    ],
    out: Annotated[Path | None, Parameter(help="A new folder for the shards.", metavar="FOLDER")] = None,
    shard_size: Annotated[str, Parameter(help="Shard size in MiB.", metavar="N")] = "512",
    decoded: Annotated[
        bool,
        Parameter(help="Fill the cache that data.cache=disk reads, so that training does not decode images."),
        flag,
    ] = False,
    format: Format = "auto",
    classes: Classes = "auto",
    as_json: Json = False,
) -> int:
    """Pack a data set into tar shards, or cache its decoded images."""
    if decoded and out is None:
        if classes != "auto":
            raise UserError("--classes: has no effect with --decoded; use data.classes=[…] instead")
        return _fill(root, format, recipe, as_json)
    if decoded or out is None:
        raise UserError(
            "expected --out FOLDER (to write tar shards) or --decoded (to fill the cache that "
            "data.cache=disk reads)"
        )
    if recipe:
        raise UserError(f"'{recipe[0]}': a recipe has no effect without --decoded; add --decoded")
    size = whole_number("--shard-size", shard_size, " (MiB)")
    from rankless.curation.converting import convert as write

    done = write(root, "webdataset", out, format, classes=chosen_classes(classes), shard_bytes=size * 2**20)
    return _report_conversion(done, as_json)


def _fill(root: str, format: str, words: tuple[str, ...], as_json: bool) -> int:
    name, overrides = recipe_and_overrides(words)
    from rankless.cli.data_text import print_filled
    from rankless.curation.filling import fill
    from rankless.recipe import load

    overrides = [*overrides, f"data.root={root}", f"data.format={format}"]
    done = fill(load.load(name, overrides) if name else load.default(overrides))
    if as_json:
        print_json([one.as_json() for one in done])
    else:
        print_filled(done)
    return 0
