"""Helpers of these tests lie beside them, and hostile checkpoints with the fuzzing of all inputs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "heads"), str(HERE.parent / "fuzz")]
NETWORK_USE: list[Any] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("socket.getaddrinfo", "socket.connect"):
        NETWORK_USE.append(arguments)


sys.addaudithook(_audit)


@pytest.fixture
def network_use() -> list[Any]:
    """The arguments of all calls that look up or connect to an address during the test."""
    NETWORK_USE.clear()
    return NETWORK_USE
