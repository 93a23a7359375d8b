"""Disks that are full and files that cannot be written: a sentence, and the same bits once there is room."""

from __future__ import annotations

import resource

import pytest

from support.faults.harness import Run, finish, outcome
from support.small_disk import fill, small_disk

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


def test_a_full_disk_ends_the_run_with_a_sentence(tmp_path, expected):
    with small_disk(tmp_path / "disk", 256) as disk:
        with Run(disk / "run", 2, environment={"FAULT_SLEEP": "0.05"}) as run:
            run.until(lambda: run.run.pointed("last"))
            filler = fill(disk)
            said = run.ends(2)
            assert "warning: the checkpoint of step 6 could not be written ([Errno 28]" in said
            last = said.splitlines()[-1]  # of the journal, or of the last checkpoint
            assert last.startswith("error: ") and "No space left on device" in last and "make room" in last
            assert not list((disk / "run").rglob("*.tmp"))
        filler.unlink()
        assert finish(disk / "run", 3) == expected


def test_a_disk_too_full_for_the_note_ends_the_run_with_an_error(tmp_path):
    with Run(tmp_path / "run", 2, environment={"FAULT_SLEEP": "0.05"}) as run:
        run.until(lambda: run.step() >= 1)
        resource.prlimit(run.pid("rank 0"), resource.RLIMIT_FSIZE, (1, 1))
        said = run.ends(1)
    # The output is a file here, so the limit swallows what rank 0 says; the launcher still speaks.
    assert said.splitlines()[-1].startswith("error: the ranks could not continue; see ")
    assert "restarting" not in said


@pytest.mark.parametrize("place", ["run", "checkpoints"])
def test_a_run_directory_that_becomes_unwritable_ends_the_run_with_an_error(tmp_path, expected, place):
    folder = tmp_path / "run"
    closed = folder if place == "run" else folder / "checkpoints"
    with Run(folder, 2, environment={"FAULT_SLEEP": "0.05"}, prepared="common") as run:
        run.until(lambda: run.run.pointed("last"))
        closed.chmod(0o500)
        try:
            code = run.wait()
            run.gone()
        finally:
            closed.chmod(0o700)
        said = run.text()
        noise = [line for line in run.noise() if "the report could not be written" not in line]
        assert not noise and "restarting" not in said, said
        assert ("the report could not be written" in said) == (place == "run"), said
    if place == "run":  # what is open stays open, and checkpoints lie in a folder of their own
        assert code == 0, said
        assert outcome(folder) == expected
        return
    assert code == 2, said
    assert "warning: the checkpoint of step 6 could not be written ([Errno 13] Permission denied" in said
    last = said.splitlines()[-1]
    assert last.startswith("error: the checkpoint of step 20 could not be written ([Errno 13] Permission")
    assert "; grant this user write access and continue from the newest one: " in last
    assert not list(folder.rglob("*.tmp"))
    assert finish(folder, 1) == expected


def test_a_journal_that_cannot_grow_ends_the_run_with_a_sentence(tmp_path, expected):
    folder = tmp_path / "run"
    with Run(folder, 2, environment={"FAULT_SLEEP": "0.05"}) as run:
        run.until(lambda: run.step() >= 4)
        limit = run.run.journal.stat().st_size + 100  # bytes: a line is longer
        resource.prlimit(run.pid("rank 0"), resource.RLIMIT_FSIZE, (limit, limit))
        last = run.ends(2).splitlines()[-1]
        assert f"error: {run.run.journal} cannot be written ([Errno 27]" in last
    assert finish(folder, 1) == expected
