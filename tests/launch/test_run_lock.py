"""A run has a directory of its own, or an empty one, which one training uses at a time."""

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

STRANGERS = (
    "recipe.yaml",
    "environment.json",
    "journal.jsonl",
    ".lock",
    ".job/job.json",
    "logs/1",
    "checkpoints/step-000000001/x",
)
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


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path / "run")


def refused(
    run: RunDirectory,
    match: str = "another process is training in this directory",
    resume: bool = False,
    token: str = "",
) -> None:
    with pytest.raises(UserError, match=match), locked(run, resume, token):
        pass


def planted(folder: Path, *names: str) -> dict[Path, str]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("epochs: 3\n")
    return contents(folder)


def contents(folder: Path) -> dict[Path, str]:
    return {path: path.read_text() if path.is_file() else "" for path in folder.rglob("*")}


@pytest.mark.parametrize("names", [("notes.txt",), *((name,) for name in STRANGERS), STRANGERS])
@pytest.mark.parametrize("resume", [False, True])
def test_a_strangers_files_are_never_replaced(tmp_path, names, resume):
    before = planted(tmp_path, *names, ".theirs.tmp")
    match = r"is not a run directory and contains '.*; use another --run|nothing to resume"
    with pytest.raises(UserError, match=match) as error:
        train(load_recipe("digits"), tmp_path, devices=1, resume=resume)
    assert contents(tmp_path) == before
    if not resume:
        assert all(f"'{name.split('/')[0]}'" in str(error.value) for name in names), "all of them"


def test_the_output_of_the_job_itself_may_lie_there(tmp_path):
    before = planted(tmp_path, "4711.out", "4711.err", "job.log")
    with locked(RunDirectory(tmp_path), resume=False):
        pass
    assert before.items() <= contents(tmp_path).items()


def test_nor_through_a_link(run, tmp_path):
    theirs = tmp_path / "theirs"
    before = planted(theirs, "log", "lock")
    run.path.mkdir()
    (run.path / ".lock").symlink_to(theirs / "lock")
    (run.path / "logs").symlink_to(theirs)
    with pytest.raises(UserError, match=r"is not a run directory and contains '.lock', 'logs'; expected"):
        train(load_recipe("digits"), run.path, devices=1)
    assert contents(theirs) == before and (run.path / ".lock").is_symlink()


def test_a_run_directory_is_recognized_by_its_mark_or_by_the_files_of_an_earlier_version(run):
    for again in range(3):
        with locked(run, resume=False):
            assert (run.path / ".lock").read_text() == "rankless run\n"
            run.recipe.write_text("")
            run.environment.write_text('{"versions": {"rankless": "0.0.1"}}')
        if again:
            (run.path / ".lock").write_text("")
    run.environment.write_text("{}")
    refused(run, "not a run directory", resume=True)


def test_a_training_under_way_is_named_before_what_it_has_saved(run):
    """``--resume`` would not help while another process trains there."""
    with locked(run, resume=False):
        run.step_directory(3).mkdir(parents=True)
        refused(run)
    refused(run, r"already contains a run .*--resume")


@pytest.mark.parametrize("kind", ["file", "broken link"])
def test_what_cannot_be_a_run_directory_is_called_what_it_is(kind, run, tmp_path):
    if kind == "file":
        run.path.touch()
    else:
        run.path.symlink_to(tmp_path / "nowhere")
    refused(run, rf"run: cannot be used as a run directory \(.*run is a {kind}.*\); use another")


def started(code: str, *words: str, cwd: Path) -> subprocess.Popen[str]:
    """A process that runs ``code`` and has printed its first line."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", code, *words], cwd=cwd, text=True, **pipes)
    assert process.stdout.readline()
    return process


@pytest.mark.processes
def test_a_directory_in_use_is_refused_until_its_process_is_gone(run, tmp_path):
    with started(HOLD, str(run.path), cwd=tmp_path) as other:
        refused(run)
        other.kill()
    with locked(run, False):
        pass


def test_a_lock_that_a_failed_start_removes_is_held_by_one_process(run, monkeypatch):
    """The second process has opened the file, and the first one removes it before it is locked."""
    first, flock = ExitStack(), fcntl.flock
    first.enter_context(locked(run, False))

    def late(*words: Any) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        with pytest.raises(UserError, match="no data"), first:
            raise UserError("no data")
        assert not run.path.exists()
        flock(*words)

    monkeypatch.setattr(fcntl, "flock", late)
    with locked(run, False):
        refused(run)


def test_hosts_that_share_a_directory_lock_it_until_the_last_of_them_ends(run):
    recipe, found = to_json(load_recipe("digits")), list[bool]()

    def host(*, resume: bool) -> HostProcess:
        process = HostProcess(io.BytesIO())
        begin = Begin(recipe=recipe, run=str(run.path), resume=resume, token="ours", stays=True)
        found.append(process.answer(begin).value)
        return process

    def is_refused() -> None:
        for token in ("", "another training"):
            refused(run, resume=True, token=token)

    first, second = host(resume=False), host(resume=False)
    is_refused()
    first.opened.close()
    is_refused()
    back = host(resume=True)
    second.opened.close()
    is_refused()
    assert found == [False, True, True]
    back.opened.close()
    with locked(run, True):
        pass
    host(resume=True).opened.close()
    assert found[-1] is False, "another one was there, so the directory is looked through again"


def opened(world: World, run: str) -> bool:
    """Open a run as a rank of a cluster's; whether it is still locked when that of rank 0 is lost."""
    environment: Any = SimpleNamespace(local_rank=0, name="torchrun", restart=0)
    with ExitStack() as held:
        asked = Wanted(None, "digits", run=Path(run))
        open_run(world, environment, asked, load_recipe("digits"), held)
        if world.is_first:
            held.close()
        world.barrier()
        refused(RunDirectory(Path(run)))
        world.barrier()
    return True


@pytest.mark.processes
def test_a_rank_of_every_machine_holds_the_directory(ranks, tmp_path):
    assert ranks(2, opened, str(tmp_path / "run")) == [True, True]


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EIO])
def test_a_file_system_without_locks_is_no_other_training(number, run, monkeypatch, capsys):
    def flock(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    if number == errno.EIO:
        refused(run, r"run: cannot be locked \(.*Input/output error\)")
        return
    with locked(run, False):
        pass
    assert capsys.readouterr().err == (
        f"warning: {run.path}: the file system cannot lock files ({os.strerror(number)}), so a second "
        "training run in this directory would not be detected; do not start one\n"
    )


@pytest.mark.processes
def test_runs_that_begin_at_once_get_directories_of_their_own(tmp_path):
    processes = [started(CLAIM, cwd=tmp_path) for _ in range(3)]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    claimed = [line for process in processes for line in process.communicate(timeout=60)[0].splitlines()]
    assert len(claimed) == len(set(claimed)) == 150
    assert all((tmp_path / path).is_dir() for path in claimed)
