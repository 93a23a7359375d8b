"""A run goes on only where going on means something."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rankless.errors import UserError
from rankless.launch.resume import check_resume
from rankless.recipe.load import dump, load
from rankless.recipe.schema import Batch, Recipe
from rankless.runs.directory import RunDirectory
from rankless.tasks import data_digest


def test_an_end_before_the_step_that_is_reached(tmp_path: Path) -> None:
    """20 images in batches of 8: two epochs are five steps, one epoch is three."""
    recipe = Recipe(epochs=4, batch=Batch(images=8, micro=8), precision="fp32")
    run = RunDirectory(tmp_path)
    run.recipe.write_text(dump(recipe))
    run.step_directory(5).mkdir(parents=True)
    (run.step_directory(5) / "state.json").write_text(json.dumps({"step": 5, "images": 20, "best": None}))
    run.point("last", 5)
    assert check_resume(run, replace(recipe, epochs=2)).epochs == 2
    with pytest.raises(
        UserError, match=r"epochs is 1, .* step 3, but the run has finished 5 steps \(epoch 2\.00\)"
    ):
        check_resume(run, replace(recipe, epochs=1))


def test_more_epochs_say_that_the_learning_rate_rises_again(tmp_path: Path, capsys) -> None:
    """20 images in batches of 8 are 5 steps in 2 epochs; the cosine over 10 goes on at 5/9 of its way."""
    recipe = load("digits", ["epochs=2", "batch={images: 8, micro: 8}", "precision=fp32", "optim.lr=0.1"])
    recipe = replace(recipe, schedule=replace(recipe.schedule, name="cosine", warmup=0, final=0.01))
    run = RunDirectory(tmp_path)
    run.recipe.write_text(dump(recipe))
    run.step_directory(5).mkdir(parents=True)
    (run.step_directory(5) / "state.json").write_text(json.dumps({"step": 5, "images": 20, "best": None}))
    run.point("last", 5)
    check_resume(run, recipe)
    check_resume(run, replace(recipe, epochs=4))
    (said,) = capsys.readouterr().err.splitlines()
    after = 0.1 * (0.01 + 0.99 * (1 + math.cos(5 / 9 * math.pi)) / 2)
    assert said.endswith(
        "with epochs=4 instead of 2, the learning rate schedule is stretched: "
        f"the rate rises from 1.00e-03 in step 5 to {after:.2e} in the next"
    )


def test_another_score_of_the_best_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """The best score so far is one of the old kind, and would be compared with scores of the new one."""
    recipe = Recipe(epochs=4, precision="fp32")
    run = RunDirectory(tmp_path)
    run.recipe.write_text(dump(recipe))
    other = replace(recipe, evaluate=replace(recipe.evaluate, best="loss"))
    with pytest.raises(UserError) as caught:
        check_resume(run, other)
    first, key, remedy = caught.value.problems
    assert first.endswith("cannot continue with another recipe; 1 key differs:")
    assert key == "evaluate.best: auto in the run, loss now"
    assert remedy.startswith(
        "restore the run's values, or start a new run; a resumed run may change only epochs, "
    )
    assert ", workers, " in remedy and ", data.cache, " in remedy


def test_keys_that_only_another_network_has_are_left_out(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.recipe.write_text(dump(load("yolov4-tiny")))
    with pytest.raises(UserError) as caught:
        check_resume(run, load("resnet18"))
    assert "model.name: yolov4-tiny in the run, resnet18 now" in caught.value.problems
    assert "None" not in str(caught.value)


@pytest.fixture
def stopped(tmp_path: Path, small_recipe: str) -> tuple[RunDirectory, Recipe, Path]:
    """A run after step 3, its recipe, and a copy of its data in another place."""
    moved = tmp_path / "moved"
    shutil.copytree(Path(small_recipe).parent, moved)
    (moved / "data.yaml").write_text("train: images/train\nval: images/val\nnames: [red, green]\n")
    recipe, run = load(small_recipe), RunDirectory(tmp_path / "run")
    run.step_directory(3).mkdir(parents=True)
    run.recipe.write_text(dump(recipe))
    state = {"step": 3, "images": 21, "best": None, "data": data_digest(recipe)}
    (run.step_directory(3) / "state.json").write_text(json.dumps(state))
    run.point("last", 3)
    return run, replace(recipe, data=replace(recipe.data, root=str(moved / "data.yaml"))), moved


def test_data_that_was_moved_goes_on(stopped: tuple[RunDirectory, Recipe, Path]) -> None:
    run, recipe, _ = stopped
    assert check_resume(run, recipe) == recipe


def test_other_data_in_another_place_is_refused(stopped: tuple[RunDirectory, Recipe, Path]) -> None:
    run, recipe, moved = stopped
    label = next((moved / "labels" / "train").iterdir())
    label.write_text("0 0.5 0.5 0.25 0.25\n")
    with pytest.raises(UserError) as caught:
        check_resume(run, recipe)
    assert str(caught.value).startswith(f"{run.path} cannot continue with other data: data.root is ")
    assert "the annotations there differ from those of the run" in str(caught.value)


def test_data_that_cannot_be_reported_apart_is_refused(stopped: tuple[RunDirectory, Recipe, Path]) -> None:
    run, recipe, _ = stopped
    (run.step_directory(3) / "state.json").write_text('{"step": 3, "images": 21, "best": null}')
    with pytest.raises(UserError, match="it cannot be determined whether that is the same data"):
        check_resume(run, recipe)


def test_another_key_beside_the_place_is_refused_with_both(
    stopped: tuple[RunDirectory, Recipe, Path],
) -> None:
    run, recipe, _ = stopped
    with pytest.raises(UserError, match=r"2 keys differ(.|\n)*data\.root(.|\n)*seed"):
        check_resume(run, replace(recipe, seed=7))
