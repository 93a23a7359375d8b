from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from harness_for_faults import undisturbed_once


@pytest.fixture(scope="session")
def expected(tmp_path_factory):
    """What a run leaves behind that nothing happens to, as every other must."""
    return undisturbed_once(tmp_path_factory, "undisturbed")
