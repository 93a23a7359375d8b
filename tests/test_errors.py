"""Errors contain no control characters, even if the names and files that they quote do."""

from __future__ import annotations

import errno
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankless.errors import (
    LONGEST,
    MOST_PROBLEMS,
    TaskError,
    UserError,
    counted,
    escaped,
    listed,
    nearest,
    of_the_system,
    one_of,
    printable,
    remedy,
)

BIDI = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}


def is_harmful(character: str) -> bool:
    return (
        unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}
        or unicodedata.bidirectional(character) in BIDI
        or character in "\u061c\u200e\u200f"
    )


def test_every_harmful_character_of_unicode_is_escaped_and_no_other():
    every = [chr(number) for number in range(sys.maxunicode + 1)]
    harmful = set(filter(is_harmful, every))
    others = "".join(character for character in every if character not in harmful)
    assert escaped(others) == others
    shown = escaped("".join(sorted(harmful)))
    assert shown.isascii()
    assert shown.isprintable()
    assert escaped("\x1b[31m \u202e \udcff \ud800") == r"\x1b[31m \u202e \xff \ud800"


@given(st.text())
def test_an_error_moves_no_cursor_and_forges_no_line(text: str):
    (problem,) = UserError(f"a.yaml: '{text}'").problems
    for line in problem.split("\n")[1:]:
        assert line.startswith(" ")
    assert not any(map(is_harmful, problem.replace("\n", "")))


def test_a_line_break_before_indented_text_stays():
    assert UserError("a.pt: does not fit\n  missing  x\nerror: b").problems == (
        "a.pt: does not fit\n  missing  x\\nerror: b",
    )
    assert TaskError("failed\n  a.py:3\nthe checkpoint is whole").problems == (
        "failed\n  a.py:3\nthe checkpoint is whole",
    )


def test_a_value_of_megabytes_is_shortened_and_its_cure_stays():
    (problem,) = UserError(f"a.yaml: 'x' is {'y' * 5_000_000}: expected a number").problems
    assert len(problem) < LONGEST
    assert problem.startswith("a.yaml: 'x' is yyy")
    assert problem.endswith("yyy: expected a number")
    assert "characters" in problem
    (problem,) = TaskError("failed\n" + "  a line\n" * 100_000).problems
    assert len(problem.splitlines()) < 110


def test_of_thousands_of_errors_the_first_are_reported_and_the_last():
    reported = UserError([*(f"{number}.jpg: cannot be read" for number in range(20_000)), "replace them"])
    assert len(reported.problems) == MOST_PROBLEMS + 2
    assert reported.problems[MOST_PROBLEMS:] == ("… and 19,975 more", "replace them")
    for count in (1, MOST_PROBLEMS, MOST_PROBLEMS + 1):
        assert len(UserError(map(str, range(count))).problems) == count


def test_printable_is_quick_and_escapes_what_cannot_be_seen():
    assert printable("é\u200b\x00") == "é\\u200b\\x00"
    assert printable("x" * 10**8) == "x" * 99 + "…"
    assert listed(["a\x1b"]) == r"'a\x1b'"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            OSError(errno.ELOOP, "Too many levels of symbolic links", "a"),
            "a: Too many levels of symbolic links",
        ),
        (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 300), "xxx: File name too long"),
        (PermissionError(errno.EACCES, "Permission denied", b"a\xff"), r"a\xff: Permission denied"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device; make room"),
        (ValueError("embedded null byte"), "NUL"),
        (ValueError("lstat: embedded null character in path"), "NUL"),
        (MemoryError(), "memory"),
    ],
)
def test_what_the_system_refuses_is_a_sentence(error: BaseException, words: str):
    reported = of_the_system(error)
    assert reported is not None
    assert words in reported.problems[0]


def test_a_bug_stays_a_bug():
    for error in (KeyError("a"), ValueError("a"), OSError("a"), RecursionError(), TypeError()):
        assert of_the_system(error) is None


def test_counts_agree_with_what_is_counted():
    assert [counted(1, "image"), counted(0, "image")] == ["1 image", "0 images"]
    assert counted(1234, "box", "boxes") == "1,234 boxes"
    assert counted(1, "box has", "boxes have") == "1 box has"


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("trian", "train"), ("--devces", "--devices"), ("YOLOV4_tiny", "yolov4-tiny"), ("foo", None),
        ("nosuch", None), ("--fast", None), ("voc", None), ("", None),
    ],
)  # fmt: skip
def test_only_what_is_near_is_suggested(word: str, meant: str | None):
    known = ["train", "--devices", "--force", "yolov4-tiny", "coco", "touch"]
    assert nearest(word, known) == (f"; did you mean '{meant}'?" if meant else "")


def test_one_of_a_single_name_is_that_name():
    assert one_of(["a", "b"]) == "one of a, b"
    assert one_of({"a": 1}) == "a"


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "make room"), (errno.EDQUOT, "make room"), (errno.EIO, "resolve the problem"),
        (errno.EACCES, "grant this user write access"), (errno.EPERM, "grant this user write access"),
        (errno.EROFS, "make the file system writable"),
    ],
)  # fmt: skip
def test_room_is_advised_where_there_is_none(number: int, advice: str):
    assert remedy(OSError(number, "")) == advice
