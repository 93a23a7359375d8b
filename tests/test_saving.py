"""The file that names the process that saves, and other content in its place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankless.runs.directory import RunDirectory
from rankless.runs.saving import saving, saving_process


def test_the_process_that_saves_is_named_while_it_saves(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert saving_process(run) is None
    with saving(run):
        assert saving_process(run) == os.getpid()
    assert saving_process(run) is None


def test_a_process_of_another_machine_is_none_of_this_one(tmp_path):
    """On a directory that machines share a number may be that of a rank on each of them."""
    with saving(RunDirectory(tmp_path)):
        said = (tmp_path / ".saving").read_text()
        (tmp_path / ".saving").write_text(said.replace(os.uname().nodename, "another"))
        assert saving_process(RunDirectory(tmp_path)) is None


@pytest.mark.timeout(60)  # a pipe waits for ever, and a device has no end
@pytest.mark.parametrize("kind", ["pipe", "device", "large", "text", "bytes"])
def test_what_is_no_announcement_names_no_process(tmp_path: Path, kind: str) -> None:
    place = tmp_path / ".saving"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "device":
        place.symlink_to("/dev/zero")
    elif kind == "large":
        with place.open("wb") as file:
            file.truncate(1 << 40)
    else:
        place.write_bytes({"text": b"nobody", "bytes": b"\xff"}[kind])
    run = RunDirectory(tmp_path)
    assert saving_process(run) is None
    with saving(run):
        assert saving_process(run) == os.getpid()
