"""A run goes on only where going on means something."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rankless.errors import UserError
from rankless.launch.resume import check_resume
from rankless.recipe import Batch, Recipe
from rankless.recipe_file import dump
from rankless.run_directory import RunDirectory


def test_an_end_before_the_step_that_is_reached(tmp_path: Path) -> None:
    """20 pictures in batches of 8: two epochs are five steps, one epoch is three."""
    recipe = Recipe(epochs=4, batch=Batch(images=8, micro=8), precision="fp32")
    run = RunDirectory(tmp_path)
    run.recipe.write_text(dump(recipe))
    run.step_directory(5).mkdir(parents=True)
    (run.step_directory(5) / "state.json").write_text(json.dumps({"pictures": 20}))
    run.point("last", 5)
    assert check_resume(run, replace(recipe, epochs=2)).epochs == 2
    with pytest.raises(UserError, match=r"has done 5 steps, which is epoch 2\.00; 'epochs' is 1, .* step 3"):
        check_resume(run, replace(recipe, epochs=1))
