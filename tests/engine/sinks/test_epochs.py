"""The table of epochs, from steps and evaluations written down by hand."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from rankless.engine.sinks.epochs import EpochTable
from rankless.engine.sinks.sink import RunStart

# Five steps in two epochs of 2.5 steps: the third step belongs to the second epoch, in which it ends.
STEPS = [(1, 0.4, 8.0), (2, 0.8, 6.0), (3, 1.2, 5.0), (4, 1.6, 3.0), (5, 2.0, 1.0)]


def entry(step: int, epoch: float, loss: float) -> dict:
    return {"step": step, "epoch": epoch, "loss": loss, "lr": 0.1 / step, "timing": {"seconds": 0.5}}


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "epochs.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def started(folder: Path, first: int) -> EpochTable:
    sink = EpochTable()
    sink.start(RunStart(folder, {}, first, 5, 1))
    return sink


@pytest.mark.parametrize("stopped_after", [0, 1, 2, 3, 4, 5])
def test_each_epoch_has_a_row_wherever_the_run_was_resumed(tmp_path: Path, stopped_after: int) -> None:
    scores = {"AP": 0.25, "loss": 7.5, "APl": None, "per_class": {"cat": {"AP": 0.25}}}
    entries = [entry(*one) for one in STEPS]
    journal = [*entries[:2], {"evaluation": 2, "scores": scores}, *entries[2:]]
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(one) + "\n" for one in journal))
    sink = started(tmp_path, stopped_after)
    for one in entries[stopped_after:]:
        sink.step(one)
        if one["step"] == 2:
            sink.scores(2, scores, is_best=True)
    sink.close()
    first, second = table(tmp_path)
    assert first.pop("APl", "") == "" and "cat/AP" not in first
    numbers = [{name: float(text) for name, text in row.items() if text} for row in (first, second)]
    assert numbers[0] == pytest.approx(
        {"epoch": 1, "step": 2, "train_loss": 7, "val_loss": 7.5, "lr": 0.05, "seconds": 1, "AP": 0.25}
    )
    assert numbers[1] == pytest.approx({"epoch": 2, "step": 5, "train_loss": 3, "lr": 0.02, "seconds": 1.5})


def test_a_complete_epoch_is_written_before_the_run_ends(tmp_path: Path) -> None:
    sink = started(tmp_path, 0)
    for one in STEPS[:3]:
        sink.step(entry(*one))
    assert [row["epoch"] for row in table(tmp_path)] == ["1"]
