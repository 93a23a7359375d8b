"""A run goes on only where going on means something."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankless.errors import UserError
from rankless.launch.resume import check_resume
from rankless.recipe.load import dump, load
from rankless.recipe.schema import Recipe
from rankless.runs.directory import RunDirectory
from rankless.tasks import data_digest


def saved(folder: Path, recipe: Recipe, step: int, **state: Any) -> RunDirectory:
    """A run with a checkpoint."""
    run = RunDirectory(folder)
    run.step_directory(step).mkdir(parents=True)
    run.recipe.write_text(dump(recipe))
    (run.step_directory(step) / "state.json").write_text(json.dumps({"step": step, "best": None, **state}))
    run.point("last", step)
    return run


def refused(run: RunDirectory, recipe: Recipe) -> tuple[str, ...]:
    with pytest.raises(UserError) as caught:
        check_resume(run, recipe)
    return caught.value.problems


def test_another_number_of_epochs(tmp_path, capsys):
    """20 images in batches of 8: five steps in two epochs, three in one; four go on at 5/9 of the cosine."""
    recipe = load("digits", ["epochs=2", "batch={images: 8, micro: 8}", "precision=fp32", "optim.lr=0.1"])
    recipe = replace(recipe, schedule=replace(recipe.schedule, name="cosine", warmup=0, final=0.01))
    run = saved(tmp_path, recipe, 5, images=20)
    assert check_resume(run, recipe).epochs == 2
    (problem,) = refused(run, replace(recipe, epochs=1))
    assert "epochs=1 ends after step 3, but the run has already completed 5 steps (epoch 2.00)" in problem
    check_resume(run, replace(recipe, epochs=4))
    (said,) = capsys.readouterr().err.splitlines()
    after = 0.1 * (0.01 + 0.99 * (1 + math.cos(5 / 9 * math.pi)) / 2)
    assert said.endswith(
        "with epochs=4 instead of 2, the learning rate schedule is stretched: "
        f"the rate rises from 1.00e-03 in step 5 to {after:.2e} in the next one"
    )


def test_another_score_of_the_best_is_refused_in_one_sentence(tmp_path):
    """The best score so far is one of the old kind, and would be compared with scores of the new one."""
    recipe = Recipe(epochs=4, precision="fp32")
    other = replace(recipe, evaluate=replace(recipe.evaluate, best="loss"))
    first, key, remedy = refused(saved(tmp_path, recipe, 5, images=20), other)
    assert first.endswith("cannot continue with another recipe; 1 key differs:")
    assert key == "evaluate.best: auto in the run, loss now"
    start = "restore the run's values, or start a new run; a resumed run can change only epochs, "
    assert remedy.startswith(start) and ", workers, " in remedy and ", data.cache, " in remedy


def test_keys_that_only_another_network_has_are_left_out(tmp_path):
    problems = refused(saved(tmp_path, load("yolov4-tiny"), 5, images=20), load("resnet18"))
    assert "model.name: yolov4-tiny in the run, resnet18 now" in problems and "None" not in str(problems)


def test_data_that_was_moved_goes_on_and_other_data_is_refused(tmp_path, small_recipe):
    moved = tmp_path / "moved"
    shutil.copytree(Path(small_recipe).parent, moved)
    (moved / "data.yaml").write_text("train: images/train\nval: images/val\nnames: [red, green]\n")
    recipe = load(small_recipe)
    run = saved(tmp_path / "run", recipe, 3, images=21, data=data_digest(recipe))
    recipe = replace(recipe, data=replace(recipe.data, root=str(moved / "data.yaml")))
    assert check_resume(run, recipe) == recipe
    first, *keys, _ = refused(run, replace(recipe, seed=7))
    assert "2 keys differ" in first and [key.partition(":")[0] for key in keys] == ["data.root", "seed"]
    next((moved / "labels" / "train").iterdir()).write_text("0 0.5 0.5 0.25 0.25\n")
    (problem,) = refused(run, recipe)
    assert problem.startswith(f"{run.path} cannot continue with other data: data.root is ")
    assert "the annotations differ; " in problem
    (run.step_directory(3) / "state.json").write_text('{"step": 3, "images": 21, "best": null}')
    assert "it is unknown whether the data is the same" in refused(run, recipe)[0]
