"""The promise: whole runs give the same bits on any number of ranks, undisturbed or stopped and resumed."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankless.runs import journal
from rankless.runs.directory import RunDirectory
from support import whole_runs
from support.whole_runs import work

pytestmark = pytest.mark.processes

# 21 images and 16 or 12 a step: epochs end inside steps, and no number divides another.
EIGHT = {"batch.images": "16", "batch.micro": "2", "epochs": "6", "evaluate.every": "2 epochs"}  # 8 steps
SIX = {"batch.images": "12", "batch.micro": "2", "epochs": "3", "evaluate.every": "2 epochs"}  # 6 steps
FOUR = {**SIX, "epochs": "2"}
STEPS = {"fp32": 8, "bf16": 6, "sync": 4, "frozen": 4}

# The recipe, and (ranks, loader processes of each) to run it with; the first is the one to agree with.
RUNS: dict[str, tuple[dict[str, str], list[tuple[int, int]]]] = {
    "fp32": (
        {**EIGHT, "precision": "fp32"},
        [(1, 0), (2, 2)],  # and on four below, which one goes on from
    ),
    "bf16": (
        {**SIX, "precision": "bf16", "optim.name": "adamw", "optim.lr": "0.002", "optim.clip": "5"},
        [(1, 0)],
    ),
    "sync": (
        {**FOUR, "precision": "bf16", "batch_norm": "sync", "optim.clip": "2", "optim.nesterov": "true"},
        [(1, 0), (3, 0)],
    ),
    "frozen": (
        {**FOUR, "precision": "fp32", "batch_norm": "frozen", "optim.name": "muon", "optim.lr": "0.002"},
        [(1, 0), (3, 0)],
    ),
}


def recipe_words(name: str, workers: int, recipe: str) -> list[str]:
    settings = {**RUNS[name][0], "workers": str(workers), "checkpoint.every": "3"}
    return [recipe, *(f"{key}={value}" for key, value in settings.items())]


def outcome(name: str, folder: Path) -> tuple[list[str], list[dict[str, Any]]]:
    last, digests, numbers = whole_runs.outcome(RunDirectory(folder))
    assert last == STEPS[name]
    return digests, numbers


@pytest.fixture(scope="module")
def first(ranks: Any, small_recipe: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    @functools.cache
    def of(name: str) -> tuple[list[str], list[dict[str, Any]]]:
        folder = tmp_path_factory.mktemp(name)
        size, workers = RUNS[name][1][0]
        answers = ranks(size, work, recipe_words(name, workers, small_recipe), str(folder))
        assert all(answer == answers[0] and answer[0] == "True" for answer in answers)
        return outcome(name, folder)

    return of


@pytest.mark.parametrize(
    ("name", "size", "workers"),
    [
        pytest.param(name, size, workers, id=f"{name}-{size}-ranks-{workers}-workers")
        for name, (_, ways) in RUNS.items()
        for size, workers in ways[1:]
    ],
)
def test_the_weights_do_not_know_the_number_of_ranks(
    ranks: Any, first: Any, small_recipe: str, tmp_path: Path, name: str, size: int, workers: int
) -> None:
    digests, numbers = first(name)
    answers = ranks(size, work, recipe_words(name, workers, small_recipe), str(tmp_path))
    assert all(answer == answers[0] and answer[0] == "True" for answer in answers)
    found, lines = outcome(name, tmp_path)
    assert lines == numbers
    assert found == digests


def test_the_journal_holds_every_step_and_evaluation(first: Any) -> None:
    _, numbers = first("fp32")
    assert [entry["step"] for entry in numbers if "step" in entry] == list(range(1, 9))
    # 2 and 4 epochs of 21 images end in steps 3 and 6 of 8.
    assert [entry["evaluation"] for entry in numbers if "evaluation" in entry] == [3, 6, 8]
    losses = [entry["loss"] for entry in numbers if "step" in entry]
    assert len(set(losses)) == 8 and np.mean(losses[-3:]) < np.mean(losses[:3])
    assert all(entry["count"] == 16 for entry in numbers if "step" in entry)


@pytest.mark.parametrize(("name", "sizes"), [("fp32", (4, 1)), ("bf16", (1, 3))], ids=["fp32", "bf16"])
def test_a_run_goes_on_with_other_ranks(
    ranks: Any, first: Any, small_recipe: str, tmp_path: Path, name: str, sizes: tuple[int, int]
) -> None:
    digests, numbers = first(name)
    words = recipe_words(name, 0, small_recipe)
    assert ranks(sizes[0], work, words, str(tmp_path), False, 3) == [["False"]] * sizes[0]
    run = RunDirectory(tmp_path)
    assert run.pointed("last") == 4  # asked after 3, known to all a step later
    answers = ranks(sizes[1], work, words, str(tmp_path), True, 0)
    assert all(answer[0] == "True" for answer in answers)
    found, lines = outcome(name, tmp_path)
    assert lines == numbers
    assert found == digests


def test_another_seed_gives_other_weights(ranks: Any, first: Any, small_recipe: str, tmp_path: Path) -> None:
    """Else equal digests would say nothing."""
    digests, _ = first("frozen")
    ranks(1, work, [*recipe_words("frozen", 0, small_recipe), "seed=1"], str(tmp_path))
    found, _ = outcome("frozen", tmp_path)
    assert all(one != other for one, other in zip(found, digests, strict=True))


def test_fast_agrees_with_exact_but_for_rounding(
    ranks: Any, first: Any, small_recipe: str, tmp_path: Path
) -> None:
    _, numbers = first("fp32")
    words = [*recipe_words("fp32", 0, small_recipe), "reduce=fast"]
    assert ranks(3, work, words, str(tmp_path), False, 4) == [["False"]] * 3  # stopped
    lines = journal.numbers(RunDirectory(tmp_path).journal)
    # A wrong sum shows in the second step. Rounding stays under 1e-6 for four steps and grows some hundred
    # times with each that follows.
    for step in (1, 2, 3, 4):
        assert number_of(lines, step) == pytest.approx(number_of(numbers, step), rel=1e-5)
    assert number_of(lines, 1) == number_of(numbers, 1)


def number_of(numbers: list[dict[str, Any]], step: int) -> float:
    return next(float(entry["loss"]) for entry in numbers if entry.get("step") == step)


def test_the_command_line_gives_the_same(first: Any, small_recipe: str, tmp_path: Path, forked: Any) -> None:
    """Launcher, elastic agent and real ranks, beside the ranks of the tests."""
    digests, numbers = first("frozen")
    command = ["-m", "rankless", "train", *recipe_words("frozen", 0, small_recipe)]
    done = forked(*command, "--run", str(tmp_path / "run"), "--devices", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found, lines = outcome("frozen", tmp_path / "run")
    assert lines == numbers
    assert found == digests
    assert f"next: rankless predict {tmp_path / 'run'}" in done.stdout
