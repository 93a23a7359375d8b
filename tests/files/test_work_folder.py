"""A folder is there as a whole or not at all; what a killed process left is removed, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankless.errors import UserError
from rankless.files.work_folder import new_folder, work_folder
from rankless.files.writing import copy

WAITS = """
import sys
from pathlib import Path
from rankless.files.work_folder import work_folder
with work_folder(Path(sys.argv[1])) as made:
    (made / "half").write_text("of it")
    print(made, flush=True)
    sys.stdin.read()
"""


@pytest.mark.processes
def test_the_folder_of_a_killed_process_is_removed_and_that_of_a_living_process_is_not(tmp_path):
    out = tmp_path / "shards"
    alike = [tmp_path / name for name in (".shards-of-mine", ".shards", "shards-abcdefgh", ".other-abcdefgh")]
    for folder in alike:
        folder.mkdir()
    command = [sys.executable, "-c", WAITS, str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        its = Path(other.stdout.readline().strip())
        with work_folder(out):
            assert (its / "half").exists()
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert its.exists()
    with work_folder(out) as made:
        assert not its.exists()
        made.rename(out)
    assert sorted(tmp_path.iterdir()) == sorted([*alike, out])


NEW = """
import os, signal, sys
from pathlib import Path
from rankless.files.work_folder import new_folder
with new_folder(Path(sys.argv[1])) as made:
    (made / "half").write_text("of it")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.processes
@pytest.mark.parametrize("there", [False, True])
def test_a_killed_process_leaves_no_half_folder(tmp_path, there):
    out = tmp_path / "out"
    if there:
        out.mkdir()
    subprocess.run([sys.executable, "-c", NEW, str(out)], timeout=60, check=False)
    assert len(list(tmp_path.iterdir())) == 1 + there, "the hidden one"
    assert not there or not list(out.iterdir())
    with new_folder(out) as made:
        (made / "file").write_text("whole")
    assert list(tmp_path.iterdir()) == [out] and (out / "file").read_text() == "whole"


def test_nothing_that_is_there_is_replaced(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("precious")
    (tmp_path / "lost").symlink_to("nothing")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    for name in ("out", "out/mine", "lost", "loop", "pipe"):
        with (
            pytest.raises(UserError, match=r"--out .*(already exists|cannot be used as a new folder)"),
            new_folder(tmp_path / name),
        ):
            pass
    assert (tmp_path / "out" / "mine").read_text() == "precious"
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("there", [False, True])
def test_what_came_meanwhile_stays(tmp_path, there):
    out = tmp_path / "out"
    if there:
        out.mkdir()
    with pytest.raises(UserError, match=r"cannot be written: .*not empty"), new_folder(out) as made:
        (made / "ours").write_text("")
        out.mkdir(exist_ok=True)
        (out / "theirs").write_text("precious")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "theirs"]


def test_a_link_to_an_empty_folder_goes_on_leading_there(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "real").mkdir()
    (tmp_path / "out").symlink_to("far/real")
    with new_folder(tmp_path / "out") as made:
        (made / "file").write_text("whole")
    assert (tmp_path / "out").is_symlink() and (tmp_path / "far/real/file").read_text() == "whole"
    assert len(list((tmp_path / "far").iterdir())) == 1


@pytest.mark.processes
def test_an_empty_mount_is_filled_from_inside(tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    kept = out.stat().st_ino
    monkeypatch.setattr(Path, "is_mount", lambda path: path == out)
    subprocess.run([sys.executable, "-c", INSIDE, str(out)], timeout=60, check=False)
    assert len(list(out.iterdir())) == 1, "what the killed process left"
    with new_folder(out) as made:
        assert made.parent == out
        (made / "data").mkdir()
        (made / "data" / "file").write_text("whole")
    assert out.stat().st_ino == kept
    assert [path.name for path in sorted(out.rglob("*"))] == ["data", "file"]


INSIDE = NEW.replace("with new", "Path.is_mount = lambda path: path.name == 'out'\nwith new")


def test_a_source_that_is_gone_is_named(tmp_path):
    with (
        pytest.raises(UserError, match=r"/gone.jpg: cannot be copied to --out .*out: No such file"),
        new_folder(tmp_path / "out") as made,
    ):
        copy("/gone.jpg", made / "0.jpg", 100)
    assert not list(tmp_path.iterdir())


def test_a_name_may_be_as_long_as_a_name_can_be(tmp_path):
    with new_folder(tmp_path / ("n" * 255)) as made:
        (made / "file").write_text("")
    assert [len(path.name) for path in tmp_path.rglob("*")] == [255, 4]
