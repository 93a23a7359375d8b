"""Bars are live on a terminal, elsewhere a line now and then; tables keep their columns."""

from __future__ import annotations

import io

import pytest

from rankless.models.listing import Listed
from rankless.printing import ProgressBar, console_for, print_models, print_scores


def test_without_a_terminal_a_bar_is_a_line_every_ten_seconds() -> None:
    now = [100.0]
    out = io.StringIO()
    with ProgressBar(1, "evaluating", file=out, now=lambda: now[0]) as bar:
        for done in range(30):
            bar.show(done, 40)
            now[0] += 1.0
        bar.within("reading", 1, 4)
        now[0] += 10.0
        bar.within("reading", 2, 4)
        bar.within("reading", 4, 4)
    assert out.getvalue().splitlines() == [
        "evaluating: 10 of 40 batches  0:30 left",
        "evaluating: 20 of 40 batches  0:20 left",
        "reading  25%",
        "reading  50%",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_notebook_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel's output is a terminal by its own word, and a colored one by the kernel's environment."""
    out = Terminal()
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    assert ProgressBar(1, "reading images", file=out).is_live
    monkeypatch.setenv("JPY_PARENT_PID", "1")  # with "!" in a cell, or as a rank
    console = console_for(out)
    assert not console.is_terminal and not console.is_jupyter
    assert not ProgressBar(1, "reading images", file=out).is_live


def test_names_of_models_stay_in_their_column(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    longest = Listed("torchvision/a_detector_with_a_long_name", "detect", 91, (320, 640), 10**8, 1234.5, "A")
    print_models([longest, Listed("resnet18", "classify", 1000, (224, 224), 11_689_512, 3.64, "B")])
    head, *lines = capsys.readouterr().out.splitlines()
    for line in lines:
        assert line[head.index("task") - 1] == " "
        assert line[head.index("task") :].startswith(("detect ", "classify "))
        assert line[head.index("from") - 2 : head.index("from")] == "  "
    assert lines[0].split() == [longest.name, "detect", "100,000,000", "1234.50", "320×640", "A"]


def test_classes_without_data_are_counted_and_not_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    some = {"cat": {"AP": 0.5, "AP50": 0.0}} | {f"no {n}": {"AP": None, "AP50": None} for n in range(10)}
    print_scores({"AP": 0.25, "APl": None, "images": 3, "per_class": some})
    print_scores({"AP": 0.5, "per_class": {"no": {"AP": None}}})
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    eight = ", ".join(f"'no {n}'" for n in range(8))
    assert said == [
        ["images", "3"], ["AP", "0.2500"], ["APl", "–"], [],
        ["class", "AP", "AP50"], ["cat", "0.5000", "0.0000"],
        f"10 classes have no data and are not listed: {eight} and 2 more".split(),
        ["AP", "0.5000"], [],
        ["1", "class", "has", "no", "data", "and", "is", "not", "listed:", "'no'"],
    ]  # fmt: skip


def test_a_confusion_matrix_is_a_table_of_at_most_thirty_classes(capsys: pytest.CaptureFixture[str]) -> None:
    per_class = {"cat": {"f1": 0.5, "support": 12}, "big dog": {"f1": None, "support": 0}}
    print_scores({"top1": 0.75, "per_class": per_class, "confusion": [[9, 3], [0, 0]]})
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:] == ["          0 1", "cat     0 9 3", "big dog 1 · ·"]
    many = {str(number): {"f1": 1.0} for number in range(31)}
    print_scores({"per_class": many, "confusion": [[0] * 31] * 31})
    assert (
        capsys.readouterr().out.splitlines()[-1]
        == "31 classes are too many for a table; use --json to print the counts"
    )
