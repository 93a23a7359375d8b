"""A request to stop or a fault during an evaluation: no step is lost, and the scores are made up for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from rankless.engine import checkpoint, loop
from rankless.errors import UserError
from rankless.hardware.computing import computes_like
from rankless.recipe.load import load
from rankless.runs import journal
from rankless.runs.directory import RunDirectory
from rankless.structures import DetectionBatch, Detections, Scores
from rankless.tasks.detect import Detect
from rankless.world.notes import SharedStop
from rankless.world.process_group import World
from support.whole_runs import outcome

pytestmark = pytest.mark.processes


class Asked(Detect):
    """Detection whose last rank is asked to stop, or fails, in ``predict`` or in ``score``."""

    def __init__(self, recipe: Any, world: World, stop: loop.StopRequest, when: str) -> None:
        super().__init__(recipe)
        self.world, self.stop, self.when, self.predicted = world, stop, when, 0
        self.is_last = world.rank == world.size - 1

    def predict(self, model: nn.Module, batch: DetectionBatch) -> list[Detections]:
        self.predicted += 1
        if self.when == "fault in predict" and self.is_last:
            raise UserError("an image cannot be read")
        if self.when == "predict" and self.is_last:
            self.stop.signal = 15
        elif self.when == "predict":
            known = SharedStop(self.world, lambda: False)
            while not known():  # the last rank has reported it, so the next batch is one too many
                time.sleep(0.01)
        return super().predict(model, batch)

    def score(self, predictions: Sequence[Detections]) -> Scores:
        if self.when == "fault in score":
            return {"AP": 1 / 0}
        if self.when == "score":
            self.stop.signal = 15
        return super().score(predictions)


class Killed(Exception):  # noqa: N818  # on purpose
    pass


def killed(*_: Any) -> None:
    raise Killed


def run(world: World, words: list[str], folder: str, when: str, resume: bool) -> list[Any]:
    """Train; whether it finished, and how many batches this rank predicted.

    ``when`` it is "save", it ends in its first save like a process that is killed there.
    """
    recipe, stop = load(words[0], words[1:]), loop.StopRequest()
    task = Asked(recipe, world, stop, when)
    with computes_like(recipe), pytest.MonkeyPatch.context() as patch:
        if when == "save":
            patch.setattr(checkpoint, "save", killed)
        try:
            done = loop.train(recipe, RunDirectory(Path(folder)), world, resume=resume, task=task, stop=stop)
        except Killed:
            done = False
        except UserError as error:
            return [type(error).__name__, error.problems[0]]
        world.barrier()
    return [done, task.predicted]


@pytest.fixture(scope="module")
def words(small_recipe: str) -> list[str]:
    return [
        *(small_recipe, "batch.images=8", "batch.micro=2", "epochs=2", "evaluate.every=1 epoch"),
        "checkpoint.every=100",
    ]


@pytest.fixture(scope="module")
def whole(ranks: Any, words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    assert [answer[0] for answer in ranks(1, run, words, str(folder), "", False)] == [True]
    return folder


@pytest.mark.parametrize(("size", "when", "most"), [(1, "predict", 1), (3, "predict", 1), (2, "score", 3)])
def test_it_is_left_within_a_batch_and_owed(
    ranks: Any, words: list[str], whole: Path, tmp_path: Path, size: int, when: str, most: int
) -> None:
    left, reference = RunDirectory(tmp_path), RunDirectory(whole)
    evaluated = next(e["evaluation"] for e in journal.read(reference.journal) if "evaluation" in e)
    for resume in (False, True) if when == "predict" else (False,):  # an owed one is stopped, and owed still
        answers = ranks(size, run, words, str(tmp_path), when, resume)
        assert not any(finished for finished, _ in answers)
        assert all(predicted <= most for _, predicted in answers), answers
        assert left.pointed("last") == evaluated, "no step after it"
    assert ranks(2, run, words, str(tmp_path), "", True)[0][0] is True
    assert outcome(left) == outcome(reference) and left.pointed("best") == reference.pointed("best")


@pytest.mark.parametrize(
    ("when", "kind", "said"),
    [
        ("fault in predict", "UserError", "an image cannot be read"),
        ("fault in score", "TaskError", "ZeroDivisionError"),
    ],
)
def test_a_fault_costs_no_step(
    ranks: Any, words: list[str], whole: Path, tmp_path: Path, when: str, kind: str, said: str
) -> None:
    left, reference = RunDirectory(tmp_path), RunDirectory(whole)
    for name, problem in ranks(2, run, words, str(tmp_path), when, False):  # every rank, and none waits
        assert name == kind and said in problem
    assert left.pointed("last")  # the first epoch's steps
    assert ranks(1, run, words, str(tmp_path), "", True)[0][0] is True
    assert outcome(left) == outcome(reference) and left.pointed("best") == reference.pointed("best")


def test_a_repeated_evaluation_that_was_not_saved_is_in_the_journal_once(
    ranks: Any, words: list[str], whole: Path, tmp_path: Path
) -> None:
    left = RunDirectory(tmp_path)
    for when, resume, finished in (("predict", False, False), ("save", True, False), ("", True, True)):
        assert ranks(1, run, words, str(tmp_path), when, resume)[0][0] is finished
        stands = [entry["evaluation"] for entry in journal.read(left.journal) if "evaluation" in entry]
        assert len(stands) == {"predict": 0, "save": 1, "": 2}[when]
    assert journal.numbers(left.journal) == journal.numbers(RunDirectory(whole).journal)
