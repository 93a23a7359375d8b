"""HTML fragments, with text from files escaped and the origin of each number as an attribute."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from rankless.errors import escaped
from rankless.printing import finite

_CARD = re.compile(r'<section class="card (two|all|)"')
"""The opening tag of a panel. Escaped text from files cannot contain it."""
_WIDTHS = {"": 1, "two": 2, "all": 3}  # widths in columns


def text(value: object) -> str:
    """Escape a value from a file for HTML, including for attributes."""
    return escape(escaped(str(value)))


def number(value: Any, *where: str | int, digits: int = 4, step: int | None = None) -> str:
    """Format a number as HTML, with its exact value and origin as attributes; return – if it is not finite.

    ``where`` contains the file's name and the keys of the number, as in ``("scores", "per_class", "cat",
    "AP")``. ``step`` is the step of the evaluation that the number is from.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return '<span class="none">–</span>'
    shown = f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"
    of = "" if step is None else f' data-step="{step}"'
    path = text(json.dumps(where, ensure_ascii=False))
    return f'<data value="{value!r}" data-at="{path}"{of}>{shown}</data>'


def card(title: str, body: str, note: str = "", *, width: str = "") -> str:
    """Return a panel with a title. ``width`` is empty for one column, ``two`` or ``all``."""
    below = f'<p class="note">{note}</p>' if note else ""
    return f'<section class="card {width}"><h3>{text(title)}</h3>{body}{below}</section>\n'


def tile(name: str, value: str, kind: str = "") -> str:
    """Return a tile with a key figure, given as HTML. A tile of kind ``main`` is highlighted."""
    return f'<div class="tile {kind}"><b>{value}</b><span>{text(name)}</span></div>'


def fill_rows(cards: str) -> str:
    """Set the widths of the panels so that they fill the rows of pages with three or two columns."""
    widths = [_WIDTHS[found[1]] for found in _CARD.finditer(cards)]
    spans = iter(zip(_spans(widths, 3), _spans(widths, 2), strict=True))

    def sized(found: re.Match[str]) -> str:
        of_three, of_two = next(spans)
        return f'{found[0]} style="--three:{of_three};--two:{of_two}"'

    return _CARD.sub(sized, cards)


def _spans(widths: Sequence[int], columns: int) -> list[int]:
    """Return the width of each panel in sixths of a row."""
    rows: list[list[int]] = []
    for width in (min(width, columns) for width in widths):
        if rows and sum(rows[-1]) + width <= columns:
            rows[-1].append(width)
        else:
            rows.append([width])
    if columns == 3 and rows[-1:] == [[1]] and rows[-2:-1] == [[1, 1, 1]]:
        rows[-2:] = [[1, 1], [1, 1]]
    return [6 * width // sum(row) for row in rows for width in row]


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = "") -> str:
    """Return a scrollable table. ``head`` is text, cells are HTML, and each row starts with its header."""
    titles = "".join(f'<th scope="col">{text(title)}</th>' for title in head)
    lines = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    top = f"<thead><tr>{titles}</tr></thead>"
    return f'<div class="scroll"><table class="{kind}">{top}<tbody>{lines}</tbody></table></div>'


def pairs(rows: Iterable[tuple[str, str]], kind: str = "") -> str:
    """Return pairs of names and values, all HTML, in as many columns as fit. ``short`` columns are narrow."""
    lines = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in rows)
    return f'<dl class="pairs {kind}">{lines}</dl>'


def duration(seconds: float) -> str:
    """Format a duration in seconds as in ``3 min 30 s`` and ``2 h 5 min``."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {rest} s"


def embedded(value: Any) -> str:
    """Return a script element with a value as JSON, escaped so that no text can close the element."""
    content = json.dumps(finite(value), ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json">{content}</script>'
