"""What is decoded ahead is what a training then reads."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rankless.curation.filling import fill
from rankless.data.images import image_file
from rankless.errors import UserError
from rankless.recipe.load import load
from rankless.recipe.schema import Recipe
from rankless.tasks.detect import Detect


def test_nothing_is_decoded_after_it(small_recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("RANKLESS_CACHE", str(tmp_path))
    recipe = load(small_recipe)
    plain = Detect(recipe).training_data()
    done = fill(recipe)
    assert [(one.split, one.images, one.unreadable) for one in done] == [("train", 21, ()), ("val", 11, ())]
    assert all(str(tmp_path) in note for one in done for note in one.notes)
    expected = [plain.item(index, 3).image for index in range(21)]

    def never(*_: object, **__: object) -> None:
        raise AssertionError("an image was decoded again")

    monkeypatch.setattr(image_file, "read_for", never)
    task = Detect(replace(recipe, data=replace(recipe.data, cache="disk")))
    filled = task.training_data()
    assert all(torch.equal(filled.item(index, 3).image, expected[index]) for index in range(21))
    assert len([task.evaluation_data().item(index, 0) for index in range(11)]) == 11
    fill(recipe)


def test_images_of_no_files() -> None:
    with pytest.raises(UserError, match="generated, so they cannot be cached"):
        fill(Recipe())
