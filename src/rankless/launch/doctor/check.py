"""A finding of ``rankless doctor``: the thing checked, its state, and the fix."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from rankless.errors import UserError

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Check:
    """The finding about one thing.

    Attributes:
        name: name of the thing.
        level: ``error`` prevents a training; ``warning`` may do so.
        value: observed state.
        fix: what to do, if possible a command; empty if all is well.
        host: name of the host; empty for this machine, or for all.
    """

    name: str
    level: Level
    value: str
    fix: str = ""
    host: str = ""


def ok(name: str, value: str) -> Check:
    """Return a finding of level ``ok``."""
    return Check(name, "ok", value)


def warning(name: str, value: str, fix: str) -> Check:
    """Return a finding of level ``warning``."""
    return Check(name, "warning", value, fix)


def error(name: str, value: str, fix: str) -> Check:
    """Return a finding of level ``error``."""
    return Check(name, "error", value, fix)


def run(looks: Mapping[str, Callable[[], Check]], seconds: float) -> list[Check]:
    """Run all checks in parallel; one that fails, or takes more than ``seconds``, becomes a finding."""
    found: dict[str, Check] = {}

    def look(name: str) -> None:
        try:
            found[name] = looks[name]()
        except UserError as problem:
            found[name] = error(name, "; ".join(problem.problems), "fix this problem")
        except Exception as problem:
            value = f"could not be checked ({type(problem).__name__}: {problem})"
            found[name] = warning(name, value, "check it by hand")

    threads = [threading.Thread(target=look, args=(name,), daemon=True) for name in looks]
    for thread in threads:
        thread.start()
    until = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0))
    slow = "a name server or a network disk does not answer; check it by hand"
    done = dict(found)
    return [done.get(name) or error(name, f"no answer within {seconds:g} s", slow) for name in looks]
