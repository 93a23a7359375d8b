from __future__ import annotations

import pytest

from support.faults.harness import undisturbed_once


@pytest.fixture(scope="session")
def expected():
    """What a run leaves behind that nothing happens to, as every other must."""
    return undisturbed_once("undisturbed")
