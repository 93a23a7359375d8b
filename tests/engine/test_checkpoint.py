"""Checkpoints: whole or not there, checked by anybody's sha256sum, and never the only one lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rankless.engine import checkpoint
from rankless.engine.checkpoint import Snapshot
from rankless.errors import UserError
from rankless.models.weights_files import weights
from rankless.recipe.schema import Recipe
from rankless.runs.directory import RunDirectory, recover, weights_of

FILES = ("model.safetensors", "ema.safetensors", "training.safetensors", "state.json", "SHA256SUMS")


def snapshot(step: int, *, average: bool = True) -> Snapshot:
    torch.manual_seed(step)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
    other = {name: value + 1 for name, value in net.state_dict().items()} if average else None
    momentum = {"momentum_buffer/0.weight": torch.randn(4, 3, 3, 3), "step/0.weight": torch.tensor(3.0)}
    return Snapshot(step, net.state_dict(), other, momentum, {"best": None, "images": 7})


def save(run: RunDirectory, *steps: int) -> None:
    for step in steps:
        checkpoint.save(run, snapshot(step), Recipe(), ["cat", "dog"])


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "run")


@pytest.mark.parametrize("average", [True, False])
def test_it_reads_back_as_it_was(run: RunDirectory, average: bool) -> None:
    kept = snapshot(5, average=average)
    checkpoint.save(run, kept, Recipe(), ["cat", "dog"])
    names = [name for name in FILES if average or name != "ema.safetensors"]
    assert sorted(path.name for path in run.step_directory(5).iterdir()) == sorted(names)
    assert run.pointed("last") == 5 and checkpoint.damage(run.step_directory(5)) is None
    found = checkpoint.load(run, 5)
    assert (found.step, found.state) == (5, kept.state)
    assert (found.ema is not None) == average
    pairs = ((kept.model, found.model), (kept.ema or {}, found.ema or {}), (kept.training, found.training))
    for ours, theirs in pairs:
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    file = weights.load(run.step_directory(5) / "model.safetensors")
    assert file.class_names == ("cat", "dog") and file.recipe == Recipe() and file.extra == {"step": "5"}


@pytest.mark.processes
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


DAMAGE = dict(zip(FILES, ("gone", "flipped", "cut", "empty", "cut"), strict=True))


@pytest.mark.parametrize(("name", "way"), [*DAMAGE.items()])
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
    assert str(run.step_directory(10)) in warning and "falling back to the previous one" in warning
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
    with pytest.raises(UserError) as caught:
        checkpoint.newest(run, pytest.fail)
    newer, older, advice = caught.value.problems
    assert "step-000000010 is damaged (" in newer and "step-000000005 is damaged (" in older
    assert "start again" in advice


@pytest.mark.parametrize("call", [1, 2, 3])
def test_what_reads_back_otherwise_is_not_kept(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    save(run, 5)
    honest, calls = os.fsync, 0

    def lying(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            os.pwrite(handle, b"\x7f", os.fstat(handle).st_size - 3)
        honest(handle)

    monkeypatch.setattr("os.fsync", lying)
    with pytest.raises(OSError, match="the data read back differs from what was written"):
        save(run, 10)
    assert run.pointed("last") == 5
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["last", "step-000000005"]


@pytest.mark.parametrize("place", ["nothing", "a damaged one", "a whole one"])
@pytest.mark.parametrize("kind", ["tmp", "aside", "gone"])
def test_a_whole_one_that_was_left_out_of_its_place_is_put_back(
    run: RunDirectory, kind: str, place: str
) -> None:
    save(run, 5)
    target, left = run.step_directory(5), run.checkpoints / f".step-000000005.4711.{kind}"
    shutil.copytree(target, left)
    if place == "nothing":
        shutil.rmtree(target)
    elif place == "a damaged one":
        (target / "model.safetensors").write_bytes(b"")
    recover(run)
    assert not left.exists()
    assert (checkpoint.damage(target) is None) == (kind != "gone" or place == "a whole one")


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system that does not wait for a disk, where there is one."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else tmp_path) as folder:
        yield Path(folder)


KILLED_AT = """
import itertools, os, shutil, signal, sys
from pathlib import Path
from test_checkpoint import save
from rankless.runs.directory import RunDirectory
from rankless.engine import checkpoint

folder, fatal, events = Path(sys.argv[1]), None, 0
WATCHED = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "shutil.rmtree", "open"}

def watch(event, arguments):
    global events
    if fatal is not None and event in WATCHED:
        events += 1
        if events == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

def act(run, step):
    save(run, step)
    run.point("best", step)
    checkpoint.remove_old(run, keep=1, best=None)

act(RunDirectory(folder / "warm"), 5)  # whatever is imported or cached on the way is no operation on the run
sys.addaudithook(watch)
for step in (5, 10):  # the same one again, and the next one
    for number in itertools.count(1):
        path = Path(shutil.copytree(folder / "first", folder / f"{step}-{number:03}"))
        child = os.fork()
        if child == 0:
            fatal = number
            act(RunDirectory(path), step)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            print(number - 1)
            break
"""


@pytest.mark.processes
def test_a_kill_at_any_operation_on_files_leaves_a_whole_one(in_memory: Path, forked: Any) -> None:
    first = RunDirectory(in_memory / "first")
    save(first, 5)
    first.point("best", 5)
    whole = (first.step_directory(5) / "SHA256SUMS").read_text()
    (in_memory / "killed_at.py").write_text(KILLED_AT)
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    script = str(in_memory / "killed_at.py")
    done = forked(script, str(in_memory), cwd=in_memory, seconds=200, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    for step, kills in zip((5, 10), map(int, done.stdout.split()), strict=True):
        assert kills > 25  # otherwise the hook saw nothing
        for number in range(1, kills + 1):
            run = RunDirectory(in_memory / f"{step}-{number:03}")
            found = checkpoint.newest(run, lambda sentence: pytest.fail(sentence))
            assert found in (5, step), number
            if found == 5:
                assert (run.step_directory(5) / "SHA256SUMS").read_text() == whole
            assert weights_of(run.path, lambda _: None).is_file()
            assert not list(run.checkpoints.glob(".step-*"))
            save(run, 20)  # and it goes on
            checkpoint.remove_old(run, keep=1, best=None)
            assert run.steps() == [20]


@pytest.mark.parametrize(
    ("last", "keep", "best", "left"),
    [
        *((25, 2, None, [20, 25]), (25, 2, 10, [10, 20, 25]), (25, 1, 25, [25])),
        (25, 9, 5, [5, 10, 15, 20, 25]),
        (15, 2, None, [10, 15]),  # 20 and 25 were damaged, the run went on from 10
    ],
)
def test_the_newest_and_the_best_stay(
    run: RunDirectory, last: int, keep: int, best: int | None, left: list[int]
) -> None:
    save(run, 5, 10, 15, 20, 25)
    run.point("last", last)
    checkpoint.remove_old(run, keep, best)
    assert run.steps() == left
    assert all(checkpoint.damage(run.step_directory(step)) is None for step in left)


@pytest.mark.timeout(20)
def test_a_pipe_under_the_name_of_a_checkpoint_gives_way(run: RunDirectory) -> None:
    save(run, 1)
    os.mkfifo(run.step_directory(2))
    save(run, 2)
    assert run.steps() == [1, 2]
