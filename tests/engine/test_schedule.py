"""Which step is what, against a walk through the stream of images one by one."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankless.data.order import Line
from rankless.engine.schedule import StepSchedule, rate
from rankless.errors import counted
from rankless.recipe.installed import shipped
from rankless.recipe.load import default, load
from rankless.recipe.schema import Augment, Batch, Check, Data, Evaluate, Model, Recipe, Schedule
from rankless.world.tree import own_micro_batches


@st.composite
def schedules(draw: st.DrawFn) -> StepSchedule:
    micro = draw(st.integers(1, 3))
    images = micro * draw(st.integers(1, 5))
    every = draw(st.integers(0, 4))
    unit = draw(st.sampled_from([" steps", " epochs"]))
    recipe = Recipe(
        batch=Batch(images=images, micro=micro),
        epochs=draw(st.integers(1, 6)),
        evaluate=Evaluate(every=f"{every}{unit}" if every else 0),
        seed=draw(st.integers(0, 3)),
    )
    return StepSchedule(recipe, draw(st.integers(1, 40)))


@given(schedules())
def test_steps_and_evaluations_are_those_of_a_walk(schedule: StepSchedule) -> None:
    images, asked = schedule.recipe.batch.images, schedule.recipe.evaluate.every
    every = int(asked.removesuffix(" epochs")) if isinstance(asked, str) else asked
    seen, step, evaluated = 0, 0, []
    while seen < schedule.recipe.epochs * schedule.images:
        step += 1
        ended = []
        for _ in range(images):
            seen += 1
            if seen % schedule.images == 0:
                ended.append(seen // schedule.images)
        if every and any(period % every == 0 for period in ([step] if every is asked else ended)):
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
        (80, 0, 1, []),
        (79, 0, 1, []),  # no smaller batch is suggested than 8
        (64, 15, 1, []),  # the last of 16 steps reaches the whole rate
        (64, 16, 1, ["the learning rate's warm-up takes the whole run (16 steps;"]),
        (64, 16, 2, []),
        (3, 0, 1, ["the data has 3 training images, so each step uses every image 1.3 times"]),
        (1, 9, 2, ["1 training image, so each step uses", "is 9); train for more epochs"]),
    ],
)
def test_what_can_hardly_be_meant_is_reported(images: int, warmup: int, epochs: int, said: list[str]) -> None:
    recipe = Recipe(batch=Batch(images=4, micro=2), epochs=epochs, schedule=Schedule(warmup=warmup))
    found = StepSchedule(recipe, images).warnings()
    assert len(found) == len(said)
    assert all(one in sentence for one, sentence in zip(said, found, strict=True))
    run = StepSchedule(replace(recipe, check=Check(recompute=10**6)), images)
    assert f"the run has {counted(run.steps, 'step')}, so no step is checked" in run.warnings()[len(found)]
    run = StepSchedule(replace(recipe, check=Check(recompute=run.steps)), images)
    assert run.warnings() == found


def test_a_small_number_of_steps_that_may_mean_epochs_is_reported() -> None:
    recipe = Recipe(
        batch=Batch(images=4, micro=2),
        epochs=10,
        model=Model(freeze=10),
        evaluate=Evaluate(every=1),
        data=Data(augment=Augment(close_mosaic=11)),  # more than all epochs
    )
    assert StepSchedule(recipe, 400).warnings() == [
        "evaluate.every is 1, meaning 1 step, but an epoch has 100 steps; if you mean epochs, use "
        "evaluate.every='1 epoch'",
        "model.freeze is 10, meaning 10 steps, but an epoch has 100 steps; if you mean epochs, use "
        "model.freeze='10 epochs'",
    ]
    assert StepSchedule(recipe, 4).warnings() == []  # an epoch is a step


@pytest.mark.parametrize(
    ("images", "batch", "micro", "line"),
    [
        (169, 64, 4, "add batch.images=8 optim.lr=0.00125"),
        (169, 64, 8, "add batch.images=8 batch.micro=4 optim.lr=0.00125"),
        (169, 64, 32, "add batch.images=8 batch.micro=4 optim.lr=0.00125"),
        (1216, 64, 8, "add batch.images=32 optim.lr=0.005"),
        (1217, 64, 8, ""),
        (5, 8, 4, "use a smaller batch.images"),
        (50, 64, 64, "add batch.images=8 batch.micro=8 optim.lr=0.00125"),
    ],
)
def test_few_steps_in_a_run_are_reported_with_the_line_to_add(
    images: int, batch: int, micro: int, line: str
) -> None:
    few = batch <= images
    run = StepSchedule(Recipe(batch=Batch(images=batch, micro=micro), epochs=1 if few else 2), images)
    expected = f"train for more epochs, or {line}" if few else line
    assert [sentence.rpartition("; ")[2] for sentence in run.warnings()] == [expected] * bool(line)
    assert not few or not StepSchedule(replace(run.recipe, epochs=20), images).warnings(), "enough steps"
    if line.startswith("add"):
        better = default([f"batch.images={batch}", f"batch.micro={micro}", "epochs=1", *line.split()[1:]])
        assert not StepSchedule(better, images).warnings()
        assert better.batch.micro_batches >= min(2, batch // micro), (
            "two devices could share a step, and still can"
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_shipped_recipe_has_a_schedule_for_any_data(name: str) -> None:
    recipe = load(name, ["data.root=mine"])
    for images in (1, 200, 5_000):
        run = StepSchedule(recipe, images)
        rates = [rate(run, step) for step in range(run.steps)]
        reached = run.steps >= 800 or recipe.schedule.warmup != "auto"
        falls = recipe.schedule.name != "constant" and run.steps >= 20
        assert (max(rates) == 1.0 or not reached) and min(rates) > 0 and (rates[-1] < 0.02 or not falls)
        assert not any("evaluate.every" in one or "close_mosaic" in one for one in run.warnings())
