"""The values of a fine-tuning, by properties of the number of images that they follow."""

from hypothesis import given
from hypothesis import strategies as st

from rankless.curation.fine_tuning import EPOCHS, words
from rankless.engine.schedule import StepSchedule
from rankless.recipe import load

numbers = st.integers(10, 2_000_000)
tasks = st.sampled_from(["detect", "classify"])


def recipe_of(images: int, task: str = "detect") -> load.Recipe:
    network = [] if task == "detect" else ["task=classify", "model.name=resnet18"]
    return load.default([*network, *words(images, task)])


@given(numbers, tasks)
def test_the_length_suits_the_number_of_images(images: int, task: str) -> None:
    recipe, larger = recipe_of(images, task), recipe_of(4 * images, task)
    # Four times the images get more steps, but each image is seen less often, up to the rounding of epochs.
    assert EPOCHS <= larger.epochs <= recipe.epochs
    schedules = StepSchedule(recipe, images), StepSchedule(larger, 4 * images)
    assert schedules[0].steps <= schedules[1].steps or recipe.batch != larger.batch
    assert recipe.epochs * images < larger.epochs * 4 * images
    assert larger.optim.lr <= recipe.optim.lr
    assert recipe.ema.decay <= larger.ema.decay
    # Batches are not larger than the data, and the run has enough steps for warm-up and average.
    assert schedules[0].warnings() == []
    assert 0 < schedules[0].warmup < schedules[0].steps / 10
    assert schedules[0].steps >= 0.5 / (1 - recipe.ema.decay)


def test_the_shipped_recipe_has_the_values_for_200_images() -> None:
    shipped = load.load("fine-tune")
    assert load.load("fine-tune", words(200, "detect")) == shipped
