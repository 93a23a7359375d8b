"""The logs of the ranks: what a crash has left outlives the next start."""

from __future__ import annotations

import os
from pathlib import Path

from rankless.launch.rank_log import LIMIT, exception_in, last_start, last_traceback, open_log


def start(path: Path, why: str, text: str) -> None:
    log = open_log(path, why)
    os.write(log, text.encode())
    os.close(log)


def test_every_start_appends_after_a_header(tmp_path):
    path = tmp_path / "logs" / "rank-0.log"
    assert last_traceback(last_start(path)) == []
    start(path, "train begins", "Traceback (most recent call last):\nKeyError: 1\n")
    assert last_traceback(last_start(path)) == ["Traceback (most recent call last):", "KeyError: 1"]
    start(path, "rank 1 was killed by SIGKILL", "hello\n")
    lines = path.read_text().splitlines()
    assert [lines[1], lines[2], lines[4]] == ["Traceback (most recent call last):", "KeyError: 1", "hello"]
    for number, line, why in ((1, lines[0], "train begins"), (2, lines[3], "rank 1 was killed by SIGKILL")):
        assert line.startswith("=== 2")
        assert line.endswith(f"  start {number} in this file, process {os.getpid()}: {why}")
    assert last_traceback(last_start(path)) == [], "of the last start"


def test_a_long_one_is_put_aside(tmp_path):
    path = tmp_path / "rank-0.log"
    start(path, "train begins", "x" * LIMIT)
    start(path, "again", "short\n")
    assert path.read_text().splitlines()[1] == "short"
    assert (tmp_path / "rank-0.log.1").stat().st_size > LIMIT
    start(path, "again", "x" * LIMIT)
    start(path, "again", "short\n")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["rank-0.log", "rank-0.log.1"]


def test_an_exception_is_one_line_wherever_it_lay_in_memory(tmp_path):
    lines = [
        "Traceback (most recent call last):",
        '  File "/task.py", line 3, in loss',
        "    raise ValueError(self)",
        "ValueError: <Net object at 0x7f12ab>",
        "  and its second line",
    ]
    path = tmp_path / "rank-0.log"
    start(path, "train begins", "".join(f"[rank0]: {line}\n" for line in [*lines, "a warning"]))
    assert last_traceback(last_start(path))[:5] == lines, (
        "as PyTorch prefixes them while a process group exists"
    )
    assert exception_in(last_traceback(last_start(path))) == "ValueError: <Net object at 0x…> (/task.py:3)"
    assert exception_in([]) == ""
