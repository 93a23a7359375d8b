"""``rankless verify``: green where the promise holds, red where a task breaks it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rankless.engine.loop import Trace, train
from rankless.engine.setup import DryRun
from rankless.errors import UserError
from rankless.hardware.computing import computes_like
from rankless.launch import local
from rankless.launch.verify import _first_difference, verify
from rankless.recipe.load import from_json, load, to_json
from rankless.recipe.schema import Recipe
from rankless.runs.directory import RunDirectory
from rankless.world.process_group import World

HERE = Path(__file__).parent
SMALL = ["batch.images=8", "batch.micro=2", "schedule.warmup=0"]


def dry_run_steps(world: World, recipe: str, run: str, steps: int, traces: str) -> None:
    """What a rank that ``verify`` started does."""
    os.environ["RANK"] = str(world.rank)
    found = from_json(recipe)
    with computes_like(found):
        train(
            found,
            RunDirectory(Path(run)),
            world,
            resume=False,
            dry_run=DryRun(steps),
            observe=Trace(Path(traces) / f"trace-{world.rank}.jsonl"),
        )
        world.barrier()


@pytest.fixture
def on_ranks(ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """``verify`` in this process, its ranks those of the tests: much quicker than starting new ones."""

    def launched(recipe: Recipe, run: Path, *, devices: int, dry_run_steps: int, traces: Path) -> int:
        ranks(devices, on_rank, to_json(recipe), str(run), dry_run_steps, str(traces))
        return 0

    on_rank = dry_run_steps
    monkeypatch.setattr(local, "train", launched)


def recipe(task: str, file: str) -> Recipe:
    return load(file, [*SMALL, f"task=support.tasks_that_cheat:{task}"])


@pytest.mark.processes
@pytest.mark.usefixtures("on_ranks")
@pytest.mark.parametrize(
    ("task", "difference"),
    [  # an honest one and a loss by rank: by the command, below
        ("ScoreByRank", "the scores after step 1 (compared with the first world size)"),
        ("BufferByRank", "step 1, model/images_seen and 1 more (compared with the first world size)"),
    ],
)
def test_it_tells_where_worlds_part(small_recipe: str, task: str, difference: str) -> None:
    said: list[str] = []
    report = verify(recipe(task, small_recipe), [1, 2], 2, said.append)
    one, two = report.worlds
    assert (one.world, two.world, one.difference) == (1, 2, None)
    assert not report.ok and two.difference is not None and two.difference.startswith(difference)
    assert len(one.digest) == 64 and one.images_per_second > 0
    assert said[-1] == f"DIFFERENT: world size 2: {two.difference}"
    assert (one.digest == two.digest) == (task == "ScoreByRank")


@pytest.mark.processes
@pytest.mark.usefixtures("on_ranks")
def test_networks_that_branch_are_the_same_on_any_number_of_ranks() -> None:
    words = ["task=support.networks_that_branch:Task", "workers=0", "evaluate.every=0"]
    branching = load("digits", [*SMALL, *words, "batch_norm=sync", "precision=bf16"])
    report = verify(branching, [1, 2, 3], 2, print)
    assert report.ok and report.worlds[0].images_per_second > 0
    assert len({world.digest for world in report.worlds}) == 1


@pytest.fixture
def command(forked: Any) -> Any:
    """The real thing, from the folder that holds the task."""

    def run(task: str, file: str, *more: str) -> Any:
        words = [file, *SMALL, f"task=support.tasks_that_cheat:{task}", "--steps", "2", *more]
        return forked("-m", "rankless", "verify", *words, cwd=HERE)

    return run


@pytest.mark.processes
def test_green_exits_with_0(small_recipe: str, command: Any) -> None:
    done = command("Honest", small_recipe, "--worlds", "2,3", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["ok"] is True and report["steps"] == 2
    assert [world["world"] for world in report["worlds"]] == [2, 3]
    assert len({world["digest"] for world in report["worlds"]}) == 1
    assert [world["difference"] for world in report["worlds"]] == [None, None]
    assert "the same bits in every tensor after each step (2)" in done.stderr


@pytest.mark.processes
def test_red_exits_with_1_and_names_step_and_tensor(small_recipe: str, command: Any) -> None:
    done = command("LossByRank", small_recipe)  # --worlds 1,2
    assert done.returncode == 1, done.stderr
    assert "DIFFERENT: world size 2: step 1, model/" in done.stdout
    assert "Traceback" not in done.stderr


def test_what_cannot_be_compared_is_reported() -> None:
    with pytest.raises(UserError, match="expected at least two numbers of ranks"):
        verify(Recipe(), [2], 3, print)
    with pytest.raises(UserError, match=r"--worlds has 9, 12, but a step has only 8 micro-batches"):
        verify(Recipe(), [1, 9, 12], 3, print)


def line(step: int, scores: Any = None, **tensors: str) -> dict[str, Any]:
    return {"step": step, "tensors": tensors, "scores": scores}


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ([line(1, a="x", b="y"), line(2, a="x", b="y")], None),
        ([line(1, a="x", b="y"), line(2, a="z", b="y")], "step 2, a (who)"),
        ([line(1, a="z", b="z"), line(2, a="z", b="y")], "step 1, a and 1 more (who)"),
        ([line(1, a="x"), line(2, a="x", b="y")], "step 1, b (who)"),
        ([line(1, a="x", b="y", c="w"), line(2, a="x", b="y")], "step 1, c (who)"),
        ([line(1, {"AP": 1}, a="x", b="y"), line(2, a="x", b="y")], "the scores after step 1 (who)"),
        ([line(1, a="x", b="y")], "1 step instead of 2 (who)"),
    ],
)
def test_the_first_difference(other: list[dict[str, Any]], expected: str | None) -> None:
    one = [line(1, a="x", b="y"), line(2, a="x", b="y")]
    assert _first_difference(one, other, "who") == expected
