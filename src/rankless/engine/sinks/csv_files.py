"""Sinks that write ``steps.csv``, ``scores.csv`` and ``epochs.csv`` for spreadsheets and pandas."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankless.engine.sinks.numbers import of_scores, of_step
from rankless.engine.sinks.sink import RunStart, Sink
from rankless.files.writing import write_atomically
from rankless.recipe.fields import LINK_VALUES
from rankless.runs.directory import RunDirectory
from rankless.runs.journal import read, step_of
from rankless.structures import Scores


class CsvSink(Sink):
    """Writes one row per step and one per evaluation. The first row determines the columns."""

    def start(self, run: RunStart) -> None:
        """Remove the rows of steps that will be repeated."""
        self._steps = _Table(run.run / "steps.csv", run.first)
        self._scores = _Table(run.run / "scores.csv", run.first - run.unscored)

    def step(self, entry: Mapping[str, Any]) -> None:
        self._steps.write({"step": entry["step"], **_plain(of_step(entry))})

    def scores(self, step: int, scores: Scores, is_best: bool) -> None:
        self._scores.write({"step": step, "is_best": int(is_best), **_plain(of_scores(scores))})


def _plain(numbers: Mapping[str, float]) -> dict[str, float]:
    return {name.partition("/")[2]: value for name, value in numbers.items()}


class _Table:
    """A CSV file with a header. Opening it removes the rows after ``step``."""

    def __init__(self, path: Path, step: int) -> None:
        self.columns: list[str] = []
        if path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            self.columns = list(rows[0]) if rows else []
            text = io.StringIO()
            writer = csv.DictWriter(text, self.columns, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(
                row for row in rows if (row.get("step") or "").isdigit() and int(row["step"]) <= step
            )
            write_atomically(path, text.getvalue() if self.columns else "")
        self._path = path

    def write(self, row: Mapping[str, Any]) -> None:
        is_first = not self.columns
        self.columns = self.columns or list(row)
        with self._path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns, extrasaction="ignore", lineterminator="\n")
            if is_first:
                writer.writeheader()
            writer.writerow(row)


class EpochTable(Sink):
    """Rewrites ``epochs.csv`` after each epoch, with its losses, scores, learning rate and seconds.

    The table is computed from all entries of the journal, including those of earlier starts. A run resumed on
    another machine therefore has all rows.
    """

    def start(self, run: RunStart) -> None:
        self._path = run.run / "epochs.csv"
        self._name: str = run.recipe.get("checkpoint", {}).get("name", "")
        self._rows: dict[int, dict[str, Any]] = {}
        self._losses: list[float] = []
        journal = RunDirectory(run.run).journal
        for entry in read(journal) if run.first else ():
            if 0 < step_of(entry) <= run.first:
                self._take(entry)

    def step(self, entry: Mapping[str, Any]) -> None:
        """Add a step. The first step of an epoch completes the row of the previous epoch."""
        is_first = self._epoch(entry) not in self._rows
        if is_first and self._rows:
            self._write()
        self._take(entry)

    def scores(self, step: int, scores: Scores, is_best: bool) -> None:
        self._take({"evaluation": step, "scores": scores})

    def close(self) -> None:
        self._write()

    def _take(self, entry: Mapping[str, Any]) -> None:
        if "step" in entry:
            epoch = self._epoch(entry)
            if epoch not in self._rows:
                self._losses = []
                self._rows[epoch] = {"epoch": epoch, "seconds": 0.0}
            self._losses.append(entry["loss"])
            row = self._rows[epoch]
            row |= {"step": entry["step"], "lr": entry["lr"]}
            row["train_loss"] = math.fsum(self._losses) / len(self._losses)
            row["seconds"] += entry["timing"]["seconds"]
        elif "evaluation" in entry and self._rows:
            named = {name.removeprefix("val/"): value for name, value in of_scores(entry["scores"]).items()}
            found = {"val_loss" if name == "loss" else name: value for name, value in named.items()}
            next(reversed(self._rows.values())).update(
                (name, value) for name, value in found.items() if "/" not in name
            )

    def _epoch(self, entry: Mapping[str, Any]) -> int:
        return math.ceil(round(float(entry["epoch"]), 5))

    def _write(self) -> None:
        if not self._rows:  # the run ended before its first step
            return
        columns = dict.fromkeys(("epoch", "step", "train_loss", "val_loss", "lr", "seconds"))
        columns |= dict.fromkeys(name for row in self._rows.values() for name in row)
        text = io.StringIO()
        writer = csv.DictWriter(text, list(columns), restval="", lineterminator="\n")
        writer.writeheader()
        for row in self._rows.values():
            writer.writerow({**row, "seconds": round(row["seconds"], 3)})
        write_atomically(self._path, text.getvalue())
        if self._name:
            self._link()

    def _link(self) -> None:
        """Link the weights of each epoch's checkpoint, and remove the links to removed checkpoints."""
        run = RunDirectory(self._path.parent)
        names: dict[str, int] = {}
        for row in self._rows.values():
            values = {"val_loss": math.nan, **row, "loss": row["train_loss"]}
            name = self._name.format(**{key: values[key] for key in LINK_VALUES})
            names[f"{name.removesuffix('.safetensors')}.safetensors"] = row["step"]
        there = set(run.steps())
        for name, step in names.items():
            run.link_weights(name, step if step in there else None)
