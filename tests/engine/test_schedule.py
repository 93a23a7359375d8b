"""Which step is what, against a walk through the stream of images one by one."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankless.data.order import Line
from rankless.engine.schedule import StepSchedule
from rankless.recipe.schema import Batch, Evaluate, Recipe, Schedule
from rankless.world.tree import own_micro_batches


@st.composite
def schedules(draw: st.DrawFn) -> StepSchedule:
    micro = draw(st.integers(1, 3))
    images = micro * draw(st.integers(1, 5))
    every = draw(st.integers(0, 4))
    recipe = Recipe(
        batch=Batch(images=images, micro=micro),
        epochs=draw(st.integers(1, 6)),
        evaluate=Evaluate(every=every),
        seed=draw(st.integers(0, 3)),
    )
    return StepSchedule(recipe, draw(st.integers(1, 40)))


@given(schedules())
def test_steps_and_evaluations_are_those_of_a_walk(schedule: StepSchedule) -> None:
    images, every = schedule.recipe.batch.images, schedule.recipe.evaluate.every
    seen, step, evaluated = 0, 0, []
    while seen < schedule.recipe.epochs * schedule.images:
        step += 1
        ended = []
        for _ in range(images):
            seen += 1
            if seen % schedule.images == 0:
                ended.append(seen // schedule.images)
        if every and any(epoch % every == 0 for epoch in ended):
            evaluated.append(step)
        assert schedule.epoch(step) == pytest.approx(seen / schedule.images)
    assert schedule.steps == step
    assert [s for s in range(1, step + 1) if schedule.is_evaluated(s)] == sorted({*evaluated, step})


@given(schedules(), st.integers(1, 5))
def test_ranks_share_every_step_and_every_epoch_is_whole(schedule: StepSchedule, size: int) -> None:
    leaves = schedule.recipe.batch.micro_batches
    size = min(size, leaves)
    shares = [list(schedule.lines(0, own_micro_batches(leaves, rank, size))) for rank in range(size)]
    together: list[Line] = []
    for step in range(schedule.steps):
        for rank, share in enumerate(shares):
            own = len(own_micro_batches(leaves, rank, size))
            together += share[step * own : (step + 1) * own]
    assert together == list(schedule.lines(0, range(leaves)))
    leaf_steps = [step for step in range(schedule.steps) for _ in range(leaves)]
    assert [line.step for line in together] == leaf_steps
    seen = list(itertools.chain.from_iterable(line.images for line in together))
    for epoch in range(schedule.recipe.epochs):
        found = Counter(index for e, index in seen if e == epoch)
        assert found == Counter(range(schedule.images))


@given(schedules(), st.integers(0, 10))
def test_a_resumed_run_draws_the_rest(schedule: StepSchedule, start: int) -> None:
    own = range(1, schedule.recipe.batch.micro_batches)
    everything = list(schedule.lines(0, own))
    assert list(schedule.lines(start, own)) == everything[start * len(own) :]


@pytest.mark.parametrize(
    ("images", "warmup", "epochs", "said"),
    [
        (64, 0, 1, []),
        (64, 15, 1, []),  # the last of 16 steps reaches the whole rate
        (64, 16, 1, ["the whole run (16 steps) lies within the warm-up"]),
        (64, 16, 2, []),
        (3, 0, 1, ["the data has 3 training images, so each step takes every image 1.3 times"]),
        (1, 9, 2, ["1 training image, so each step takes", "the whole run (1 step) lies"]),
    ],
)
def test_what_can_hardly_be_meant_is_reported(images: int, warmup: int, epochs: int, said: list[str]) -> None:
    recipe = Recipe(batch=Batch(images=4, micro=2), epochs=epochs, schedule=Schedule(warmup=warmup))
    found = StepSchedule(recipe, images).warnings()
    assert len(found) == len(said)
    assert all(one in sentence for one, sentence in zip(said, found, strict=True))
