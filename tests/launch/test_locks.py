"""One training per run directory, also where nothing can be locked and where two begin at once."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankless import UserError, load_recipe, train
from rankless.launch.hosts.host import HostProcess
from rankless.launch.hosts.messages import Begin
from rankless.launch.job import Wanted
from rankless.launch.member_run import open_run
from rankless.launch.run_lock import locked
from rankless.recipe.load import to_json
from rankless.runs.directory import RunDirectory
from rankless.world.process_group import World

HOLD = """\
import sys
from pathlib import Path
from rankless.launch.run_lock import locked
from rankless.runs.directory import RunDirectory
with locked(RunDirectory(Path(sys.argv[1])), False):
    print("held", flush=True)
    sys.stdin.read()
"""
CLAIM = """\
import sys
from pathlib import Path
from rankless.files.numbered import numbered_folder
print("ready", flush=True)
sys.stdin.readline()
print(*(numbered_folder(Path("runs/mine"), "--run") for _ in range(50)), sep="\\n", flush=True)
"""


def started(code: str, *words: str, cwd: Path) -> subprocess.Popen[str]:
    """A process that runs ``code`` and has printed its first line."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


@pytest.mark.processes
def test_a_directory_in_use_is_refused_until_its_process_is_gone(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    with started(HOLD, str(run.path), cwd=tmp_path) as other:
        with pytest.raises(UserError, match="another process is training in this directory"):
            locked(run, False).__enter__()
        other.kill()
    with locked(run, False):
        pass


def test_a_lock_that_a_failed_start_removes_is_held_by_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second process has opened the file, and the first one removes it before it is locked."""
    run, first, flock = RunDirectory(tmp_path / "run"), ExitStack(), fcntl.flock
    first.enter_context(locked(run, False))

    def late(*words: Any) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        with pytest.raises(UserError, match="no data"), first:
            raise UserError("no data")
        assert not run.path.exists()
        flock(*words)

    monkeypatch.setattr(fcntl, "flock", late)
    with locked(run, False), pytest.raises(UserError, match="another process is training in this directory"):
        locked(run, False).__enter__()


def test_hosts_that_share_a_directory_hold_it_as_long_as_any_of_them_lives(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")

    def host(token: str, *, resume: bool) -> HostProcess:
        process = HostProcess(io.BytesIO())
        recipe = to_json(load_recipe("digits"))
        begin = Begin(recipe=recipe, run=str(run.path), resume=resume, token=token, stays=True)
        found.append(process.answer(begin).value)
        return process

    def is_refused() -> None:
        for token in ("", "another training"):
            with pytest.raises(UserError, match="another process is training in this directory"):
                locked(run, True, token).__enter__()

    found: list[bool] = []
    first, second = host("ours", resume=False), host("ours", resume=False)
    is_refused()
    first.opened.close()
    is_refused()
    back = host("ours", resume=True)
    second.opened.close()
    is_refused()
    assert found == [False, True, True]
    back.opened.close()
    with locked(run, True):
        pass
    host("ours", resume=True).opened.close()
    assert found[-1] is False, "another one was there, so the directory is looked through again"


def opened(world: World, run: str) -> bool:
    """Open a run as a rank of a cluster's; whether it is still locked when that of rank 0 is lost."""
    environment = SimpleNamespace(local_rank=0, name="torchrun", restart=0)
    with ExitStack() as held:
        asked = Wanted(None, "digits", run=Path(run))
        open_run(world, environment, asked, load_recipe("digits"), held)  # type: ignore[arg-type]
        if world.is_first:
            held.close()
        world.barrier()
        with pytest.raises(UserError, match="another process is training in this directory"):
            locked(RunDirectory(Path(run)), False).__enter__()
        world.barrier()
    return True


@pytest.mark.processes
def test_a_rank_of_every_machine_holds_the_directory(ranks: Any, tmp_path: Path) -> None:
    assert ranks(2, opened, str(tmp_path / "run")) == [True, True]


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_a_file_system_without_locks_is_no_other_training(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def flock(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(RunDirectory(tmp_path / "run"), False):
        pass
    assert capsys.readouterr().err == (
        f"warning: {tmp_path}/run: its file system cannot lock files ({os.strerror(number)}), so a second "
        "training run in this directory would not be detected; do not start one\n"
    )


def test_another_error_of_the_lock_is_reported_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UserError, match=r"run: cannot be locked \(.*Input/output error\)"):
        locked(RunDirectory(tmp_path / "run"), False).__enter__()


@pytest.mark.processes
def test_runs_that_begin_at_once_get_directories_of_their_own(tmp_path: Path) -> None:
    processes = [started(CLAIM, cwd=tmp_path) for _ in range(3)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    claimed = [line for process in processes for line in process.communicate(timeout=60)[0].splitlines()]
    assert len(claimed) == len(set(claimed)) == 150
    assert all((tmp_path / path).is_dir() for path in claimed)


def test_a_new_run_that_never_began_gives_its_name_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no such file"):
        train(load_recipe("digits", [f"data.root={tmp_path}/none"]), devices=1)
    assert not Path("runs").exists()
