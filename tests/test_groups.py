"""Tests that share what takes long to set up run on one worker: nothing else would show if they did not."""

from __future__ import annotations

import os
from typing import Any

import pytest


@pytest.fixture(scope="module")
def dear() -> None:
    pass


@pytest.mark.parametrize("number", range(3))
def test_the_scheduler_hears_of_groups(number: int, dear: None, request: pytest.FixtureRequest) -> None:
    grouped = request.node.nodeid.endswith("@tests/test_groups.py")
    assert grouped == ("PYTEST_XDIST_WORKER" in os.environ)


def test_tests_that_share_nothing_are_not_held_together_with_their_file(request: Any) -> None:
    assert not request.node.nodeid.endswith("@tests/test_groups.py")
