"""Tests that share what takes long to set up run on one worker: nothing else would show if they did not."""

from __future__ import annotations

import os
from typing import Any

import pytest


@pytest.fixture(scope="module")
def shared() -> None:
    pass


@pytest.mark.parametrize("number", range(3))
def test_the_scheduler_knows_the_groups(number: int, shared: None, request: pytest.FixtureRequest) -> None:
    grouped = request.node.nodeid.endswith("@tests/test_groups.py")
    assert grouped == ("PYTEST_XDIST_WORKER" in os.environ)


def test_tests_that_share_nothing_are_not_grouped_by_file(request: Any) -> None:
    assert not request.node.nodeid.endswith("@tests/test_groups.py")
