"""Checkpoints: whole or not there, checked by anybody's sha256sum, and never the only one lost."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

from rankless.errors import UserError
from rankless.models import weights
from rankless.recipe import Recipe
from rankless.run_directory import RunDirectory
from rankless.training import checkpoint
from rankless.training.checkpoint import Snapshot

FILES = ("model.safetensors", "ema.safetensors", "training.safetensors", "state.json", "SHA256SUMS")


def snapshot(step: int, *, average: bool = True) -> Snapshot:
    torch.manual_seed(step)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
    other = {name: value + 1 for name, value in net.state_dict().items()} if average else None
    momentum = {"momentum_buffer/0.weight": torch.randn(4, 3, 3, 3), "step/0.weight": torch.tensor(3.0)}
    return Snapshot(step, net.state_dict(), other, momentum, {"best": None, "pictures": 7})


def save(run: RunDirectory, *steps: int) -> None:
    for step in steps:
        checkpoint.save(run, snapshot(step), Recipe(), ["cat", "dog"])


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "run")


def test_it_reads_back_as_it_was(run: RunDirectory) -> None:
    save(run, 5)
    assert sorted(path.name for path in run.step_directory(5).iterdir()) == sorted(FILES)
    assert run.pointed("last") == 5
    kept, found = snapshot(5), checkpoint.load(run, 5)
    assert (found.step, found.state) == (5, kept.state)
    assert kept.average is not None and found.average is not None
    for ours, theirs in (
        (kept.model, found.model),
        (kept.average, found.average),
        (kept.training, found.training),
    ):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    file = weights.load(run.step_directory(5) / "ema.safetensors")
    assert file.class_names == ("cat", "dog") and file.recipe == Recipe() and file.extra == {"step": "5"}


def test_without_an_average(run: RunDirectory) -> None:
    checkpoint.save(run, snapshot(5, average=False), Recipe(), [])
    assert checkpoint.load(run, 5).average is None
    assert checkpoint.damage(run.step_directory(5)) is None


def test_equal_states_are_equal_files(run: RunDirectory, tmp_path: Path) -> None:
    other = RunDirectory(tmp_path / "other")
    save(run, 5)
    save(other, 5)
    one, two = (where.step_directory(5) / "SHA256SUMS" for where in (run, other))
    assert one.read_text() == two.read_text()


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs sha256sum")
def test_sha256sum_agrees(run: RunDirectory) -> None:
    save(run, 5)

    def check() -> int:
        folder = run.step_directory(5)
        return subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=folder, capture_output=True).returncode

    assert check() == 0
    file = run.step_directory(5) / "state.json"
    file.write_text(file.read_text() + " ")
    assert check() == 1


@pytest.mark.parametrize("way", ["cut", "empty", "flipped", "gone"])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_one_is_passed_over(run: RunDirectory, name: str, way: str) -> None:
    save(run, 5, 10)
    file = run.step_directory(10) / name
    content = file.read_bytes()
    if way == "gone":
        file.unlink()
    elif way == "flipped":
        place = len(content) // 3
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    else:
        file.write_bytes(b"" if way == "empty" else content[: len(content) // 2])
    warnings: list[str] = []
    assert checkpoint.newest(run, warnings.append) == 5
    (warning,) = warnings
    assert str(run.step_directory(10)) in warning and "falling back to the one before" in warning
    if way != "gone" and name != "SHA256SUMS":
        assert name in warning
    assert checkpoint.load(run, 5).step == 5
    # The run comes by this step again, and the damaged one is replaced.
    save(run, 10)
    assert checkpoint.newest(run, pytest.fail) == 10


def test_none_and_none_that_is_whole(run: RunDirectory) -> None:
    assert checkpoint.newest(run, pytest.fail) is None
    save(run, 5, 10)
    for step in (5, 10):
        (run.step_directory(step) / "model.safetensors").write_bytes(b"")
    warnings: list[str] = []
    with pytest.raises(UserError, match=r"all 2 checkpoints are damaged; start anew"):
        checkpoint.newest(run, warnings.append)
    assert len(warnings) == 2


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_full_disk_leaves_what_was_there(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """The disk is full at the call-th file that is waited for."""
    save(run, 5)
    calls = 0

    def full(_: int) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save(run, 10)
    assert calls == call
    assert run.pointed("last") == 5 and run.steps() == [5]
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["last", "step-000000005"]


def test_what_reads_back_otherwise_is_not_kept(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that lies."""
    save(run, 5)
    honest = weights.save

    def lying(path: Path, state: dict[str, torch.Tensor], **more: object) -> None:
        honest(path, {name: value * 2 for name, value in state.items()}, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(weights, "save", lying)
    with pytest.raises(OSError, match="reads back other than it was written"):
        save(run, 10)
    assert run.steps() == [5]


def test_half_written_ones_are_never_seen(run: RunDirectory) -> None:
    save(run, 5)
    died = run.checkpoints / ".step-000000010.4711.tmp"
    shutil.copytree(run.step_directory(5), died)
    assert run.steps() == [5]
    assert checkpoint.newest(run, pytest.fail) == 5
    checkpoint.tidy(run, keep=2, best=None)
    assert not died.exists()


@pytest.mark.parametrize(
    ("keep", "best", "left"),
    [(2, None, [20, 25]), (2, 10, [10, 20, 25]), (1, 25, [25]), (9, 5, [5, 10, 15, 20, 25])],
)
def test_the_newest_and_the_best_stay(
    run: RunDirectory, keep: int, best: int | None, left: list[int]
) -> None:
    save(run, 5, 10, 15, 20, 25)
    checkpoint.tidy(run, keep, best)
    assert run.steps() == left
    assert all(checkpoint.damage(run.step_directory(step)) is None for step in left)


def test_what_a_run_fell_back_behind_goes(run: RunDirectory) -> None:
    save(run, 5, 10, 15)
    run.point("last", 10)  # 15 was damaged, the run went on from 5
    checkpoint.tidy(run, keep=2, best=None)
    assert run.steps() == [5, 10]


def test_no_tensor_is_pickled(run: RunDirectory) -> None:
    save(run, 5)
    for name in FILES[:3]:
        content = (run.step_directory(5) / name).read_bytes()
        length = int.from_bytes(content[:8], "little")
        assert isinstance(json.loads(content[8 : 8 + length]), dict)
