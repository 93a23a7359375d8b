"""One training per run directory, also where nothing can be locked and where two begin at once."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankless import UserError, load_recipe, train
from rankless.launch.run_lock import locked
from rankless.runs.directory import RunDirectory

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
        with pytest.raises(UserError, match="another process trains in this directory now"):
            locked(run, False).__enter__()
        other.kill()
    with locked(run, False):
        pass


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
        "training in this directory would not be noticed: do not start one\n"
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
