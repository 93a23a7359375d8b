"""Wait in a test until something has happened."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(
    condition: Callable[[], Any],
    seconds: float = 60,
    *,
    over: Callable[[], object] = lambda: False,
    said: Callable[[], object] = lambda: "",
    every: float = 0.01,
) -> Any:
    """Return what ``condition`` returns once it is true; fail with ``said`` if that takes too long."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end and not over(), f"it did not come: {said()}"
        time.sleep(every)
    return value
