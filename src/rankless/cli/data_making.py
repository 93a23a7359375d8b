"""The commands that make another data set of one: convert, split, pack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rankless.cli.words import Format, Json, Root, flag, part, whole_number
from rankless.printing import print_json

app = part()

Out = Annotated[Path, Parameter(help="The new folder; nothing there is replaced.", metavar="FOLDER")]


@app.command(
    sort_key=5,
    usage="Usage: rankless data convert ROOT --to FORMAT --out FOLDER [OPTIONS]",
    help_epilogue="""\
The result is read back and compared bit by bit: exit code 0 if all is equal, 1 if not.

Example:
  rankless data convert VOCdevkit --to coco --out voc-as-coco
""",
)
def convert(
    root: Root,
    /,
    *,
    to: Annotated[str, Parameter(help="The new format.", metavar="FORMAT")],
    out: Out,
    format: Format = "auto",
    copy: Annotated[bool, Parameter(help="Copy pictures; otherwise they are linked."), flag] = False,
    as_json: Json = False,
) -> int:
    """Write a data set in another format."""
    from rankless.cli.data_text import print_conversion
    from rankless.curation.converting import convert as write

    done = write(root, to, out, format, how="copy" if copy else "link")
    if as_json:
        print_json(done.as_json())
    else:
        print_conversion(done)
    return 1 if done.differences else 0


@app.command(
    sort_key=6,
    usage="Usage: rankless data split ROOT --out FOLDER [OPTIONS]",
    help_epilogue="""\
A picture's split follows from its name: new pictures move no old ones (except with --stratify).

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
    val: Annotated[float, Parameter(help="Share for validation.", metavar="SHARE")] = 0.2,
    test: Annotated[float, Parameter(help="Share for a test split.", metavar="SHARE")] = 0.0,
    stratify: Annotated[bool, Parameter(help="Give each class equal shares in all splits."), flag] = False,
    group: Annotated[
        str | None,
        Parameter(help="Keep pictures together whose names have this in common.", metavar="REGEX"),
    ] = None,
    seed: Annotated[int, Parameter(help="Another number divides otherwise.", metavar="N")] = 0,
    source: Annotated[
        tuple[str, ...],
        Parameter(
            name="--split",
            help="Divide only this split; repeatable.",
            negative="",
            metavar="NAME",
            show_default=False,
        ),
    ] = (),
    format: Format = "auto",
    as_json: Json = False,
) -> int:
    """Divide a data set's pictures anew into train, val and test."""
    from rankless.cli.data_text import print_division
    from rankless.curation.splitting import split as divide

    done = divide(
        root,
        out,
        format,
        splits=source,
        val=val,
        test=test,
        stratify=stratify,
        group=group,
        seed=seed,
    )
    if as_json:
        print_json(done.as_json())
    else:
        print_division(done)
    return 0


@app.command(
    sort_key=7,
    usage="Usage: rankless data pack ROOT --out FOLDER [OPTIONS]",
    help_epilogue="Example:\n  rankless data pack mydata --out shards --shard-size 256\n",
)
def pack(
    root: Root,
    /,
    *,
    out: Out,
    shard_size: Annotated[str, Parameter(help="Of a shard, in MiB.", metavar="N")] = "512",
    format: Format = "auto",
    as_json: Json = False,
) -> int:
    """Pack a data set into tar shards, which are quick to read from slow disks."""
    size = whole_number("--shard-size", shard_size, " (MiB)")
    from rankless.cli.data_text import print_conversion
    from rankless.curation.converting import convert as write

    done = write(root, "webdataset", out, format, shard_bytes=size * 2**20)
    if as_json:
        print_json(done.as_json())
    else:
        print_conversion(done)
    return 1 if done.differences else 0
