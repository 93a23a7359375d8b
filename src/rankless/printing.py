"""What commands print on the terminal: JSON, scores and models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rankless.errors import HARMFUL, escaped

_MOST_COLUMNS = 30


def say(text: str = "", *, file: TextIO | None = None) -> None:
    """A line on the terminal, with whatever names out of files stand in it.

    Args:
        text: line breaks before and after it stay; all else that is no letter or sign is escaped.
        file: where to; the standard output if not given.
    """
    body = text.strip("\n")
    before, _, after = text.partition(body) if body else (text, "", "")
    print(f"{before}{escaped(body)}{after}", file=file, flush=file is not None)


def print_json(value: Any) -> None:
    """A value for programs; what would harm a terminal is written as JSON's own escapes."""
    for line in json.dumps(value, indent=2, ensure_ascii=False).split("\n"):
        print(HARMFUL.sub(lambda found: f"\\u{ord(found[0]):04x}", line))


def print_scores(scores: Mapping[str, Any]) -> None:
    """Single scores line by line, then a table of the classes."""
    from rich.console import Console
    from rich.table import Table

    def number(value: Any) -> str:
        if value is None:
            return "–"
        return f"{value:.4f}" if isinstance(value, float) else str(value)

    single = {name: value for name, value in scores.items() if not isinstance(value, Mapping | list)}
    for name, value in single.items():
        print(f"{name:{max(map(len, single))}}  {number(value)}")
    for rows in (value for value in scores.values() if isinstance(value, Mapping)):
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        table = Table("class", *columns, box=None, pad_edge=False)
        for name, row in rows.items():
            table.add_row(escaped(name), *(number(row.get(column)) for column in columns))
        print()
        Console(soft_wrap=True, highlight=False, markup=False).print(table)
    if confusion := scores.get("confusion"):
        _print_confusion(confusion, list(scores["per_class"]))


def _print_confusion(rows: Sequence[Sequence[int]], names: Sequence[str]) -> None:
    """How often each class was taken for which; what never happened is a dot, so that the rest stands out."""
    names = [escaped(name) for name in names]
    widest = max(map(len, names))
    numbers = [str(label) for label in range(len(names))]
    width = max(len(text) for text in [*numbers, *(str(count) for row in rows for count in row)]) + 1
    print("\nconfusion: a row is the true class, a column what it was taken for")
    if len(names) > _MOST_COLUMNS:
        print(f"{len(names)} classes are too many for a table; --json prints it")
        return
    print(" " * (widest + len(numbers[-1]) + 1) + "".join(f"{number:>{width}}" for number in numbers))
    for number, name, row in zip(numbers, names, rows, strict=True):
        counts = "".join(f"{count or '·':>{width}}" for count in row)
        print(f"{name:{widest}} {number:>{len(numbers[-1])}}{counts}")


def print_models(rows: Sequence[Any]) -> None:
    """A line for each of :class:`rankless.models.listing.Listed`."""
    print(f"{'model':21}{'task':10}{'parameters':>11}{'GFLOPs':>8}{'input':>7}  from")
    for row in rows:
        size = "×".join(map(str, dict.fromkeys(row.size)))
        numbers = f"{row.parameters:>11,}{row.gflops:>8.2f}{size:>7}"
        print(f"{row.name:21}{row.task:10}{numbers}  {row.source}")
    print(
        f"{'timm/NAME':21}{'classify':10}{'':28}any classifier of timm, as in model.name=timm/convnext_tiny"
    )
