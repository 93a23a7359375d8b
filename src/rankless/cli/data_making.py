"""The commands data convert, split and pack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rankless.cli.options import (
    Classes,
    Format,
    Json,
    Link,
    Root,
    chosen_classes,
    flag,
    part,
    recipe_and_overrides,
    whole_number,
)
from rankless.errors import UserError, counted
from rankless.printing import print_json, say

app = part()

Out = Annotated[Path, Parameter(help="The new folder. Existing files are never replaced.", metavar="FOLDER")]


@app.command(
    sort_key=5,
    usage="Usage: rankless data convert ROOT --to FORMAT --out FOLDER [OPTIONS]",
    help_epilogue="""\
What the new format cannot hold is listed. The result is read back, and all else
compared bit by bit: exit code 0 if it is equal, 1 if not.

Example:
  rankless data convert VOCdevkit --to coco --out voc-as-coco
""",
)
def convert(
    root: Root,
    /,
    *,
    to: Annotated[
        str, Parameter(help="The format to write; yolo is another name of darknet.", metavar="FORMAT")
    ],
    out: Out,
    format: Format = "auto",
    classes: Classes = "auto",
    link: Link = False,
    as_json: Json = False,
) -> int:
    """Convert a data set to another format."""
    from rankless.cli.data_text import print_conversion
    from rankless.curation.converting import convert as write

    done = write(root, to, out, format, classes=chosen_classes(classes), how="link" if link else "copy")
    if as_json:
        print_json(done.as_json())
    else:
        print_conversion(done)
    return 1 if done.differences else 0


@app.command(
    sort_key=6,
    usage="Usage: rankless data split ROOT --out FOLDER [OPTIONS]",
    help_epilogue="""\
An image's split follows from its name: new images move no old ones (except with --stratify).
Images that are the same or nearly the same are kept together in one split.

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
        bool, Parameter(help="Stratify: give every split the same share of each class."), flag
    ] = False,
    group: Annotated[
        str | None,
        Parameter(help="Keep images in one split if this part of their names is equal.", metavar="REGEX"),
    ] = None,
    near: Annotated[
        bool,
        Parameter(
            negative="--no-near",
            help="Keep near duplicates in one split. Identical images always stay together.",
        ),
    ] = True,
    seed: Annotated[int, Parameter(help="Seed of the random division.", metavar="N")] = 0,
    source: Annotated[
        tuple[str, ...],
        Parameter(
            name="--split",
            help="Divide only this split. Repeatable.",
            negative="",
            metavar="NAME",
            show_default=False,
        ),
    ] = (),
    format: Format = "auto",
    classes: Classes = "auto",
    link: Link = False,
    as_json: Json = False,
) -> int:
    """Split a data set into train, val and test, whatever splits it has."""
    fractions = _fraction("--val", val), _fraction("--test", test)
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


def _fraction(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{option} has '{text}': expected a fraction between 0 and 1, such as 0.2") from None


@app.command(
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
        str,
        Parameter(
            name="RECIPE KEY=VALUE", help="With --decoded: the recipe of the training, and changes to it."
        ),
    ],
    out: Annotated[
        Path | None, Parameter(help="The new folder. Existing files are never replaced.", metavar="FOLDER")
    ] = None,
    shard_size: Annotated[str, Parameter(help="Size of a shard in MiB.", metavar="N")] = "512",
    decoded: Annotated[
        bool, Parameter(help="Fill the cache of data.cache=disk, so that a training decodes no image."), flag
    ] = False,
    format: Format = "auto",
    classes: Classes = "auto",
    as_json: Json = False,
) -> int:
    """Pack a data set into tar shards, or cache its decoded images."""
    if decoded and out is None:
        if classes != "auto":
            raise UserError("--classes goes with --out; with --decoded give data.classes=[…] instead")
        return _fill(root, format, recipe, as_json)
    if decoded or out is None:
        raise UserError(
            "give one of the two: --out FOLDER for tar shards, or --decoded to fill the cache of "
            "data.cache=disk"
        )
    if recipe:
        raise UserError(f"'{recipe[0]}' would change nothing: a recipe and its changes go with --decoded")
    size = whole_number("--shard-size", shard_size, " (MiB)")
    from rankless.cli.data_text import print_conversion
    from rankless.curation.converting import convert as write

    done = write(root, "webdataset", out, format, classes=chosen_classes(classes), shard_bytes=size * 2**20)
    if as_json:
        print_json(done.as_json())
    else:
        print_conversion(done)
    return 1 if done.differences else 0


def _fill(root: str, format: str, words: tuple[str, ...], as_json: bool) -> int:
    name, overrides = recipe_and_overrides(words)
    from rankless.curation.filling import fill
    from rankless.recipe import load

    overrides = [*overrides, f"data.root={root}", f"data.format={format}"]
    done = fill(load.load(name, overrides) if name else load.default(overrides))
    if as_json:
        print_json(
            [
                {
                    "split": one.split,
                    "images": one.images,
                    "unreadable": [[problem.path, problem.reason] for problem in one.unreadable],
                }
                for one in done
            ]
        )
        return 0
    for one in done:
        failed = f", {len(one.unreadable)} cannot be read" if one.unreadable else ""
        say(f"{one.split}: {counted(one.images, 'image')}{failed}")
        for note in one.notes:
            say(f"  {note}")
        for problem in one.unreadable[:20]:
            say(f"  {problem.path}: {problem.reason}")
    print("a training finds them with data.cache=disk")
    return 0
