"""Following a journal: every line once, however the run is disturbed, and an end when it has ended."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankless.errors import UserError
from rankless.launch import watching
from rankless.runs import following, journal
from rankless.runs.following import is_alive, is_held, lines

RECIPE = "epochs: 2\nprecision: fp32\nworkers: auto\nbatch: {images: 4}\n"


def step(number: int, **more: Any) -> dict[str, Any]:
    timing = {"seconds": 0.5, "waited": 0.0}
    return {
        "step": number, "epoch": number / 2, "lr": 0.1, "loss": 1.0 / number, "parts": {}, "timing": timing,
        **more,
    }  # fmt: skip


def written(path: Path, *entries: dict[str, Any]) -> None:
    with path.open("ab") as file:
        file.write(b"".join(map(journal.line, entries)))


def silent(run: Path) -> Path:
    """The run, whose journal has not grown for long."""
    os.utime(run / "journal.jsonl", (0, 0))
    return run


def a_run(folder: Path, *entries: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "environment.json").write_text('[{"hardware": {"device": "cpu"}}]')
    written(folder / "journal.jsonl", *entries)
    return silent(folder)


WHOLE = (
    {"event": "start", "at": 0, "world_size": 2, "steps": 4}, step(1), step(2),
    {"evaluation": 2, "scores": {"AP": 0.25, "loss": 2.0}}, step(3), step(4),
    {"evaluation": 4, "scores": {"AP": 0.125, "loss": 1.0}}, {"event": "end", "at": 4, "text": "2 s"},
)  # fmt: skip


def test_a_lock_is_seen_without_being_taken(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    assert not is_held(path)
    with path.open("w") as file:
        assert not is_held(path)
        fcntl.flock(file, fcntl.LOCK_EX)
        assert is_held(path)
        other = tmp_path / "other"
        os.link(path, other)  # the same file: the same lock
        assert is_held(other)
        (tmp_path / "free").touch()
        assert not is_held(tmp_path / "free")
    assert not is_held(path)


def test_a_lock_that_linux_skips_in_a_long_list_is_seen(tmp_path):
    path = tmp_path / ".lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        whole = Path("/proc/locks").read_text()
        others = "1: POSIX  ADVISORY  WRITE 1 fe:00:1 0 EOF\n" * 100  # more than a page
        parts = iter((others, others, others + whole))
        assert is_held(path, SimpleNamespace(read_text=lambda *_: next(parts)))


def test_a_run_is_followed_through_a_restart_to_its_end(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", {"event": "start", "at": 0, "world_size": 2}, step(1))
    path, seen = run / "journal.jsonl", queue.Queue[str]()
    with (run / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=lambda: [seen.put(line) for line in lines(run, poll=0.01)])
        thread.start()

        def expect(*entries: dict[str, Any]) -> None:
            for entry in entries:
                assert json.loads(seen.get(timeout=30)) == entry

        expect({"event": "start", "at": 0, "world_size": 2}, step(1))
        written(path, step(2), step(3))
        expect(step(2), step(3))
        torn = journal.line(step(4))
        with path.open("ab") as file:
            file.write(torn[:20])
        death = {"event": "death", "at": 3, "text": "rank 1 was killed"}
        journal.append(path, **death)  # cuts what was torn
        written_again = journal.Journal(path, 2)  # a new file, without step 3
        resume = {"event": "resume", "at": 2, "world_size": 1}
        for entry in (resume, step(3, again=True), step(4), {"event": "end", "at": 4}):
            written_again.write(**entry)
        written_again.close()
    thread.join(30)
    assert not thread.is_alive()
    left = []
    for line in seen.queue:
        with contextlib.suppress(ValueError):  # what was torn, if it was read before it was cut
            left.append(json.loads(line))
    assert left[-4:] == [resume, step(3, again=True), step(4), {"event": "end", "at": 4}]
    assert [entry for entry in left if entry.get("step") == 2] == []


def test_a_journal_that_grows_elsewhere_is_of_a_run_that_goes_on(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", step(1))
    (run / "journal.jsonl").touch()
    assert is_alive(run, "start") and not is_alive(run, "end") and not is_alive(run, "error")
    host = json.dumps([{"host": os.uname().nodename}])  # where a lock would be seen
    (run / "environment.json").write_text(host)
    assert not is_alive(run, "start")
    (run / "environment.json").write_text('[{"host": "elsewhere"}]')
    assert is_alive(run, "start")
    assert not is_alive(silent(run), "start") and list(lines(run)) == [journal.line(step(1)).decode()]


def test_a_finished_run_is_shown_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(tmp_path / "run", *WHOLE)
    assert watching.watch(str(run)) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"training in {run} on 2 processes, fp32"
    rows = [line.split() for line in printed if line.split()[0] in ("1/2", "2/2")]
    assert [(row[0], row[1], row[2], row[3]) for row in rows] == [
        ("1/2", "0.75", "2", "0.2500"), ("2/2", "0.2917", "1", "0.1250"),
    ]  # fmt: skip
    assert rows[0][-1] == "*" and rows[1][-1] != "*"
    assert printed[-1] == f"{run}: finished after step 4"


def test_ranks_are_called_what_they_were(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(tmp_path / "run", *WHOLE)
    for start, called in (
        ('{"hardware": {"device": "cpu"}, "backend": "threads"}', "2 threads"),
        ('{"hardware": {"device": "a GPU"}, "backend": "nccl"}', "2 GPUs"),
        ("[]", "2 processes"),
    ):
        (run / "environment.json").write_text(f"[{start}]")
        assert watching.watch(str(run)) == 0
        assert capsys.readouterr().out.splitlines()[0] == f"training in {run} on {called}, fp32"


def test_lines_that_are_none_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = a_run(tmp_path / "run", *WHOLE[:3])
    with (run / "journal.jsonl").open("a") as file:
        file.write('[1]\nnull\n{"step": "x"}\n{"step": 3}\n{"evaluation": 3}\n{"event": 7}\n\xff{\n')
    written(run / "journal.jsonl", *WHOLE[3:])
    assert watching.watch(str(silent(run))) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{run}: finished after step 4"


@pytest.mark.parametrize(
    ("entries", "code", "end"),
    [
        (WHOLE[:3], 1, "interrupted after step 2; continue with: rankless train --resume --run "),
        ((*WHOLE[:3], {"event": "error", "at": 2, "text": "no disk"}), 1, "failed after step 2"),
        ((*WHOLE[:3], {"event": "stop", "at": 2, "text": ""}), 0, "saved and stopped after step 2; "),
        ((), 1, "no training has started here"),
        (({"event": "start", "at": 0, "world_size": 1}, *WHOLE[1:]), 0, "finished after step 4"),
    ],
)  # fmt: skip
def test_how_a_run_ended_is_said(tmp_path, capsys, entries, code, end):
    run = a_run(tmp_path / "run", *entries)
    assert watching.watch(str(run)) == code
    assert f"{run}: {end}" in capsys.readouterr().out.splitlines()[-1]


def test_a_run_that_is_about_to_begin_is_waited_for(tmp_path, capsys):
    run, made = tmp_path / "run", a_run(tmp_path / "made", *WHOLE)
    said = ""
    with ThreadPoolExecutor(1) as pool:
        watched = pool.submit(watching.watch, str(run))
        while "\n" not in said and not watched.done():
            time.sleep(0.01)
            said += capsys.readouterr().out
        made.rename(run)
        assert watched.result() == 0
    assert said == f"{run}: no training has started here yet; waiting up to 60 s for one to start\n"
    assert capsys.readouterr().out.splitlines()[-1] == f"{run}: finished after step 4"


def test_a_run_that_does_not_begin_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("typo", "empty"):
        with pytest.raises(UserError, match=f"{name}: no training started here within 0 s"):
            watching.wait_for(tmp_path / name, 0.1)


def test_nothing_is_waited_for_where_no_run_can_begin(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").touch()
    for path in (tmp_path / "photos", tmp_path / "photos" / "one.jpg", tmp_path / "no" / "run"):
        with pytest.raises(UserError, match=r"not a run directory|cannot be read"):
            watching.watch(str(path))


def test_a_run_that_holds_its_directory_may_take_its_time(tmp_path):
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert following.may_begin(tmp_path)
        threading.Timer(0.3, (tmp_path / "journal.jsonl").touch).start()
        assert following.begins(tmp_path, 0.01, patience=0.0)


@pytest.mark.processes
@pytest.mark.parametrize("words", [[], ["--web"]])
def test_ctrl_c_ends_the_watching_and_nothing_else(tmp_path: Path, words: list[str]) -> None:
    run = a_run(tmp_path / "run", *WHOLE[:3])
    before = {path: path.read_bytes() for path in run.iterdir()}
    with (run / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # it trains
        command = [sys.executable, "-u", "-m", "rankless", "watch", str(run), *words]
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with subprocess.Popen(command, **both, text=True, start_new_session=True) as process:  # type: ignore[call-overload]
            shown = process.stdout.readline()
            os.killpg(process.pid, signal.SIGINT)
            shown += process.stdout.read()
        assert process.returncode == 0
        assert ("report of" if words else "the training continues") in shown
        assert "Traceback" not in shown and "error" not in shown
        assert is_alive(run, "start")
    (run / ".lock").unlink()
    assert {path: path.read_bytes() for path in run.iterdir()} == before


@pytest.mark.processes
def test_a_run_on_another_machine_is_followed_by_what_is_sent_there(tmp_path, capsys):
    run = a_run(tmp_path / "run", *WHOLE)
    ssh = tmp_path / "ssh"  # what stands behind the options and the host runs here
    ssh.write_text('#!/bin/sh\nwhile [ "$1" != far ]; do shift; done\nshift\nexec sh -c "$*"\n')
    ssh.chmod(0o755)
    assert watching.watch(f"far:{run}", (str(ssh),), sys.executable) == 0
    there = capsys.readouterr().out
    assert watching.watch(str(run)) == 0
    # The last column is the memory of this process, which may change in between.
    seen = (re.sub(r"[\d.]+ GiB", "", text) for text in (there, capsys.readouterr().out))
    assert next(seen).replace(f"far:{run}", str(run)) == next(seen)
    with pytest.raises(Exception, match="cannot be followed"):
        watching.watch(f"far:{tmp_path}/gone", (str(ssh),), sys.executable)


@pytest.mark.processes
def test_what_is_sent_needs_nothing_but_python() -> None:
    """Without installed packages, this one among them."""
    code = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='x')"
    page = str(following.__file__)
    subprocess.run([sys.executable, "-I", "-S", "-c", code, page], check=True, timeout=60)
