"""The output of ``rankless doctor``."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rankless.errors import counted, escaped
from rankless.launch.doctor.check import Check
from rankless.launch.doctor.meaning import bandwidth

_ORDER = ("ok", "warning", "error")
_LONG = 24  # columns for names of hosts


def merged(checks: Sequence[Check], hosts: Sequence[str]) -> list[Check]:
    """Merge equal findings of several hosts and sort them by level, errors last.

    ``hosts`` contains the names of all hosts; it is empty if only this machine was checked.
    """
    where: dict[Check, list[str]] = {}
    for check in checks:
        where.setdefault(replace(check, host=""), []).append(check.host)
    rows = []
    for check, names in where.items():
        named = [name for name in names if name]
        shown = "all" if hosts and set(hosts) <= set(named) else ", ".join(named)
        rows.append(replace(check, host=shown))
    return sorted(rows, key=lambda check: _ORDER.index(check.level))


def lines(checks: Sequence[Check], hosts: Sequence[str], columns: int | None = None) -> list[str]:
    """Return a table (level, thing, hosts, value), each fix below its finding, and a summary."""
    rows = merged(checks, hosts)
    columns = max(columns or shutil.get_terminal_size((110, 24)).columns, 60)
    thing = max([len(row.name) for row in rows], default=0)
    host = min(max([len(row.host) for row in rows], default=0), _LONG)
    table = []
    for row in rows:
        head = f"{row.level:7}  {row.name:{thing}}  " + (f"{row.host:{host}}  " if host else "")
        indent = " " * (9 + thing + 2 + (host + 2 if host else 0))
        table += _wrapped(row.value, head, indent, columns)
        if row.fix:
            table += _wrapped(row.fix, f"{indent}fix: ", f"{indent}     ", columns)
    counts = {level: sum(row.level == level for row in rows) for level in _ORDER}
    table += [
        "",
        f"{counted(counts['error'], 'error')}, {counted(counts['warning'], 'warning')}, {counts['ok']} ok",
    ]
    return table


def _wrapped(text: str, first: str, indent: str, columns: int) -> list[str]:
    return textwrap.wrap(
        escaped(text),
        columns,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def speed(timings: Sequence[Mapping[str, Any]], hosts: int) -> list[str]:
    """Return a table of the measurements between hosts: a row per size, two columns per collective."""
    names = list(dict.fromkeys(timing["name"] for timing in timings))
    found = {(timing["name"], timing["size"]): timing for timing in timings}
    table = ["", "size    " + "".join(f"{name:>26}" for name in names)]
    for size in sorted({timing["size"] for timing in timings}):
        row = f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
        cells = ""
        for name in names:
            timing = found.get((name, size))
            text = (
                timing and f"{1000 * timing['seconds']:,.2f} ms {bandwidth(timing, hosts) / 1e6:>8,.1f} MB/s"
            )
            cells += f"{text or 'left out':>26}"
        table.append(f"{row:8}{cells}")
    return table
