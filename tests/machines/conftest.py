"""Three machines for the tests of this folder, where they can be made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))
sys.path.insert(0, str(Path(__file__).parent))
from harness_for_faults import undisturbed_once
from harness_for_machines import LONG, clock, machines
from rig import why_not


@pytest.fixture(scope="session")
def rig(tmp_path_factory):
    """Machines with clocks a minute apart, where there is a C compiler."""
    if reason := why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("machines")
    library = clock(folder)
    own = {"h2": {"LD_PRELOAD": str(library), "CLOCK_AHEAD": "60"}} if library else {}
    with machines(folder, 3, own) as made:
        yield made


@pytest.fixture(scope="session")
def alone(tmp_path_factory):
    return undisturbed_once(tmp_path_factory, "alone", *LONG)
