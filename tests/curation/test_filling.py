"""What is decoded ahead is what a training then reads."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rankless.curation.filling import fill
from rankless.errors import UserError
from rankless.recipe.load import load
from rankless.recipe.schema import Recipe
from rankless.tasks.detect import Detect


def test_nothing_is_decoded_after_it(small_recipe, tmp_path):
    folder = Path(shutil.copytree(Path(small_recipe).parent, tmp_path / "shapes"))
    (folder / "data.yaml").write_text("train: images/train\nval: images/val\nnames: [red, green]\n")
    recipe = load(small_recipe, [f"data.root={folder}"])
    plain = Detect(recipe).training_data()
    done = fill(recipe)
    assert [(one.split, one.images, one.unreadable) for one in done] == [("train", 21, ()), ("val", 11, ())]
    assert all(str(tmp_path) in note for one in done for note in one.notes)
    expected = [plain.item(index, 3).image for index in range(21)]
    task = Detect(replace(recipe, data=replace(recipe.data, cache="disk")))
    filled, held = task.training_data(), task.evaluation_data()
    for image in folder.rglob("*.png"):  # whoever decoded one again would get zeros or an error
        state = image.stat()
        image.write_bytes(bytes(state.st_size))
        os.utime(image, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert all(torch.equal(filled.item(index, 3).image, expected[index]) for index in range(21))
    assert not any(held.item(index, 0).unreadable for index in range(11))


def test_images_of_no_files() -> None:
    with pytest.raises(UserError, match="generated, so they cannot be cached"):
        fill(Recipe())
