"""Three machines for the tests of this folder, where they can be made."""

from __future__ import annotations

import pytest

from support.faults.harness import undisturbed_once
from support.machines.harness import LONG, clock, machines
from support.machines.rig import why_not


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
def alone():
    return undisturbed_once("alone", *LONG)
