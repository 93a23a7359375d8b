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
        name: of the thing.
        level: ``error`` keeps a training from starting or going on; ``warning`` may.
        value: what was seen.
        fix: what to do, a command where there is one; empty where all is well.
        host: where; empty for this machine, or for all.
    """

    name: str
    level: Level
    value: str
    fix: str = ""
    host: str = ""


def ok(name: str, value: str) -> Check:
    """Whether all is well."""
    return Check(name, "ok", value)


def warning(name: str, value: str, fix: str) -> Check:
    """It may do harm."""
    return Check(name, "warning", value, fix)


def error(name: str, value: str, fix: str) -> Check:
    """It does harm."""
    return Check(name, "error", value, fix)


def run(looks: Mapping[str, Callable[[], Check]], seconds: float) -> list[Check]:
    """Run all checks at the same time; a check that fails or takes too long is a finding as well.

    Args:
        looks: by the names of what they look at.
        seconds: after which a look is given up: a name server or a network disk may never answer.
    """
    found: dict[str, Check] = {}

    def look(name: str) -> None:
        try:
            found[name] = looks[name]()
        except UserError as problem:
            found[name] = error(name, "; ".join(problem.problems), "fix what it says")
        except Exception as problem:
            value = f"could not be looked at ({type(problem).__name__}: {problem})"
            found[name] = warning(name, value, "look at it by hand")

    threads = [threading.Thread(target=look, args=(name,), daemon=True) for name in looks]
    for thread in threads:
        thread.start()
    until = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0))
    slow = "a name server or a network disk does not answer; look at it by hand"
    done = dict(found)
    return [done.get(name) or error(name, f"no answer within {seconds:g} s", slow) for name in looks]
