"""The table of epochs, from steps and evaluations written down by hand."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from rankless.engine.sinks.csv_files import EpochTable
from rankless.engine.sinks.sink import RunStart
from rankless.errors import UserError
from rankless.recipe.load import default

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


def test_weights_are_linked_by_epoch_and_loss_while_their_checkpoint_exists(tmp_path: Path) -> None:
    sink = EpochTable()
    name = "ep{epoch:03d}-loss{loss:.3f}-val{val_loss:.3f}"
    sink.start(RunStart(tmp_path, {"checkpoint": {"name": name}}, 0, 5, 1))
    for step in (2, 5):
        folder = tmp_path / "checkpoints" / f"step-{step:09d}"
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_text(str(step))
    for one in STEPS:
        sink.step(entry(*one))
        if one[0] in (2, 5):
            sink.scores(one[0], {"loss": 7.5}, is_best=True)
    sink.close()
    first, second = (
        tmp_path / "ep001-loss7.000-val7.500.safetensors",
        tmp_path / "ep002-loss3.000-val7.500.safetensors",
    )
    assert (first.read_text(), second.read_text()) == ("2", "5")
    shutil.rmtree(tmp_path / "checkpoints" / "step-000000002")
    sink.close()
    assert not first.is_symlink() and second.read_text() == "5"


@pytest.mark.parametrize(
    "name",
    [
        "ep",
        "{epoch:03q}",
        "a/{epoch}",
        "{epoch.real}",
        "{AP}-{epoch}",
        "{epoch",
        "{epoch:999999999}",
        "{epoch:.2d}",
    ],
)
def test_names_of_links_that_cannot_be_made_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"checkpoint\.name.*expected a file name with {epoch}"):
        default([f"checkpoint.name={json.dumps(name)}"])
