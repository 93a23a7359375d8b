"""What rank 0 writes for the report while it trains, and that nothing of it can end a training."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from rankless.engine.reporting import Reporting
from rankless.engine.sinks.sink import Sink, Sinks
from rankless.errors import UserError
from rankless.runs.directory import RunDirectory


class Recorder(Sink):
    """Keeps events; one may be refused as by a full disk."""

    def __init__(self, *, full: bool = False) -> None:
        self.events: list[tuple[str, int, str]] = []
        self.full = full

    def event(self, name: str, step: int, text: str) -> None:
        self.events.append((name, step, text))
        if self.full:
            raise UserError("the journal cannot be written")


class Counts:
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
    assert text.startswith("the report could not be written (ZeroDivisionError: nothing there)")


def write_journal(folder: Path, steps: int) -> None:
    lines = [
        json.dumps({"step": step, "loss": 1.0, "timing": {"seconds": 1}}) for step in range(1, steps + 1)
    ]
    (folder / "journal.jsonl").write_text("\n".join([*lines, ""]))


def test_the_report_is_written_at_the_end_and_after_evaluations_if_that_is_fast(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write_journal(tmp_path, 3)
    report = reporting(Counts(), tmp_path, Recorder())
    for _ in range(2):  # the first page is taken to cost 0.1 s, and the next one what that one did
        for share, is_written in ((0.012, False), (0.008, True)):
            report._began = time.monotonic() - (report._spent + report._cost) / share
            report.evaluated(4, is_best=False)
            assert page.exists() is is_written
        page.unlink()
    report.close()
    assert page.exists()


def test_a_page_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    write_journal(tmp_path, 2)
    (tmp_path / "report.html").mkdir()
    recorder = Recorder()
    reporting(Counts(), tmp_path, recorder).close()
    ((name, _, text),) = recorder.events
    assert name == "warning"
    assert text.startswith("the report could not be written (Is a directory); ")
    assert text.endswith(f"; write it with: rankless report {tmp_path}")


def test_a_run_that_never_began_leaves_no_page(tmp_path: Path) -> None:
    reporting(Counts(), tmp_path, Recorder()).close()
    assert not list(tmp_path.iterdir())


def test_other_ranks_dry_runs_and_tasks_without_details_write_none(tmp_path: Path) -> None:
    recorder = Recorder()
    for task, enabled in ((Counts(), False), (Fails(), False), (object(), True)):
        report = reporting(task, tmp_path, recorder, enabled=enabled)
        report.keep([1])
        report.evaluated(4, is_best=True)
    assert not recorder.events
    assert not (tmp_path / "evaluation.json").exists()
