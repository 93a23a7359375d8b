"""The run that nothing happens to, which all others are compared with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from harness_for_faults import undisturbed_once


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What every run must leave behind."""
    return undisturbed_once(tmp_path_factory, "undisturbed")
