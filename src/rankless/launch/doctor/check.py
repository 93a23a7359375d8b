"""Findings of ``rankless doctor``, and the table that shows them."""

from __future__ import annotations

import shutil
import textwrap
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rankless.errors import UserError, counted, escaped

Level = Literal["ok", "warning", "error"]
AGAIN = "fix the problem, then run rankless doctor again"


@dataclass(frozen=True)
class Check:
    """A finding about one item, such as memory."""

    name: str
    level: Level  # error if the finding prevents training, warning if it may do so
    value: str
    fix: str = ""
    host: str = ""  # empty for this machine, or for all hosts


def ok(name: str, value: str) -> Check:
    return Check(name, "ok", value)


def warning(name: str, value: str, fix: str) -> Check:
    return Check(name, "warning", value, fix)


def error(name: str, value: str, fix: str) -> Check:
    return Check(name, "error", value, fix)


def run(checks: Mapping[str, Callable[[], Check]], seconds: float) -> list[Check]:
    """Run checks in parallel; a check that fails or takes more than ``seconds`` becomes a finding."""
    found: dict[str, Check] = {}

    def work(name: str) -> None:
        try:
            found[name] = checks[name]()
        except UserError as problem:
            found[name] = error(name, "; ".join(problem.problems), AGAIN)
        except Exception as problem:
            value = f"could not be checked ({type(problem).__name__}: {problem})"
            found[name] = warning(name, value, "check it manually")

    threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in checks]
    for thread in threads:
        thread.start()
    until = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0))
    slow = "check whether a name server or a network disk is not responding"
    done = dict(found)
    return [done.get(name) or error(name, f"no answer within {seconds:g} s", slow) for name in checks]


_ORDER = ("ok", "warning", "error")
_LONG = 24  # maximum width of host names in columns


def merged(checks: Sequence[Check], hosts: Sequence[str]) -> list[Check]:
    """Merge equal findings from several hosts, and sort them by level, with errors last.

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
    """Return the lines of a table of findings and fixes, followed by a summary."""
    rows = merged(checks, hosts)
    columns = max(columns or shutil.get_terminal_size((110, 24)).columns, 60)
    item = max([len(row.name) for row in rows], default=0)
    host = min(max([len(row.host) for row in rows], default=0), _LONG)
    table = []
    for row in rows:
        head = f"{row.level:7}  {row.name:{item}}  " + (f"{row.host:{host}}  " if host else "")
        indent = " " * (9 + item + 2 + (host + 2 if host else 0))
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
