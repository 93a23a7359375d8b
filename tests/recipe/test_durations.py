"""Durations in steps, epochs and shares of the run, against a walk through the run's images one by one."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankless.engine.schedule import StepSchedule
from rankless.errors import UserError
from rankless.recipe.durations import RunLength
from rankless.recipe.load import dump, from_json, load, to_json
from rankless.recipe.schema import Augment, Batch, Data, Evaluate, Model, Recipe, Schedule

lengths = st.builds(RunLength, st.integers(1, 6), st.integers(1, 40), st.integers(1, 15))


@given(lengths, st.integers(1, 8))
def test_epochs_have_passed_when_their_last_image_was_seen(run: RunLength, epochs: int) -> None:
    step = seen = 0
    while seen < epochs * run.images:
        step, seen = step + 1, seen + run.batch
    assert run.whole(f"{epochs} epochs") == step
    assert run.whole(f"{run.epochs} epochs") == run.whole("100%") == run.steps


@given(lengths, st.integers(1, 1000))
def test_a_share_is_of_all_steps(run: RunLength, thousandths: int) -> None:
    share = f"{thousandths / 10}%"
    assert run.exact(share) == Fraction(thousandths, 1000) * run.steps
    ended = [step for step in range(1, run.steps + 1) if run.ends(step, share)]
    wanted = {-(-k * thousandths * run.steps // 1000) for k in range(1, 1001) if k * thousandths <= 1000}
    assert ended == sorted(wanted - {0})


@given(lengths, st.integers(0, 8))
def test_whole_epochs_end_inside_a_step(run: RunLength, last: int) -> None:
    for position in range(run.epochs * run.images):
        epoch, step = position // run.images, position // run.batch
        assert run.is_last(f"{last} epochs", epoch, step) == (epoch >= run.epochs - last)
        assert run.is_last(last, epoch, step) == (step >= run.steps - last)


def test_milestones_are_compared_when_the_data_is_known() -> None:
    recipe = Recipe(
        epochs=10, batch=Batch(images=8, micro=8), schedule=Schedule(name="step", milestones=(50, "80%"))
    )
    assert StepSchedule(recipe, 100).milestones == (50, 100)
    with pytest.raises(UserError, match=r"50 is step 50, '80%' is step 32; expected increasing steps"):
        _ = StepSchedule(recipe, 32).milestones
    shares = replace(recipe, epochs=1, schedule=Schedule(name="step"))
    assert StepSchedule(shares, 8).milestones == (1, 1)  # of one step; no shipped recipe fails on small data


OLD = Recipe(
    model=Model(freeze="3 epochs"),
    data=Data(augment=Augment(mosaic=0.5, close_mosaic="2 epochs")),
    schedule=Schedule(warmup=7),
    evaluate=Evaluate(every="5 epochs"),
)


def recorded_before() -> str:
    tree = json.loads(to_json(OLD))
    tree["schedule"]["warmup"] = 7
    tree["evaluate"]["every"], tree["model"]["freeze"] = 5, 3
    tree["data"]["augment"]["close_mosaic"] = 2
    return json.dumps(tree)


def test_a_recipe_that_was_recorded_before_means_what_it_meant(tmp_path) -> None:
    assert from_json(recorded_before()) == OLD
    file = tmp_path / "recipe.yaml"
    file.write_text(recorded_before())  # JSON is YAML
    assert load(file) == OLD
    assert load(file, ["evaluate.every=9", "optim.lr=1"]).evaluate.every == 9  # what is asked for now


def test_a_bare_number_is_recorded_as_steps() -> None:
    recipe = Recipe(model=Model(freeze=3), schedule=Schedule(warmup=7), evaluate=Evaluate(every=5))
    assert "every: 5 steps" in dump(recipe) and "warmup: 7 steps" in dump(recipe)
    assert from_json(to_json(recipe)) == recipe
    assert Evaluate(every="5 steps") == Evaluate(every=5)
