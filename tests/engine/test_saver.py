"""A run keeps the newest checkpoints and the best one, with full disks and odd scores too."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rankless.engine import checkpoint
from rankless.engine.checkpoint import Snapshot
from rankless.engine.saver import Saver
from rankless.errors import UserError
from rankless.runs.directory import RunDirectory, weights_of
from rankless.world.process_group import World
from support.small_disk import small_disk
from support.small_saves import RECIPE, Wide, messages_of, saver_of
from support.small_task import train


def resize(folder: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}k", str(folder)], check=True)


class State(SimpleNamespace):
    """64 KiB of model, average and momentum."""

    def snapshot(self, step: int) -> Snapshot:
        model = {"weight": torch.full((64, 64), float(step))}
        momentum = {"momentum_buffer/weight": torch.full((96, 64), float(step))}
        return Snapshot(step, model, model, momentum, {"best": self.best, "images": 7})


def saver_in(folder: Path, keep: int = 2, best: dict[str, Any] | None = None) -> Saver:
    return saver_of(State(best=best), folder, keep)


def agree(saver: Saver) -> None:
    """``best`` names a whole checkpoint, which the state knows."""
    saver.settle()
    assert saver.state.best is not None
    step = saver.state.best["step"]
    assert saver.run.pointed("best") == step and step in saver.run.steps()
    assert checkpoint.damage(saver.run.step_directory(step)) is None
    assert weights_of(saver.run.path, pytest.fail) == saver.run.step_directory(step) / "ema.safetensors"


def test_a_best_that_could_not_be_saved_is_not_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = saver_in(tmp_path)
    saver.rank(400, {"AP": 0.5}, "AP")
    saver.save(400, required=False)
    agree(saver)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save", full)
        saver.rank(500, {"AP": 0.6}, "AP")
        saver.save(500, required=False)
        saver.settle()
    agree(saver)
    for step, score, best in ((600, 0.45, 400), (700, 0.55, 700), (800, 0.5, 700), (900, 0.5, 700)):
        saver.rank(step, {"AP": score}, "AP")
        saver.save(step, required=False)
        agree(saver)
        assert saver.state.best is not None and saver.state.best["step"] == best
    assert saver.run.steps() == [700, 800, 900]


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None, "0.9"])
def test_what_is_no_number_is_never_the_best(tmp_path: Path, bad: Any) -> None:
    saver = saver_in(tmp_path)
    for step, score in ((1, bad), (2, 0.5), (3, bad), (4, 0.9), (5, bad)):
        saver.rank(step, {"AP": score}, "AP")
        saver.save(step, required=True)
        if step > 1:
            agree(saver)
    assert saver.state.best == {"step": 4, "score": 0.9}


@pytest.mark.parametrize("lost", ["pointer", "pointer elsewhere", "pointer damaged", "checkpoint", "number"])
def test_the_pointer_follows_the_state_at_the_start(tmp_path: Path, lost: str) -> None:
    before = saver_in(tmp_path, keep=3)
    for step, score in ((1, 0.5), (2, 0.9), (3, 0.4)):
        before.rank(step, {"AP": score}, "AP")
        before.save(step, required=False)
    before.close()
    best, run = {"step": 2, "score": 0.9}, before.run
    if lost == "pointer":
        (run.checkpoints / "best").unlink()
    elif lost == "pointer elsewhere":
        run.point("best", 7)
    elif lost == "pointer damaged":
        (run.checkpoints / "best").write_bytes(b"\xff\n")
    elif lost == "checkpoint":
        shutil.rmtree(run.step_directory(2))
    else:
        best["score"] = float("nan")  # as an older version saved it
    after = saver_in(tmp_path, keep=3, best=best)
    after.start()
    if lost.startswith("pointer"):
        assert not messages_of(after)
        agree(after)
        return
    (message,) = messages_of(after)
    assert "the next evaluation counts as the best" in message
    assert after.state.best is None and not (run.checkpoints / "best").exists()
    assert weights_of(tmp_path, pytest.fail) == run.step_directory(3) / "ema.safetensors"
    after.rank(4, {"AP": 0.1}, "AP")
    after.save(4, required=False)
    agree(after)


@pytest.mark.processes
def test_a_disk_that_is_full_at_any_file_keeps_what_was_there(tmp_path: Path) -> None:
    outcomes = set()
    with small_disk(tmp_path / "disk", 1024) as disk:
        first = saver_in(disk / "run")
        first.rank(1, {"AP": 0.5}, "AP")
        first.save(1, required=True)
        used = sum(path.lstat().st_blocks for path in disk.rglob("*")) // 2  # KiB
        for room in itertools.count(4, 4):
            resize(disk, used + room)
            saver = saver_in(disk / "run", best={"step": 1, "score": 0.5})
            saver.rank(2, {"AP": 0.6}, "AP")
            try:
                saver.save(2, required=True)
                outcome = "saved"
            except UserError as error:
                assert "could not be written" in str(error) and "No space left" in str(error)
                outcome = "not saved"
            outcomes.add(outcome)
            names = {path.name for path in saver.run.checkpoints.iterdir()}
            assert checkpoint.newest(saver.run, pytest.fail) in (1, 2)
            assert names <= {"step-000000001", "step-000000002", "last", "best"}, room
            assert weights_of(saver.run.path, pytest.fail).parent.name in names
            if outcome == "saved":
                agree(saver)
                break
            resize(disk, 1024)
            saver.start()
            agree(saver)
            shutil.rmtree(saver.run.step_directory(2), ignore_errors=True)  # its pointer found no room
            saver.run.point("last", 1)
            saver.run.point("best", 1)
    assert outcomes == {"saved", "not saved"} and room > 64


@pytest.mark.processes
def test_older_checkpoints_make_room_for_the_newest(tmp_path: Path) -> None:
    """Room for four: two that are kept, the best, and the one that is written; then for three."""
    with small_disk(tmp_path / "disk", 1024) as disk:
        saver = saver_in(disk / "run", keep=2)
        for step, score in ((1, 0.9), (2, 0.5), (3, 0.5)):
            saver.rank(step, {"AP": score}, "AP")
            saver.save(step, required=True)
        assert saver.run.steps() == [1, 2, 3]
        resize(disk, sum(path.lstat().st_blocks for path in disk.rglob("*")) // 2 + 40)
        saver.save(4, required=True)
        assert saver.run.steps() == [1, 3, 4]
        assert messages_of(saver) == ["removed older checkpoints (step 2) to make room"]
        agree(saver)


@pytest.mark.parametrize("room", [True, False])
def test_a_quota_that_is_used_up_is_a_disk_that_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    """A network file system says so when it is asked to flush; here it grants a number of folders."""
    saver = saver_in(tmp_path, keep=2)
    for step, score in ((1, 0.9), (2, 0.5), (3, 0.5)):
        saver.rank(step, {"AP": score}, "AP")
        saver.save(step, required=True)
    flush, most = os.fsync, 3 if room else 2

    def grudging(file: int) -> None:
        if sum(1 for path in saver.run.checkpoints.iterdir() if path.is_dir()) > most:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        flush(file)

    monkeypatch.setattr(os, "fsync", grudging)
    if room:
        saver.save(4, required=True)
        assert messages_of(saver) == ["removed older checkpoints (step 2) to make room"]
    else:
        with pytest.raises(UserError, match=r"of step 4 could not be written .*quota exceeded.*; make room"):
            saver.save(4, required=True)
        saver.save(4, required=False)
        saver.settle()
        removed, message = messages_of(saver)
        assert removed == "removed older checkpoints (step 2) to make room"
        assert "quota exceeded" in message and message.endswith("; training continues")
    agree(saver)
    assert saver.run.steps() == [1, 3, *([4] if room else [])]
    assert checkpoint.newest(saver.run, pytest.fail) == (4 if room else 3)
    assert not [path for path in saver.run.checkpoints.iterdir() if path.name.startswith(".")]


@pytest.mark.processes
def test_room_for_two_is_needed_before_the_first_step(ranks: Any, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 3000) as disk:
        for size in (1, 2):
            answers = ranks(size, train, Wide(), RECIPE, str(disk / "run"))
            assert all(answer == answers[0] for answer in answers)
            assert answers[0][0].startswith(f"{disk / 'run'}: only 3.1 MB are free on this file system; ")
            assert "expected at least 4.4 MB for three checkpoints of this model" in answers[0][0]
        assert not list(disk.iterdir())


def resume(world: World, folder: str) -> bool | list[str]:
    return train(world, Wide(), RECIPE, folder, resume=True)


@pytest.fixture(scope="module")
def wanted(ranks: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("whole")
    assert ranks(1, train, Wide(), RECIPE, str(folder)) == [True]
    return (RunDirectory(folder).step_directory(8) / "SHA256SUMS").read_text()


@pytest.mark.processes
@pytest.mark.parametrize("size", [4400, 5000, 6400, 16000])
def test_a_run_ends_on_a_small_disk_as_on_a_large_one_or_says_so(
    ranks: Any, wanted: str, tmp_path: Path, size: int
) -> None:
    with small_disk(tmp_path / "disk", size) as disk:
        run = RunDirectory(disk / "run")
        (answer,) = ranks(1, train, Wide(), RECIPE, str(run.path))
        assert checkpoint.newest(run, pytest.fail)
        if answer is not True:
            assert "No space left on device" in answer[0] and "make room" in answer[0]
            resize(disk, 32000)
            assert ranks(1, resume, str(run.path)) == [True]
        found = (run.step_directory(8) / "SHA256SUMS").read_text()
        weights = [line for line in wanted.splitlines() if "state.json" not in line]
        assert [line for line in found.splitlines() if "state.json" not in line] == weights
