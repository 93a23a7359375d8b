"""A search finds better values, goes on where it stopped, and every trial is a run."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import subprocess
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from rankless.cli import main
from rankless.errors import STOPPED, UserError
from rankless.launch import local
from rankless.launch.tuning import space as spaces
from rankless.launch.tuning.record import Record, opened
from rankless.launch.tuning.space import Range
from rankless.launch.tuning.tune import TrialOutput, begin, run_trials
from rankless.recipe import load
from rankless.recipe.schema import Recipe
from rankless.runs.directory import RunDirectory

pytest.importorskip("optuna")
SEARCH = ("optim.lr=0.0001..1", "optim.weight_decay=0..0.01", "data.augment=none|light|heavy")


def trainer(stop_at: int = 0, fail_at: int = 0) -> Callable[[Recipe, Path, bool], int]:
    """Leaves a run whose AP is best at a learning rate of 0.03 without mosaics."""

    def train(recipe: Recipe, run: Path, resume: bool) -> int:
        number = int(run.name.removeprefix("trial-"))
        if number == stop_at and not resume:
            run.mkdir(parents=True)
            (run / "journal.jsonl").write_text("")
            return STOPPED
        if number == fail_at:
            raise UserError("the loss is no number at step 3")
        ap = math.exp(-abs(math.log10(recipe.optim.lr / 0.03))) - 0.5 * (recipe.data.augment.mosaic > 0)
        folder = RunDirectory(run).step_directory(1)
        folder.mkdir(parents=True)
        state = {"step": 1, "images": 1, "best": {"step": 1, "score": ap}}
        (folder / "state.json").write_text(json.dumps(state))
        (run / "journal.jsonl").write_text('{"step": 1, "seconds": 2}\n')
        return 0

    return train


def searched(folder: Path, trials: int, **options: Any) -> Record:
    recipe = load.load("digits", ["optim.lr=0.2"])
    record = begin(folder, recipe, "digits", ["optim.lr=0.2"], SEARCH)
    run_trials(record, trials, train=trainer(**options))
    return record


def test_it_finds_what_is_better(tmp_path: Path) -> None:
    record = searched(tmp_path / "search", 16)
    first, best = record.trials[0], record.ranked()[0]
    assert first.changes == [] and len(record.trials) == 16
    assert best.score is not None and first.score is not None and best.score > first.score + 0.3
    assert best.params["data.augment"] != "heavy" and 0.01 < best.params["optim.lr"] < 0.1
    with (tmp_path / "search" / "trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["AP"]) for row in rows] == [trial.score for trial in record.trials]
    assert rows[1]["data.augment"] == record.trials[1].params["data.augment"]
    assert record.table()[1].split()[0] == str(best.number)


def test_a_search_that_stopped_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    whole = searched(tmp_path / "whole", 8)
    stopped = searched(tmp_path / "stopped", 8, stop_at=6)
    assert len(stopped.trials) == 5
    again = opened(tmp_path / "stopped")
    assert again.search == stopped.search
    assert run_trials(again, 8, train=trainer()) == 0
    assert [trial.params for trial in again.trials] == [trial.params for trial in whole.trials]
    assert [trial.score for trial in again.trials] == [trial.score for trial in whole.trials]
    assert opened(tmp_path / "stopped").trials == again.trials


def test_a_failed_trial_is_recorded_and_the_recipe_itself_must_not_fail(tmp_path: Path) -> None:
    record = searched(tmp_path / "search", 4, fail_at=3)
    assert [trial.state for trial in record.trials] == ["finished", "finished", "failed", "finished"]
    assert record.table()[-1].split(maxsplit=2)[2] == "the loss is no number at step 3"
    with pytest.raises(UserError, match="no number"):
        searched(tmp_path / "other", 4, fail_at=1)


def test_values_that_do_not_go_together_are_a_trial_that_fails(tmp_path: Path) -> None:
    record = begin(tmp_path / "search", load.load("digits"), "digits", [], ["batch.images=6..12"])
    assert run_trials(record, 8, train=trainer()) == 0
    failed = [trial for trial in record.trials if trial.state == "failed"]
    assert failed and all("does not divide batch.images" in trial.problem for trial in failed)


@pytest.mark.parametrize("keeps_all", [False, True])
def test_the_best_weights_stay_and_all_if_asked(keeps_all: bool, tmp_path: Path) -> None:
    recipe = load.load("digits", ["optim.lr=0.2"])
    record = begin(tmp_path / "search", recipe, "digits", [], SEARCH, keeps_all=keeps_all)
    run_trials(record, 6, train=trainer(fail_at=4))
    kept = [trial.number for trial in record.trials if RunDirectory(record.run(trial.number)).steps()]
    finished = [trial.number for trial in record.trials if trial.state == "finished"]
    assert kept == (finished if keeps_all else [record.ranked()[0].number])
    assert opened(tmp_path / "search").search.keeps_all == keeps_all


@pytest.mark.processes
def test_a_trial_is_a_row_and_what_it_prints_is_in_its_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    record = begin(tmp_path / "search", load.load("digits", ["optim.lr=0.2"]), "digits", [], SEARCH)
    train = trainer(fail_at=3)

    def loud(recipe: Recipe, run: Path, resume: bool) -> int:
        subprocess.run(["echo", f"of {run.name}"], check=True)  # as ranks inherit it
        os.write(2, b"an error\n")
        return train(recipe, run, resume)

    with TrialOutput(record) as output:
        run_trials(record, 3, train=loud, output=output)
        os.write(1, b"as it ended\n")
    rows = capfd.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == ["trial", "1", "2", "3"]
    assert rows[1].endswith("*")
    assert rows[3].endswith("failed  the loss is no number at step 3")
    logs = [(record.run(number) / "logs" / "output.log").read_text() for number in (1, 2, 3)]
    assert logs[:2] == ["of trial-001\nan error\n", "of trial-002\nan error\n"]
    assert logs[2] == "of trial-003\nan error\nas it ended\n"
    assert not (record.folder / ".output").exists()


def test_the_usual_space_holds_the_recipe_and_is_valid(small_recipe: str) -> None:
    for name in ("digits", "yolov4-tiny", "resnet18", "digits-classify", small_recipe):
        recipe = load.load(name)
        space = spaces.usual(recipe)
        assert {"optim.lr", "optim.weight_decay"} < set(space)
        assert ("augmentation" in space) == (recipe.data.augment.value > 0)
        assert set(spaces.of_recipe(recipe, space)) == set(space)
        for end in ("low", "high"):
            params = {key: getattr(one, end) for key, one in space.items()}
            changed = load.changed(recipe, spaces.overrides(params, recipe))
            assert changed.optim.lr == pytest.approx(params["optim.lr"], rel=1e-3)
    still = load.changed(load.load("yolov3"), spaces.overrides({"augmentation": 0.0}, load.load("yolov3")))
    assert still.data.augment.hue == still.data.augment.scale == 0


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ("optim.lr", "--search is 'optim.lr': expected a range or choices, such as optim.lr=0.001..0.1"),
        ("optim.lr=1..0.1", "--search is 'optim.lr=1..0.1'"),
        ("optim.lr=0..nan", "--search is 'optim.lr=0..nan'"),
        ("optim.lr=-1..1", "--search: "),
        ("optim.speed=1..2", "--search: "),
        ("data.augment=none|loud", "--search: "),
    ],
)
def test_ranges_that_cannot_be_are_errors(
    search: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "digits", "--search", search, "--out", str(tmp_path / "search")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "search").exists()


def test_ranges_are_read() -> None:
    assert spaces.parsed(["a=1e-4..0.1", "b=1..8", "c=x|y", "d=0..1.5"]) == {
        "a": Range(1e-4, 0.1),
        "b": Range(1, 8, whole=True),
        "c": Range(choices=("x", "y")),
        "d": Range(0, 1.5),
    }
    assert Range(1e-4, 0.1).is_logarithmic and not Range(0, 1.5).is_logarithmic


@pytest.mark.slow
def test_trials_are_runs(small_recipe: str, tmp_path: Path) -> None:
    recipe = load.load(small_recipe, ["epochs=1", "batch.images=8", "batch.micro=8"])
    record = begin(tmp_path / "search", recipe, "small.yaml", [], ["optim.lr=0.001..0.1"])
    train = lambda one, run, resume: local.train(one, run, resume=resume, inline=True)  # noqa: E731
    assert run_trials(record, 2, train=train) == 0
    for trial in record.trials:
        assert trial.state == "finished" and trial.score is not None and trial.seconds > 0
        lr = load.load(record.run(trial.number) / "recipe.yaml").optim.lr
        assert lr == pytest.approx(trial.params["optim.lr"], rel=1e-3)
    with pytest.raises(UserError, match="is not empty; use a new folder, or continue"):
        begin(tmp_path / "search", recipe, "small.yaml", [], [])
    with pytest.raises(UserError, match=r"contains no search \(no search\.json\)"):
        opened(tmp_path)


def test_the_page_has_the_numbers_of_the_record(tmp_path: Path) -> None:
    record = searched(tmp_path / "search", 9, fail_at=4)
    html = (tmp_path / "search" / "report.html").read_text()
    recorded = json.loads((tmp_path / "search" / "search.json").read_text())
    seen = set()
    for value, where in re.findall(r'<data value="([^"]+)" data-at="([^"]+)"', html):
        path = tuple(json.loads(unescape(where)))
        expected = recorded
        for step in path:
            expected = expected[step]
        assert float(value) == expected
        seen.add(path)
    finished = [at for at, one in enumerate(recorded["trials"]) if one["state"] == "finished"]
    assert len(finished) == 8 and {("trials", at, "score") for at in finished} <= seen
    assert {("trials", at, "params", "optim.lr") for at in finished} <= seen
    drawn = {
        title: json.loads(content)["lines"]
        for title, content in re.findall(
            r'aria-label="([^"]+)">.*?<script type="application/json">(.*?)</script>', html
        )
    }
    scores = {one["number"]: one["score"] for one in recorded["trials"] if one["score"] is not None}
    assert dict(drawn["AP over trials"][0]["points"]) == pytest.approx(scores, rel=1e-5)
    assert drawn["AP over trials"][1]["points"][-1][1] == pytest.approx(max(scores.values()), rel=1e-5)
    (rates,) = drawn["AP against optim.lr"]
    by_rate = sorted((one["params"]["optim.lr"], one["score"]) for one in recorded["trials"] if one["score"])
    assert [10**x for x, _ in rates["points"]] == pytest.approx([rate for rate, _ in by_rate], rel=1e-4)
    assert [y for _, y in rates["points"]] == pytest.approx([score for _, score in by_rate], rel=1e-5)
    assert record.command(record.ranked()[0]) in unescape(html)
    assert "the loss is no number at step 3" in html and not re.search(r'(src|href)="(?!data:|trial-)', html)
