"""What rank 0 writes for the report while it trains, and that nothing of it can end a training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rankless.engine.reporting import Reporting
from rankless.engine.sinks.sink import RunStart, Sink, Sinks
from rankless.errors import UserError
from rankless.runs.directory import RunDirectory
from rankless.structures import Scores


class Recorder(Sink):
    """Keeps events; one may be refused as by a full disk."""

    def __init__(self, *, full: bool = False) -> None:
        self.events: list[tuple[str, int, str]] = []
        self.full = full

    def start(self, run: RunStart) -> None: ...
    def step(self, entry: Mapping[str, Any]) -> None: ...
    def scores(self, step: int, scores: Scores, is_best: bool) -> None: ...
    def close(self) -> None: ...

    def event(self, name: str, step: int, text: str) -> None:
        self.events.append((name, step, text))
        if self.full:
            raise UserError("the journal cannot be written")


class Counts:
    """A task that counts its predictions for the report."""

    def report_details(self, predictions: list[int]) -> dict[str, Any]:
        return {"images": len(predictions)}


class Fails:
    def report_details(self, predictions: list[int]) -> dict[str, Any]:
        raise ZeroDivisionError("nothing there")


def reporting(task: Any, folder: Path, recorder: Sink, *, enabled: bool = True) -> Reporting:
    return Reporting(task, RunDirectory(folder), Sinks([recorder]), enabled=enabled)


def test_the_details_of_the_best_evaluation_stay(tmp_path: Path) -> None:
    report = reporting(Counts(), tmp_path, Recorder())
    for step, count, is_best in ((4, 2, True), (8, 3, True), (12, 4, False)):
        report.keep([1] * count)
        report.evaluated(step, is_best=is_best)
    assert json.loads((tmp_path / "evaluation.json").read_text()) == {"step": 8, "images": 3}


@pytest.mark.parametrize("full", [False, True])
def test_an_error_is_one_warning(tmp_path: Path, full: bool) -> None:
    recorder = Recorder(full=full)
    report = reporting(Fails(), tmp_path, recorder)
    for step in (4, 8):
        report.keep([1])
        report.evaluated(step, is_best=True)
    ((name, step, text),) = recorder.events
    assert (name, step) == ("warning", 4)
    assert text == "the report could not be written (ZeroDivisionError: nothing there); training goes on"


def test_other_ranks_dry_runs_and_tasks_without_details_write_none(tmp_path: Path) -> None:
    recorder = Recorder()
    for task, enabled in ((Counts(), False), (Fails(), False), (object(), True)):
        report = reporting(task, tmp_path, recorder, enabled=enabled)
        report.keep([1])
        report.evaluated(4, is_best=True)
    assert not recorder.events
    assert not (tmp_path / "evaluation.json").exists()
