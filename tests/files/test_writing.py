"""A file is there as a whole or not at all, a link is never written through, a copy stands for itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rankless.files.writing import beside, copy, keep_beside, sweep, write_atomically

WAITS = """
import sys
from pathlib import Path
from rankless.files.writing import beside
with beside(Path(sys.argv[1])) as part:
    part.write_text("half of it")
    print(part, flush=True)
    sys.stdin.read()
"""


def no_links(*_: object, **__: object) -> None:
    raise PermissionError(1, "Operation not permitted")  # as FAT says it


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


@pytest.mark.processes
def test_a_killed_process_leaves_the_old_file_and_the_next_one_sweeps(tmp_path):
    mine = [".rankless-mine.tmp", ".rankless-0123456789abcdef.tmp.png", "rankless-0123456789abcdef.tmp"]
    for name in [*mine, "out"]:
        (tmp_path / name).write_text("old")
    command = [sys.executable, "-c", WAITS, str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        part = Path(other.stdout.readline().strip())
        assert part.parent == tmp_path
        sweep(tmp_path)
        assert part.read_text() == "half of it", "its writer lives"
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert part.exists() and (tmp_path / "out").read_text() == "old"
    sweep(tmp_path)
    assert names(tmp_path) == sorted([*mine, "out"])


def test_nothing_is_replaced_that_came_while_it_was_written(tmp_path):
    with pytest.raises(FileExistsError), beside(tmp_path / "out", replace=False) as part:
        part.write_text("ours")
        (tmp_path / "out").write_text("theirs")
    assert names(tmp_path) == ["out"] and (tmp_path / "out").read_text() == "theirs"
    with pytest.raises(FileExistsError), beside(tmp_path / "link", replace=False) as part:
        (tmp_path / "link").symlink_to("nothing")
    assert names(tmp_path) == ["link", "out"]


def test_nor_where_there_are_no_hard_links(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", no_links)
    with beside(tmp_path / "new", replace=False) as part:
        part.write_text("ours")
    assert (tmp_path / "new").read_text() == "ours"
    with pytest.raises(FileExistsError), beside(tmp_path / "new", replace=False):
        pass
    assert names(tmp_path) == ["new"]


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_is_replaced_and_not_written_through(tmp_path, link):
    (tmp_path / "theirs").write_text("precious")
    link(tmp_path / "theirs", tmp_path / "out")
    write_atomically(tmp_path / "out", "ours")
    assert (tmp_path / "theirs").read_text() == "precious"
    assert (tmp_path / "out").read_text() == "ours" and not (tmp_path / "out").is_symlink()


def test_a_name_may_be_as_long_as_a_name_can_be(tmp_path):
    write_atomically(tmp_path / ("n" * 255), "text")
    assert names(tmp_path) == ["n" * 255]


def test_what_is_written_has_the_users_permissions(tmp_path):
    (tmp_path / "plain").write_text("")
    write_atomically(tmp_path / "ours", "")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize(("size", "folder"), [(0, None), (3_000_001, None), (3_000_001, "/dev/shm")])
def test_a_copy_is_another_file_with_the_same_bytes(tmp_path, size, folder):
    with tempfile.NamedTemporaryFile(dir=folder or tmp_path) as old:  # another file system has other blocks
        old.write(os.urandom(size))
        old.flush()
        (tmp_path / "link").symlink_to(old.name)
        copy(tmp_path / "link", tmp_path / "new", 1 << 30)
        assert (tmp_path / "new").read_bytes() == Path(old.name).read_bytes()
        assert not (tmp_path / "new").is_symlink() and (tmp_path / "new").stat().st_nlink == 1
        (tmp_path / "dangling").symlink_to("nothing")
        for taken in ("new", "dangling"):
            with pytest.raises(FileExistsError):
                copy(old.name, tmp_path / taken, 1 << 30)
    assert not (tmp_path / "nothing").exists()


def test_what_is_replaced_is_kept_beside_and_of_many_the_newest(tmp_path, monkeypatch):
    path, pipe = tmp_path / "journal.jsonl", tmp_path / "pipe"
    for number in range(1, 13):
        path.write_text(f"version {number}")
        if number == 6:
            monkeypatch.setattr(os, "link", no_links)
        kept = keep_beside(path)
        assert kept.name == f"journal.jsonl.replaced-{number}" and kept.read_text() == f"version {number}"
    assert names(tmp_path) == [f"journal.jsonl.replaced-{n}" for n in (10, 11, 12)]
    os.mkfifo(pipe)
    assert keep_beside(pipe).is_fifo()


def test_a_path_that_is_not_utf_8_is_written_as_its_bytes(tmp_path):
    write_atomically(tmp_path / "table.csv", os.fsdecode(b"runs/\xff,1\n"))
    assert (tmp_path / "table.csv").read_bytes() == b"runs/\xff,1\n"
