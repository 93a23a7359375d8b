"""A sink that writes ``steps.csv`` and ``scores.csv`` for spreadsheets and pandas."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankless.engine.sinks.numbers import of_scores, of_step
from rankless.engine.sinks.sink import RunStart, Sink
from rankless.files.writing import write_atomically
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
