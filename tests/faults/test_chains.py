"""Runs that meet one fault after another, a handful of those in ``benchmarks/faults.py``."""

from __future__ import annotations

import random

import pytest

import faults
from support.faults.harness import undisturbed_once

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


@pytest.fixture(scope="session")
def scored():
    """What a run of these recipes leaves behind that nothing happens to."""
    return undisturbed_once("scored", *faults.WORDS)


@pytest.mark.parametrize(
    "kinds",
    [
        ["kill -9 of rank 0 in a save", "SIGTERM in evaluation", "full disk"],
        ["NaN gradients", "unused parameter", "kill -9 of a rank in evaluation"],
    ],
    ids=["from outside", "from inside"],
)
def test_no_fault_changes_a_bit_or_loses_a_saved_step(tmp_path, scored, kinds):
    tallies = {kind: faults.Tally() for kind in faults.KINDS}
    late = faults.one_run(kinds, tmp_path / "chain", random.Random(1), scored, tallies, loaders=[0])
    assert not [sentence for tally in tallies.values() for sentence in tally.told]
    assert [kind for kind in kinds if tallies[kind].tried] + late == kinds
