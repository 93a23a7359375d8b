"""The learning rate and the momentum of each step, against torch's schedulers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from rankless.engine.optim import optimizer
from rankless.engine.schedule import StepSchedule, momentum, rate, set_momentum
from rankless.errors import UserError
from rankless.recipe.load import load
from rankless.recipe.schema import Batch, Optim, Recipe, Schedule

STEPS = 50


def by_torch(make: type, **settings: object) -> list[float]:
    """The rates of one of torch's schedulers whose highest rate is 1."""
    sgd = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(sgd, **settings)
    rates = []
    for _ in range(STEPS):
        rates.append(sgd.param_groups[0]["lr"])
        sgd.step()
        scheduler.step()
    return rates


def rates(schedule: Schedule, steps: int = STEPS) -> list[float]:
    run = StepSchedule(Recipe(schedule=schedule, epochs=steps, batch=Batch(images=1, micro=1)), 1)
    return [rate(run, step) for step in range(steps)]


@pytest.mark.parametrize("length", [20, STEPS, 111])
def test_cosine_equals_torch_and_may_end_before_or_after_the_run(length: int) -> None:
    expected = by_torch(lr_scheduler.CosineAnnealingLR, T_max=length - 1, eta_min=0.05)
    found = rates(Schedule(name="cosine", final=0.05, warmup=0, length="run" if length == STEPS else length))
    assert found[:length] == pytest.approx(expected[:length], abs=1e-12)
    assert all(rate == pytest.approx(0.05) for rate in found[length:])  # torch's would rise again


def test_a_cosine_is_close_to_that_of_a_script_that_steps_once_per_epoch() -> None:
    """The figures of docs/migrating.md, section "Learning rate schedules"."""
    epochs, per_epoch = STEPS, 7
    script = by_torch(lr_scheduler.CosineAnnealingLR, T_max=epochs)
    found = rates(Schedule(name="cosine", final=0, warmup=0), epochs * per_epoch)
    steps = epochs * per_epoch
    assert found[::per_epoch] == pytest.approx(script, abs=1.6 / (steps - 1))
    assert found[::per_epoch] != pytest.approx(script, abs=1e-4)
    lasts, nexts = found[per_epoch - 1 :: per_epoch], [*script[1:], 0.0]
    assert all(script[n] > lasts[n] > nexts[n] - 1e-12 for n in range(1, epochs))


def test_cosine_begins_where_the_warm_up_ends() -> None:
    found = rates(Schedule(name="cosine", final=0.05, warmup=10))
    assert found[:10] == pytest.approx([(n + 1) / 10 for n in range(10)])
    length = STEPS - 1 - 10
    assert found[10:] == pytest.approx(
        [0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * n / length)) for n in range(length + 1)]
    )
    assert (found[9], found[10], found[-1]) == pytest.approx((1.0, 1.0, 0.05))


def test_steps_are_torchs() -> None:
    expected = by_torch(lr_scheduler.MultiStepLR, milestones=[20, 30, 45], gamma=0.3)
    for milestones in ((20, 30, 45), ("40%", "30 epochs", 45)):
        schedule = Schedule(name="step", milestones=milestones, gamma=0.3, warmup=0)
        assert rates(schedule) == pytest.approx(expected, rel=1e-12)
    assert rates(Schedule(name="step", warmup=0)) == pytest.approx([1] * 40 + [0.1] * 5 + [0.01] * 5)


def test_the_warm_up_has_a_power_and_is_a_share_of_the_run() -> None:
    found = rates(Schedule(name="constant", warmup=8, warmup_power=4))
    assert found == pytest.approx([min((n + 1) / 8, 1) ** 4 for n in range(STEPS)])
    assert rates(Schedule(name="constant"))[:4] == pytest.approx([1 / 3, 2 / 3, 1, 1])  # 2.5 of 50 steps
    assert rates(Schedule(name="constant"), 8) == [1.0] * 8


def test_the_automatic_warm_up_takes_40_steps_and_does_not_change_longer_runs() -> None:
    found = rates(Schedule(name="constant", warmup="auto"))
    assert found == pytest.approx([(n + 1) / 40 for n in range(40)] + [1.0] * 10)
    few = rates(Schedule(name="cosine", warmup="auto", final=0.01), 12)
    usual = rates(Schedule(name="cosine", final=0.01), 12)
    assert few == pytest.approx([min(each, (n + 1) / 40) for n, each in enumerate(usual)])
    assert max(few) < 0.25 and few[-1] == pytest.approx(0.01)
    cycle = rates(Schedule(name="one-cycle", warmup="auto"), 12)
    assert cycle == rates(Schedule(name="one-cycle"), 12), "which has no warm-up"
    for name in ("cosine", "constant", "poly", "step"):
        long = rates(Schedule(name=name, warmup="auto"), 800)
        assert long == rates(Schedule(name=name, warmup="5%"), 800)


@pytest.mark.parametrize("warmup", [STEPS - 1, STEPS, 10 * STEPS])
def test_a_run_may_be_all_warm_up(warmup: int) -> None:
    found = rates(Schedule(name="cosine", warmup=warmup))
    assert found[: STEPS - 1] == pytest.approx([(n + 1) / warmup for n in range(STEPS - 1)])
    assert all(0 < value <= 1 for value in found)
    assert rates(Schedule(name="cosine"), 1) == [1.0]


@pytest.mark.parametrize(
    ("power", "warmup", "length"), [(0.9, 0, STEPS), (4.0, 12, STEPS), (2.0, 0, 20), (2.0, 0, 111)]
)
def test_poly_is_torchs_after_the_warm_up(power: float, warmup: int, length: int) -> None:
    expected = by_torch(lr_scheduler.PolynomialLR, total_iters=length - warmup, power=power)
    schedule = Schedule(name="poly", power=power, warmup=warmup, length="run" if length == STEPS else length)
    assert rates(schedule)[warmup:] == pytest.approx(expected[: STEPS - warmup], rel=1e-9, abs=1e-12)
    assert rates(Schedule(name="poly", power=power), 1) == [1.0]


@pytest.mark.parametrize("warmup", [0, 7])
def test_exponential_is_torchs_once_an_epoch(warmup: int) -> None:
    expected = by_torch(lr_scheduler.ExponentialLR, gamma=0.8)
    recipe = Recipe(
        schedule=Schedule(name="exponential", decay=0.8, warmup=warmup),
        epochs=10,
        batch=Batch(images=2, micro=1),
    )
    run = StepSchedule(recipe, 10)
    assert run.steps == STEPS
    found = [rate(run, step) for step in range(STEPS)]
    assert found[warmup:] == pytest.approx([expected[after // 5] for after in range(STEPS - warmup)])


@pytest.mark.parametrize("images", [7, 11, 13])
def test_an_epoch_may_end_inside_a_step(images: int) -> None:
    """The rate falls in the first step that begins after another whole epoch of images."""
    recipe = Recipe(schedule=Schedule(name="exponential", decay=0.5, warmup=0), epochs=5, batch=Batch(4, 2))
    run = StepSchedule(recipe, images)
    seen = 0
    for step in range(run.steps):
        assert rate(run, step) == 0.5 ** (seen // images)
        seen += 4


@pytest.mark.parametrize(("div", "final"), [(25.0, 1e4), (10.0, 50.0), (1.0, 1.0)])
@pytest.mark.parametrize("rise", ["30%", "25%", "33.3%", 20])
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_one_cycle_is_torchs_with_its_momentum(div: float, final: float, rise: int | str, name: str) -> None:
    share = rise / STEPS if isinstance(rise, int) else float(rise.rstrip("%")) / 100
    net = nn.Linear(2, 2)
    make = {"sgd": lambda p: torch.optim.SGD(p, lr=1, momentum=0.9), "adam": torch.optim.Adam}[name]
    theirs = make(net.parameters())
    scheduler = lr_scheduler.OneCycleLR(
        theirs, max_lr=1.0, total_steps=STEPS, pct_start=share, div_factor=div, final_div_factor=final
    )
    schedule = Schedule(name="one-cycle", rise=rise, div_factor=div, final_div_factor=final)
    run = StepSchedule(Recipe(schedule=schedule, epochs=STEPS, batch=Batch(images=1, micro=1)), 1)
    recipe = Optim(name=name)  # type: ignore[arg-type]
    own = optimizer(net, recipe)
    for step in range(STEPS):
        set_momentum(own, recipe, momentum(run, step))
        group, expected = own.param_groups[0], theirs.param_groups[0]
        assert rate(run, step) == pytest.approx(expected["lr"], rel=1e-9)
        key = "momentum" if name == "sgd" else "betas"
        assert group[key] == pytest.approx(expected[key], rel=1e-9)
        theirs.step()
        if step < STEPS - 1:
            scheduler.step()


def test_without_cycles_the_momentum_is_the_recipes() -> None:
    still = Schedule(name="one-cycle", cycle_momentum=False)
    for schedule in (still, Schedule(name="cosine")):
        run = StepSchedule(Recipe(schedule=schedule), 100)
        assert momentum(run, 3) is None
    assert rates(Schedule(name="one-cycle"), 1) == [1.0]
    whole = rates(Schedule(name="one-cycle", rise="100%"))
    assert whole[-1] == pytest.approx(1.0) and whole == sorted(whole)


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (["power=2"], "'schedule.power' is 2, but 'schedule.name' is 'cosine'"),
        (["decay=0.5"], "'schedule.decay' has an effect only with 'exponential'"),
        (["rise=20%"], "'schedule.rise' is '20%', but 'schedule.name' is 'cosine'"),
        (["cycle_momentum=false"], "has an effect only with 'one-cycle'"),
        (["name=one-cycle", "warmup=500"], "'schedule.warmup' is 500, but 'schedule.name' is 'one-cycle'"),
    ],
)
def test_a_key_of_another_schedule_is_an_error(written: list[str], problem: str) -> None:
    with pytest.raises(UserError) as caught:
        load(
            "digits-classify",
            ["schedule.warmup=5%", "schedule.final=0.01", *(f"schedule.{w}" for w in written)],
        )
    assert any(problem in sentence for sentence in caught.value.problems)


def test_a_rise_as_long_as_the_run_is_reported() -> None:
    for rise, said in (("30%", False), ("100%", True)):
        run = StepSchedule(Recipe(schedule=Schedule(name="one-cycle", rise=rise)), 6400)
        assert any("smaller schedule.rise (usually 30%)" in one for one in run.warnings()) is said
