"""What the tests of this folder connect to."""

from __future__ import annotations

import sys
from typing import Any

import pytest

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
