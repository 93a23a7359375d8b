"""Print the results of the data commands as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from rankless.curation.checking import Checked, fails
from rankless.curation.converting import Converted
from rankless.curation.fixing import Fixed, remedy
from rankless.curation.splitting import Divided, fractions_of
from rankless.curation.statistics import SplitStatistics, Spread, Statistics
from rankless.data.formats.registry import format_named
from rankless.data.index.annotations import Annotations
from rankless.data.index.findings import KINDS, Findings
from rankless.errors import counted, escaped
from rankless.printing import say

if TYPE_CHECKING:  # these import PyTorch
    from rankless.curation.filling import Filled
    from rankless.curation.fitting_anchors import FittedAnchors

FIRST = 3
"""Maximum number of findings of each kind to print. ``--json`` prints more."""
MOST_CLASSES = 60
_WIDEST = 1000
_THEN = {
    "stops": "training stops",
    "needs range": "training stops without data.range",
    "dropped": "training leaves them out",
    "clipped": "training clips them",
    "replaced": "training replaces them",
    "reported": "",
}


def print_check(checked: Checked) -> None:
    """Print the findings in each split and between the splits."""
    say(f"{checked.data.root}: {checked.data.title}")
    for name, each in checked.data.splits.items():
        say(f"\n{name}: {_counted(each)}")
        for sentence in checked.notes(name):
            say(f"  · {sentence}")
        stops = "stops" if checked.too_many_unreadable(name) else "replaced"
        _print_findings(checked.findings[name], {"replaced": _THEN[stops]})
        if not checked.notes(name) and not checked.findings[name].counts:
            say("  nothing found")
    if checked.between.counts or checked.classes or checked.missing or checked.undivided or checked.lacking:
        say("\nbetween the splits")
        for sentence in (*checked.classes, *checked.missing):
            say(f"  ✗ {sentence} ({_THEN['stops']})")
        for note in (*checked.lacking, *filter(None, [checked.undivided])):
            say(f"  · {note}")
        _print_findings(checked.between)
    if checked.quick:
        say("\nonly headers were read: no image was decoded or compared")
    wrong = f"errors: {counted(checked.wrong, 'finding')} (✗); {remedy(checked)}"
    say("\nno errors found" if checked.ok else f"\n{wrong}")


def _print_findings(findings: Findings, instead: Mapping[str, str] | None = None) -> None:
    """Print each kind of finding with its first few locations. ``instead`` overrides entries of ``_THEN``."""
    for kind, count, first in sorted(findings, key=lambda each: not fails(each[0])):
        follows = {**_THEN, **(instead or {})}[KINDS[kind].outcome]
        then = f" ({follows})" if follows else ""
        say(f"  {'✗' if fails(kind) else '·'} {kind}: {KINDS[kind].counted(count)}{then}")
        for finding in first[:FIRST]:
            say(f"      {finding}")
        if count > FIRST:
            say(f"      … and {count - FIRST:,} more")


def print_fix(fixed: Fixed) -> None:
    """Print the path of the fixed copy, and its differences from the original."""
    say(f"\nwritten: {fixed.out}")
    for change in fixed.changes or ["no changes were needed"]:
        say(f"  {change}")


def print_conversion(done: Converted) -> None:
    """Print what was written, what was lost, and whether the result equals the original."""
    for name, each in done.data.splits.items():
        say(f"{name}: {_counted(each)}")
    say(f"written: {done.out} ({done.data.title} → {format_named(done.to).TITLE})")
    for sentence in done.lost:
        say(f"  {sentence}")
    if done.differences:
        say("read back and compared: different from the original")
        for sentence in done.differences:
            say(f"  {sentence}")
    else:
        what = "everything else is" if done.lost else "image sizes, classes and boxes are"
        say(f"read back and compared: {what} bit-identical")


def print_division(done: Divided) -> None:
    """Print the number and fraction of images, and of each class, in every split."""
    say(f"written: {done.out} ({done.data.title} → {format_named(done.to).TITLE})")
    for note in done.notes:
        say(f"  {note}")
    total = sum(map(len, done.splits.values()))
    say()
    table = _table("", *(column for name in done.splits for column in (name, "share")))
    pairs = [(f"{len(each):,}", f"{len(each) / max(total, 1):.1%}") for each in done.splits.values()]
    table.add_row("images", *(cell for pair in pairs for cell in pair))
    table.add_row("wanted", *(cell for share in done.wanted.values() for cell in ("", f"{share:.1%}")))
    counts = done.counts()
    names = next(iter(done.splits.values())).class_names
    _print_classes(table, names, list(counts.values()), list(fractions_of(counts).values()))


def print_anchors(fitted: FittedAnchors) -> None:
    """Print the fitted anchors and how well they and the model's default anchors match the boxes."""
    default, model = fitted.default, fitted.model
    height, width = fitted.image_size
    anchors, boxes = counted(len(fitted.anchors), "anchor"), counted(fitted.boxes, "box", "boxes")
    say(f"{anchors} for {boxes} on an input of {width} × {height} pixels")
    published = f"with the {len(default.anchors)} anchors of {model}: {default.average_iou:.4f}"
    say(f"average IoU {fitted.average_iou:.4f}; {published}\n")
    say(fitted.recipe_line)
    if len(fitted.anchors) != len(default.anchors):
        count = counted(len(default.anchors), "anchor")
        say(f"\n{model} has {count}; to use another number, set model.num_anchors (anchors per head)")


def print_filled(done: Sequence[Filled]) -> None:
    """Print how many images of each split are cached, and which ones cannot be read."""
    for one in done:
        failed = f", {len(one.unreadable)} cannot be read" if one.unreadable else ""
        say(f"{one.split}: {counted(one.images, 'image')}{failed}")
        for note in one.notes:
            say(f"  {note}")
        for problem in one.unreadable[:20]:
            say(f"  {problem.path}: {problem.reason}")
    print("to use this cache, train with data.cache=disk")


def print_statistics(stats: Statistics) -> None:
    """Print a table of the statistics, a table of the classes, and remarks."""
    splits = stats.splits
    say(f"{stats.root}: {format_named(stats.format).TITLE}\n")
    table = _table("", *splits)
    for title, cells in _rows(list(splits.values())):
        if any(cells):
            table.add_row(title, *cells)
    _print(table)
    say("(a/b/c: minimum, median and maximum)\n")
    names = list(dict.fromkeys(name for each in splits.values() for name in each.classes))
    counts = [[each.classes.get(name, 0) for name in names] for each in splits.values()]
    shares = [[count / max(sum(each), 1) for count in each] for each in counts]
    _print_classes(
        _table("class", *(column for name in splits for column in (name, "share"))), names, counts, shares
    )
    if stats.remarks:
        say()
        for remark in stats.remarks:
            say(remark)


def _rows(splits: Sequence[SplitStatistics]) -> list[tuple[str, list[str]]]:
    """Return each row's title and its cells, one per split. Cells without a value are empty."""
    boxed = [each.boxes is not None for each in splits]

    def share(part: int, whole: int | None) -> str:
        return f"{part:,} ({part / whole:.1%})" if part and whole else ("0" if whole else "")

    def where_boxed(cells: list[str]) -> list[str]:
        return [cell if has else "" for cell, has in zip(cells, boxed, strict=True)]

    return [
        ("images", [f"{each.images:,}" for each in splits]),
        ("  unreadable", [f"{each.unreadable:,}" if each.unreadable else "" for each in splits]),
        ("  without boxes", where_boxed([share(each.empty, each.images) for each in splits])),
        ("  width", [_spread(each.width, 0) for each in splits]),
        ("  height", [_spread(each.height, 0) for each in splits]),
        ("  width / height", [_spread(each.aspect, 2) for each in splits]),
        ("  most common size", [_most_common(each) for each in splits]),
        ("boxes", where_boxed([f"{each.boxes or 0:,}" for each in splits])),
        ("  difficult", [f"{each.difficult:,}" if each.difficult else "" for each in splits]),
        ("  crowd", [f"{each.crowd:,}" if each.crowd else "" for each in splits]),
        ("  per image", [_spread(each.boxes_per_image, 0) for each in splits]),
        ("  small (below 32²)", where_boxed([share(each.small, each.boxes) for each in splits])),
        ("  medium (below 96²)", where_boxed([share(each.medium, each.boxes) for each in splits])),
        ("  large", where_boxed([share(each.large, each.boxes) for each in splits])),
        ("  side / image side", [_spread(each.box_side, 3) for each in splits]),
        ("  width / height", [_spread(each.box_aspect, 2) for each in splits]),
    ]


def _most_common(each: SplitStatistics) -> str:
    size = next(iter(each.common_sizes), None)
    if size is None:
        return ""
    return f"{size} ({each.common_sizes[size] / max(each.images, 1):.0%})"


def _spread(values: Spread | None, digits: int) -> str:
    """Return the minimum, median and maximum as text, or one number if all three are equal."""
    if values is None or values.median is None:
        return ""
    three = [f"{value:,.{digits}f}" for value in (values.least, values.median, values.most)]
    return three[0] if three[0] == three[2] else "/".join(three)


def _print_classes(
    table: Table, names: Sequence[str], counts: Sequence[Sequence[int]], shares: Sequence[Sequence[float]]
) -> None:
    """Add a row for each class and print the table. ``counts`` and ``shares`` have one entry per split."""
    rows = zip(names, zip(*counts, strict=True), zip(*shares, strict=True), strict=True)
    for name, count, share in islice(rows, MOST_CLASSES):
        pairs = zip(count, share, strict=True)
        table.add_row(escaped(name), *(cell for c, s in pairs for cell in (f"{c:,}", f"{s:.1%}")))
    _print(table)
    if len(names) > MOST_CLASSES:
        say(f"… and {len(names) - MOST_CLASSES:,} more classes; --json lists all")


def _counted(each: Annotations) -> str:
    boxes = f", {counted(len(each.boxes), 'box', 'boxes')}" if each.has_boxes else ""
    return counted(len(each), "image") + boxes


def _table(first: str, *columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _print(table: Table) -> None:
    # A table that is wider than the terminal wraps, because truncated cells would hide numbers.
    Console(width=_WIDEST, highlight=False, markup=False).print(table)
