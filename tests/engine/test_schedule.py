"""Which step is what, against a walk through the stream of images one by one."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankless.data.order import Line
from rankless.engine.schedule import Plan
from rankless.recipe.schema import Batch, Evaluate, Recipe
from rankless.world.tree import own_micro_batches


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    micro = draw(st.integers(1, 3))
    images = micro * draw(st.integers(1, 5))
    every = draw(st.integers(0, 4))
    recipe = Recipe(
        batch=Batch(images=images, micro=micro),
        epochs=draw(st.integers(1, 6)),
        evaluate=Evaluate(every=every),
        seed=draw(st.integers(0, 3)),
    )
    return Plan(recipe, draw(st.integers(1, 40)))


@given(plans())
def test_steps_and_evaluations_are_those_of_a_walk(plan: Plan) -> None:
    images, every = plan.recipe.batch.images, plan.recipe.evaluate.every
    seen, step, evaluated = 0, 0, []
    while seen < plan.recipe.epochs * plan.images:
        step += 1
        ended = []
        for _ in range(images):
            seen += 1
            if seen % plan.images == 0:
                ended.append(seen // plan.images)
        if every and any(epoch % every == 0 for epoch in ended):
            evaluated.append(step)
        assert plan.epoch(step) == pytest.approx(seen / plan.images)
    assert plan.steps == step
    assert [s for s in range(1, step + 1) if plan.is_evaluated(s)] == sorted({*evaluated, step})


@given(plans(), st.integers(1, 5))
def test_ranks_share_every_step_and_every_epoch_is_whole(plan: Plan, size: int) -> None:
    leaves = plan.recipe.batch.micro_batches
    size = min(size, leaves)
    shares = [list(plan.images_of(0, own_micro_batches(leaves, rank, size))) for rank in range(size)]
    together: list[Line] = []
    for step in range(plan.steps):
        for rank, share in enumerate(shares):
            own = len(own_micro_batches(leaves, rank, size))
            together += share[step * own : (step + 1) * own]
    assert together == list(plan.images_of(0, range(leaves)))
    leaf_steps = [step for step in range(plan.steps) for _ in range(leaves)]
    assert [line.step for line in together] == leaf_steps
    seen = list(itertools.chain.from_iterable(line.images for line in together))
    for epoch in range(plan.recipe.epochs):
        found = Counter(index for e, index in seen if e == epoch)
        assert found == Counter(range(plan.images))


@given(plans(), st.integers(0, 10))
def test_a_resumed_run_draws_the_rest(plan: Plan, start: int) -> None:
    own = range(1, plan.recipe.batch.micro_batches)
    everything = list(plan.images_of(0, own))
    assert list(plan.images_of(start, own)) == everything[start * len(own) :]
