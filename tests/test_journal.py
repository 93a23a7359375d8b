"""The journal: every number once, whatever tore it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rankless import journal
from rankless.journal import Journal


def write(path: Path, steps: range, start: int) -> None:
    book = Journal(path, start)
    book.write(event="resume" if start else "start", at=start)
    for step in steps:
        book.write(step=step, loss=1 / step, timing={"seconds": start})
        if step % 4 == 0:
            book.write(evaluation=step, scores={"AP": step / 10, "classes": {"ü": None}})
    book.flush()
    book.close()


def test_a_disturbed_run_leaves_the_numbers_of_an_undisturbed_one(tmp_path: Path) -> None:
    whole, torn = tmp_path / "deep" / "whole.jsonl", tmp_path / "torn.jsonl"
    write(whole, range(1, 13), 0)
    write(torn, range(1, 10), 0)
    with torn.open("a") as file:
        file.write('{"step":10,"loss":0.0')  # killed in the middle of a line
    write(torn, range(5, 13), 4)  # the checkpoint was of step 4
    assert journal.numbers(torn) == journal.numbers(whole)
    assert [entry["at"] for entry in journal.read(torn) if "event" in entry] == [0, 4]
    assert all("timing" not in entry for entry in journal.numbers(torn))
    # The evaluation after step 4 was before the checkpoint, and stays.
    assert [entry["evaluation"] for entry in journal.numbers(torn) if "evaluation" in entry] == [4, 8, 12]


def test_a_line_torn_by_a_crash_does_not_swallow_the_next(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"step":1}\n{"step":2,"lo')
    book = Journal(path, 1)
    book.write(step=2, loss=0.5)
    book.close()
    assert list(journal.read(path)) == [{"step": 1}, {"step": 2, "loss": 0.5}]


def test_each_line_can_be_read_as_soon_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    book = Journal(path, 0)
    for step in range(1, 4):
        book.write(step=step)
        assert len(path.read_text().splitlines()) == step
    book.close()


def test_what_is_no_entry_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"step":1}\n[1]\n7\n\n\xff\xfe\n{"event":"x"}\n')
    assert list(journal.read(path)) == [{"step": 1}, {"event": "x"}]
    assert journal.numbers(path) == [{"step": 1}]


entries = st.dictionaries(
    st.text(min_size=1, max_size=5),
    st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    max_size=3,
)


@given(st.lists(entries, max_size=5))
def test_floats_and_texts_come_back_as_they_were(tmp_path_factory: Any, lines: list[dict[str, Any]]) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    book = Journal(path, 0)
    for line in lines:
        book.write(**line)
    book.close()
    assert list(journal.read(path)) == lines
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == len(lines)
