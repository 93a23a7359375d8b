"""The values of a fine-tuning, by properties of the number of images that they follow."""

from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st

from rankless.curation.fine_tuning import EPOCHS, knows, overrides
from rankless.engine.schedule import StepSchedule
from rankless.models.weights_files.weights import save
from rankless.recipe import load


@given(st.integers(10, 2_000_000), st.booleans())
def test_the_length_suits_the_number_of_images(images: int, known: bool) -> None:
    recipe = load.default(overrides(images, known=known))
    larger = load.default(overrides(4 * images, known=known))
    # Of four times the images, each is seen less often, but all together more often.
    assert EPOCHS <= larger.epochs <= recipe.epochs
    schedule = StepSchedule(recipe, images)
    assert recipe.epochs * images < larger.epochs * 4 * images
    assert recipe.ema.decay <= larger.ema.decay
    assert recipe.batch.images <= larger.batch.images
    # Batches are not larger than the data, and the run has enough steps for warm-up and average.
    assert schedule.warnings() == []
    assert schedule.steps >= 0.8 / (1 - recipe.ema.decay)


@given(st.integers(10, 2_000_000))
def test_known_classes_are_never_taught_faster_than_new_ones(images: int) -> None:
    known, new = (load.default(overrides(images, known=known)).optim.lr for known in (True, False))
    assert known <= new


def test_the_shipped_recipe_has_the_values_for_200_images() -> None:
    assert load.load("fine-tune", overrides(200)) == load.load("fine-tune")


def test_weights_know_the_classes_that_they_name(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save(path, {"x": torch.zeros(1)}, recipe=load.default(), class_names=("a", "b"))
    assert knows(str(path), ["b", "a"]) and knows(str(path), ["b"])
    assert not knows(str(path), ["b", "c"])
    assert not knows("published", ["person"]) and not knows(str(tmp_path / "none"), ["a"])
