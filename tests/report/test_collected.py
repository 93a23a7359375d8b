"""A run read once and then kept up to date, as its journal grows or is cut by a resumed run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankless.engine.sinks.terminal import Rows
from rankless.engine.waiting import Waiting
from rankless.errors import UserError
from rankless.report import overview
from rankless.report.collected import Collected
from rankless.runs.journal import Follower, Journal


def step(number: int, **more: Any) -> dict[str, Any]:
    timing = {"seconds": 0.5, "time": 1000.0 + number, "waited": 0.2, "network": 0.4, **more}
    numbers = {"epoch": number / 10, "lr": 0.1, "loss": 8 / number, "parts": {"box": 1.0}}
    return {"step": number, **numbers, "timing": timing}


def write(path: Path, *entries: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in entries)


def test_what_is_new_is_read_and_a_line_under_way_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, {"event": "start", "at": 0, "world_size": 2}, step(1), step(2))
    run = Collected(tmp_path).refresh()
    assert (run.step, run.ranks, run.state) == (2, 2, "running")  # its journal has just grown
    line = json.dumps({"evaluation": 3, "scores": {"AP": 0.5}}) + "\n"
    with path.open("a") as file:
        file.write(json.dumps(step(3)) + "\n" + line[:10])
    assert (run.refresh().step, run.evaluations) == (3, [])
    with path.open("a") as file:
        file.write(line[10:])
    assert run.refresh().evaluations == [(3, {"AP": 0.5})]
    write(path, {"event": "stop", "at": 3}, {"event": "note", "at": 3})
    assert run.refresh().state == "stopped"
    assert list(run.steps.points("loss")) == [(1, 8), (2, 4), (3, 8 / 3)]
    assert run.steps.total("network") == pytest.approx(3 * 0.5 * 0.4)
    assert run.times == (1000.5, 1003)


def test_steps_that_a_resumed_run_does_again_count_once(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write(path, {"event": "start", "at": 0}, *(step(number) for number in range(1, 9)))
    run, reader = Collected(tmp_path).refresh(), Follower(path)
    assert len(list(reader.entries())) == 9
    book = Journal(path, 4)  # cut to the checkpoint, as a resumed run does
    book.write(event="resume", at=4)
    book.close()
    assert reader.was_cut()
    assert [entry.get("step") for entry in reader.entries()] == [None, 1, 2, 3, 4, None]
    assert not reader.was_cut()
    assert run.refresh().step == 4
    assert [entry["event"] for entry in run.events] == ["start", "resume"]
    assert len(list(run.steps.points("loss"))) == 4


def test_a_step_that_stands_there_twice_counts_once(tmp_path: Path) -> None:
    write(tmp_path / "journal.jsonl", step(1), step(2), step(1), step(2), step(3))
    run = Collected(tmp_path).refresh()
    assert list(run.steps.points("loss")) == [(1, 8), (2, 4), (3, 8 / 3)]
    assert run.steps.total("seconds") == 1.5


@pytest.mark.parametrize(
    ("best", "scores", "expected"),
    [
        ("auto", [{"AP": 0.2, "loss": 3.0}, {"AP": 0.5, "loss": 4.0}, {"AP": 0.5, "loss": 2.0}], 2),
        ("loss", [{"AP": 0.2, "loss": 3.0}, {"AP": 0.5, "loss": 4.0}, {"AP": 0.5, "loss": 2.0}], 3),
        ("auto", [{"AP": 0.2}, {"AP": None}], 1),
        ("auto", [{"AP": None}, {"AP": None}], 2),
        ("auto", [{"things": 1}], 1),
    ],
)
def test_the_best_evaluation_is_the_one_whose_weights_are_kept(tmp_path, best, scores, expected):
    (tmp_path / "recipe.yaml").write_text(f"evaluate: {{best: {best}}}\n")
    entries = [{"evaluation": number, "scores": one} for number, one in enumerate(scores, 1)]
    write(tmp_path / "journal.jsonl", *entries)
    run = Collected(tmp_path).refresh()
    assert run.best == (expected, scores[expected - 1])


def test_speed_is_that_of_all_steps_but_the_first_of_each_start(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("batch: {images: 16, micro: 4}\n")
    start, resume = ({"event": name, "at": 0} for name in ("start", "resume"))
    first = (step(1, seconds=60, waited=0.9), step(2), step(3, seconds=0.1, waited=1.0))
    write(tmp_path / "journal.jsonl", start, *first, resume, step(4, seconds=60), step(5))
    run = Collected(tmp_path).refresh()
    assert run.images_per_second == pytest.approx(3 * 16 / 1.1)
    assert run.pace.waited == pytest.approx((0.1 + 0.1 + 0.1) / 1.1)


def test_the_rows_the_end_and_the_report_agree_on_the_speed(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("batch: {images: 16, micro: 4}\n")
    entries = [step(number, seconds=0.3 * number, waited=0.1 * number) for number in range(1, 8)]
    write(tmp_path / "journal.jsonl", *entries)
    rows, waiting = Rows(1, 7, 16), Waiting(16)
    for entry in entries:
        rows.step(entry)
        waiting.step(entry["timing"])
    run = Collected(tmp_path).refresh()
    _, row = rows.scores(7, {}, False)
    assert row.split()[-1] == "12"  # 6 × 16 images in 8.1 s
    assert "12 images/s and 51% of the time waiting for images" in waiting.summary()
    top = overview.claim(run, None)
    assert "<b>12</b><span>images/s" in top and "<b>51%</b><span>waiting for images" in top


def test_a_folder_without_a_journal_is_one_sentence(tmp_path: Path) -> None:
    said = r"nothing: the journal cannot be read \(No such file or directory\); expected a run direc"
    (tmp_path / "nothing").mkdir()
    with pytest.raises(UserError, match=said):
        Collected(tmp_path / "nothing").refresh()
    with pytest.raises(UserError, match=r"nothin: no such run$"):
        Collected(tmp_path / "nothin").refresh()
