from __future__ import annotations

import pytest

from support.faults.harness import undisturbed_once


@pytest.fixture(scope="session")
def expected(tmp_path_factory):
    """What a run leaves behind that nothing happens to, as every other must."""
    return undisturbed_once(tmp_path_factory, "undisturbed")
