"""What several workers need is made by one of them, and made again if that one fails."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.made_once import made_once


def test_workers_that_ask_at_the_same_time_get_one_folder(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        time.sleep(0.1)
        (folder / str(time.monotonic_ns())).touch()

    with ThreadPoolExecutor(4) as workers:  # a lock holds between threads as it does between processes
        folders = list(workers.map(lambda _: made_once(tmp_path.parent.name, make), range(4)))
    assert len(set(folders)) == 1 and len(list(folders[0].iterdir())) == 1


def test_a_failure_leaves_nothing_for_the_next_worker(tmp_path: Path) -> None:
    def fails(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("the disk is full")

    name = f"{tmp_path.parent.name}-fails"
    with pytest.raises(OSError, match="full"):
        made_once(name, fails)
    assert [file.name for file in made_once(name, lambda folder: (folder / "all").touch()).iterdir()] == [
        "all"
    ]
