"""The journal has every number once, also after a crash in the middle of a line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankless.runs import journal
from rankless.runs.journal import Journal


def write(path: Path, steps: range, start: int) -> None:
    book = Journal(path, start)
    book.write(event="resume" if start else "start", at=start)
    for step in steps:
        book.write(step=step, loss=1 / step, timing={"seconds": start})
        if step % 4 == 0:
            book.write(evaluation=step, scores={"AP": step / 10, "classes": {"ü": None}})
    journal.flush(path)
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


def test_what_is_no_entry_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"step":1}\n[1]\n7\n\n\xff\xfe\n{"event":"x"}\n')
    assert list(journal.read(path)) == [{"step": 1}, {"event": "x"}]
    assert journal.numbers(path) == [{"step": 1}]


entries = st.dictionaries(
    st.text(min_size=1, max_size=5),
    st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    max_size=3,
)


@given(st.lists(entries, max_size=5))
def test_floats_and_texts_come_back_as_they_were(tmp_path_factory: Any, lines: list[dict[str, Any]]) -> None:
    path = tmp_path_factory.getbasetemp() / "floats.jsonl"
    path.unlink(missing_ok=True)
    book = Journal(path, 0)
    for number, line in enumerate(lines, 1):
        book.write(**line)
        assert len(path.read_text().splitlines()) == number, "it can be read as soon as it is written"
    book.close()
    assert list(journal.read(path)) == lines


@pytest.mark.parametrize(
    ("last", "why"),
    [
        ({"event": "death", "at": 3, "text": "rank 1 was killed by SIGKILL"}, "rank 1 was killed by"),
        ({"event": "error", "at": 3, "text": "the disk is full"}, "the disk is full"),
        ({"event": "stop", "at": 3, "text": "3% of 2.0 s"}, "it stopped on request after step 3"),
        ({"event": "end", "at": 3, "text": "3% of 2.0 s"}, "it finished after step 3"),
        ({"evaluation": 3, "scores": {}}, "its launcher was killed, or the machine"),
        ({"event": "resume", "at": 0}, "its launcher was killed"),
    ],
)
def test_it_says_why_a_run_does_not_go_on(tmp_path: Path, last: dict[str, Any], why: str) -> None:
    path = tmp_path / "journal.jsonl"
    assert journal.ending(path) is None
    write(path, range(1, 4), 0)
    journal.append(path, event="stop", at=1, text="an earlier one")
    journal.append(path, step=3, loss=0.1)
    journal.append(path, **last)
    journal.append(path, event="warning", text="says nothing about the end")
    assert why in (journal.ending(path) or "")


def test_the_soundest_copy_is_the_one_with_most_numbers(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, range(1, 9), 0)
    lines = path.read_bytes().splitlines(keepends=True)
    copies = {
        "whole": lines,
        "an event is zeroed": [b"\0" * 20 + b"\n", *lines[1:]],
        "a step is missing": [*lines[:3], *lines[4:]],
        "a step is zeroed": [*lines[:3], b"\0" * 20 + b"\n", *lines[4:]],
        "it was away": lines[:6],
        "nothing but noise": [b"\0" * 20 + b"\n"] * 30,
        "empty": [],
    }
    found = {}
    for name, copied in copies.items():
        path.write_bytes(b"".join(copied))
        found[name] = journal.soundness(path, 8, unscored=False)
    path.unlink()
    assert journal.soundness(path, 8, unscored=False) <= found["empty"]
    order = sorted(copies, key=lambda name: found[name], reverse=True)
    assert order == ["whole", "an event is zeroed", "a step is missing", "a step is zeroed", *order[4:]]
    assert order[4] == "it was away" and set(order[5:]) == {"empty", "nothing but noise"}


def test_the_end_of_a_long_journal_is_read_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, range(1, 2000), 0)
    assert path.stat().st_size > 1 << 16
    before = journal.numbers(path)
    with path.open("a") as file:
        file.write('{"step":2000,"lo')
    journal.append(path, event="death", at=1999, rank=0, code=1, text="rank 0 ended with code 1")
    assert journal.numbers(path) == before
    entries = journal.tail(path)
    assert entries[-1]["event"] == "death"
    assert max(journal.step_of(entry) for entry in entries) == 1999
    assert len(entries) < 1500
    book = Journal(path, 1999)
    book.close()
    assert not book.left_out, "no line is damaged"


def test_what_is_not_finite_is_json_for_every_reader(tmp_path: Path) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    path = tmp_path / "journal.jsonl"
    book = Journal(path, 0)
    book.write(step=1, loss=math.nan, gradient_norm=math.inf, parts={"box": -math.inf, "class": 0.5})
    book.write(evaluation=1, scores={"AP": math.nan, "classes": [0.25, math.nan]})
    book.close()
    step, scored = (json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines())
    assert step == {"step": 1, "loss": None, "gradient_norm": None, "parts": {"box": None, "class": 0.5}}
    assert scored["scores"] == {"AP": None, "classes": [0.25, None]}
    entry = next(journal.read(path))  # numbers for whoever formats or compares them
    assert [entry["loss"], entry["gradient_norm"], entry["parts"]["box"]] == [math.inf] * 3
