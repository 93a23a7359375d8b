"""What a person sees of a training: a row an epoch, a bar, and nothing broken at 80 columns."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rankless.engine.setup import _about_the_data
from rankless.engine.sinks.sink import RunStart
from rankless.engine.sinks.terminal import Rows, Terminal
from rankless.printing import filled, print_best

COCO = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")
SCORES = {**dict.fromkeys(COCO, 0.12345678), "loss": 123456.789, "computed_in": "bf16", "per_class": {}}
LOSSES = (0.00001234, 1.5, 123456.789)


def entry(step: int, epoch: float, loss: float = 2.0, seconds: float = 0.5) -> dict[str, Any]:
    return {
        "step": step, "epoch": epoch, "loss": loss, "lr": 0.01, "timing": {"seconds": seconds, "waited": 0.1},
        "parts": {"box": loss, "objectness": 1.0, "classes": 123.0},
    }  # fmt: skip


def cells(line: str) -> list[str]:
    return re.split(r"\s{2,}", line.strip())


def test_an_epoch_is_one_row_under_one_header_with_the_means_of_its_steps() -> None:
    rows = Rows(epochs=2, steps=4, images=8)
    assert not rows.step(entry(1, 0.5, loss=1.0)) and not rows.step(entry(2, 1.0, loss=4.0, seconds=1.5))
    header, row = rows.scores(2, SCORES, True)
    assert cells(header) == [
        "epoch", "loss", "val loss", "AP", "AP50", "AP75", "lr", "images/s", "best",
    ]  # fmt: skip
    assert cells(row) == [
        "1/2", "2.5", "1.23e+05", "0.1235", "0.1235", "0.1235", "1.00e-02", "5.3", "*",
    ]  # fmt: skip
    assert header.index("lr") + len("lr") == row.index("e-02") + len("e-02")  # numbers end below names
    assert not rows.step(entry(3, 1.5)) and not rows.step(entry(4, 2.0))
    (second,) = rows.scores(4, {**SCORES, "AP": None}, False)
    assert cells(second)[0] == "2/2" and cells(second)[3] == "–" and not second.endswith("*")
    assert not rows.end()


def test_an_epoch_without_an_evaluation_has_a_row_and_an_evaluation_within_one_too() -> None:
    rows = Rows(epochs=3, steps=6, images=8)
    rows.step(entry(1, 0.6))
    _, first = rows.scores(1, {"AP": 0.5}, True)
    assert cells(first)[0] == "0.60"
    assert not rows.step(entry(2, 1.2))  # nobody knows yet whether it is evaluated
    (epoch,) = rows.step(entry(3, 1.8))
    assert cells(epoch)[0] == "1/3" and "0.5" not in epoch
    rows.step(entry(4, 2.4))
    (last,) = rows.end()
    assert cells(last)[0] == "2/3"
    resumed = Rows(epochs=3, steps=6, images=8)
    _, row = resumed.scores(4, {"AP": 0.5}, False)  # what a stop has kept from being scored
    assert cells(row)[:2] == ["2/3", "–"]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("loss", LOSSES)
def test_rows_are_narrower_than_the_terminal(width: int, loss: float) -> None:
    rows = Rows(epochs=1000, steps=4000, images=4096, width=max(width, 60), best="AR100")
    rows.step(entry(4000, 1000.0, loss, seconds=0.05))
    lines = rows.scores(4000, {**SCORES, "loss": loss}, True)
    assert all(len(line) < max(width, 60) for line in lines)
    if width >= 80:
        assert "AR100" in cells(lines[0])  # what the best weights are chosen by is always there


def shown(width: int, *, is_terminal: bool) -> str:
    out = io.StringIO()
    terminal = Terminal(images=16, device="cpu")
    terminal.console = Console(
        file=out, width=width, force_terminal=is_terminal, highlight=False, soft_wrap=True, color_system=None
    )
    recipe = {"epochs": 1, "precision": "bf16", "workers": "auto"}
    terminal.start(RunStart(Path("runs/digits"), recipe, 0, 2, 1))
    notes = [f"{number} boxes reach over the edge of the image, clipped" for number in range(2, 6)]
    terminal.event("note", 0, _about_the_data(notes, notes[:1]))
    terminal.event("warning", 0, "the run has only 16 steps, in which a network learns little " * 2)
    terminal.step(entry(1, 0.5))
    terminal.step(entry(2, 1.0))
    terminal.progress("evaluating", 1, 4)
    if terminal.bar and terminal.bar.is_live:
        terminal.bar._live.refresh()
    terminal.progress("evaluating", 4, 4)
    terminal.scores(2, SCORES, True)
    terminal.close()
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_broken_on_a_terminal(width: int) -> None:
    printed = shown(width, is_terminal=True)
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split("[\r\n]+", printed)]
    assert max(map(len, lines)) <= width
    assert any(line.startswith("evaluating") and "25%" in line for line in lines)
    assert any(line.startswith("waiting for the first step") and "so far" in line for line in lines)
    assert lines[0] == "training in runs/digits on 1 process, bf16, workers: 0 (auto)"
    for number in ("0.1235  0.1235  0.1235", "lr 1.00e-02", "32 images/s", "objectness 1", "classes 123"):
        assert any(number in line for line in lines)


def test_without_a_terminal_there_are_plain_lines() -> None:
    lines = shown(80, is_terminal=False).splitlines()
    assert "\x1b" not in "".join(lines)
    assert [line.split()[0] for line in lines] == [
        "training", "note:", "2", "training:", "training:", "training:", "warning:", "epoch", "epoch",
        "epoch", "1/1",
    ]  # fmt: skip
    assert lines[7].startswith("epoch 0.50/1  step 1/2  loss 2  lr 1.00e-02")
    assert lines[8].startswith("epoch 1.00/1  step 2/2  loss 2  lr 1.00e-02  32 images/s  waited 10%")


def test_the_bar_ends_with_the_means_of_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(images=16)
    terminal.start(RunStart(Path("run"), {"epochs": 1, "precision": "fp32"}, 0, 4, 1))
    for step, (loss, seconds) in enumerate([(9.0, 60.0), (3.0, 1.0), (5.0, 2.0), (1.0, 3.0)], 1):
        terminal.step(entry(step, step / 4, loss, seconds))
    terminal.scores(4, {"AP": 0.5}, True)
    terminal.close()
    *_, bar, _, row = capsys.readouterr().out.splitlines()
    assert "loss 4.5 " in bar and " 8 images/s" in bar and "waited 10%" in bar  # 3 × 16 images in 6 s
    assert cells(row) == ["1/1", "4.5", "0.5000", "1.00e-02", "8", "*"]


def test_a_stop_prints_the_epoch_that_was_not_evaluated(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(images=16)
    terminal.start(RunStart(Path("run"), {"epochs": 3, "precision": "fp32"}, 0, 6, 1))
    terminal.step(entry(1, 0.5))
    terminal.step(entry(2, 1.0))
    terminal.event("stop", 2, "asked to")
    terminal.close()
    *_, row, said = capsys.readouterr().out.splitlines()
    assert cells(row)[0] == "1/3" and said == "step 2: asked to"


def test_notes_of_both_splits_are_one_note() -> None:
    assert _about_the_data(["a"], ["a"]) == "the data: a"
    assert _about_the_data(["a", "b"], ["a", "c"]) == "the data\n  a\n  training: b\n  evaluation: c"
    assert _about_the_data([], ["c"]) == "the data: evaluation: c" and _about_the_data([], []) == ""


def test_the_numbers_of_the_best_evaluation_are_not_broken(capsys: pytest.CaptureFixture[str]) -> None:
    print_best(48, SCORES)
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "best (step 48, in bf16):" and all(len(line) < 80 for line in rest)
    found = dict(re.findall(r"(\w+) +([\d.]+)", " ".join(rest)))
    assert found == {**dict.fromkeys(COCO, "0.1235"), "loss": "123456.7890"}


def test_parts_fill_lines() -> None:
    assert filled(["aaa", "bb", "c", "a-long-one", "d"], 9) == "aaa  bb\nc\na-long-one\nd"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_scores_of_the_last_epoch_alone_have_a_column_from_the_start(width: int) -> None:
    rows = Rows(epochs=2, steps=4, images=8, width=width, best="AR1", scores=["loss", *COCO])
    rows.step(entry(1, 0.5)), rows.step(entry(2, 1.0))
    header, first = rows.step(entry(3, 1.5))
    rows.step(entry(4, 2.0))
    (last,) = rows.scores(4, SCORES, True)  # no second header
    assert cells(header)[2:-3] == ["val loss", "AP", "AP50", "AR1"][: len(cells(header)) - 5]
    assert cells(first) == ["1/2", "2", "1.00e-02", "16"] and "val loss" in cells(header)
    assert len(cells(last)) == len(cells(header)) and first.index("1.00e-02") == last.index("1.00e-02")
    plain = Rows(epochs=2, steps=4, images=8, width=width)  # a task of one's own, whose scores nobody knows
    assert not any(plain.step(entry(step, step / 2)) for step in (1, 2))
    assert len([*plain.step(entry(3, 1.5)), *plain.scores(4, SCORES, True)]) == 4
