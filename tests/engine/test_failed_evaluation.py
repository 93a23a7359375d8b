"""A fault in an evaluation costs no training: the steps are kept, and scored when the run goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from rankless.engine import loop
from rankless.engine.settings import computes_like
from rankless.errors import TaskError, UserError
from rankless.models.checkpoints.weights import digest_file
from rankless.recipe.load import load
from rankless.runs import journal
from rankless.runs.directory import RunDirectory
from rankless.structures import DetectionBatch, Detections, Scores
from rankless.tasks.detect import Detect
from rankless.world.process_group import World

pytestmark = pytest.mark.processes


class Fails(Detect):
    """Detection that fails where a file says so: ``predict`` on rank 1, or ``score``."""

    def __init__(self, recipe: Any, how: str, rank: int) -> None:
        super().__init__(recipe)
        self.how, self.rank = how, rank

    def predict(self, model: nn.Module, batch: DetectionBatch) -> list[Detections]:
        if self.how == "predict" and self.rank == 1:
            raise UserError("an image cannot be read")
        return super().predict(model, batch)

    def score(self, predictions: Sequence[Detections]) -> Scores:
        if self.how == "score":
            return {"AP": 1 / 0}
        return super().score(predictions)


def run(world: World, words: list[str], folder: str, how: str, resume: bool) -> list[str]:
    """Train; the fault on this rank, or how it ended."""
    recipe = load(words[0], words[1:])
    with computes_like(recipe):
        try:
            task = Fails(recipe, how, world.rank)
            done = loop.train(recipe, RunDirectory(Path(folder)), world, resume=resume, task=task)
        except UserError as error:
            return [type(error).__name__, error.problems[0].splitlines()[0]]
        world.barrier()
    return [str(done)]


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [("predict", UserError, "an image cannot be read"), ("score", TaskError, "ZeroDivisionError")],
)
def test_steps_are_kept_and_scored_later(
    ranks: Any, small_recipe: str, tmp_path: Path, how: str, kind: type, said: str
) -> None:
    words = [small_recipe, "batch.images=8", "batch.micro=4", "epochs=2", "evaluate.every=1 epoch"]
    words.append("checkpoint.every=100")
    fine = ranks(2, run, words, str(tmp_path / "fine"), "", False)
    assert fine == [["True"], ["True"]]
    broken = ranks(2, run, words, str(tmp_path / "broken"), how, False)
    assert [answer[0] for answer in broken] == [kind.__name__] * 2  # every rank, and none waits
    assert all(said in answer[1] for answer in broken)
    directory = RunDirectory(tmp_path / "broken")
    kept = directory.pointed("last")
    assert kept  # the first epoch's steps
    (alone,) = ranks(1, run, words, str(tmp_path / "broken"), "", True)
    assert alone == ["True"]
    whole = RunDirectory(tmp_path / "fine")
    assert journal.numbers(directory.journal) == journal.numbers(whole.journal)
    for name in ("model", "ema", "training"):
        one, other = (
            place.step_directory(place.pointed("last") or 0) / f"{name}.safetensors"
            for place in (directory, whole)
        )
        assert digest_file(one) == digest_file(other)
    assert directory.pointed("best") == whole.pointed("best")
