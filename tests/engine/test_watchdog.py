"""Ranks that are late or slow are named, and nothing else changes."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rankless.engine.clock import Clock, Phase, StepTime
from rankless.engine.stragglers import Stragglers, slow_ranks
from rankless.engine.watchdog import Watchdog
from rankless.recipe.schema import Batch, Checkpoint, Ema, Evaluate, Optim, Recipe
from rankless.runs import journal
from rankless.structures import LossSum
from rankless.world.process_group import World
from support.small_task import Regression, train
from support.thread_ranks import together

HOST = os.uname().nodename
RECIPE = Recipe(
    batch=Batch(images=8, micro=2),
    epochs=12,
    precision="fp32",
    optim=Optim(lr=0.01),
    ema=Ema(decay=0),
    evaluate=Evaluate(every=0),
    checkpoint=Checkpoint(every=24, keep=1),
)


class Line(Regression):
    """It sleeps for ``draw`` seconds after some steps, and for ``compute`` seconds in every micro-batch."""

    def __init__(self, draw: dict[int, float], compute: float) -> None:
        self.stalls, self.compute, self.steps = dict(draw), compute, 0

    def item(self, index: int, epoch: int) -> Tensor:
        time.sleep(self.stalls.pop(self.steps, 0))
        return super().item(index, epoch)

    def loss(self, model: nn.Module, batch: Tensor) -> LossSum:
        time.sleep(self.compute)
        return super().loss(model, batch)


def stalls(
    world: World, folder: str, late: float, draw: dict[int, float], compute: float, reduce: Any = "exact"
) -> bool | list[str]:
    is_last = world.rank == world.size - 1
    task = Line(draw if is_last else {}, compute if is_last else 0)

    def observe(step: int, *_: Any) -> None:
        task.steps = step

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKLESS_LATE", str(late))
        recipe = dataclasses.replace(RECIPE, workers=0, reduce=reduce)
        return train(world, task, recipe, folder, observe=observe)


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    return [entry for entry in journal.read(folder / "journal.jsonl") if entry.get("event") == name]


@pytest.mark.processes
def test_a_late_rank_is_named_with_its_host_step_and_phase(ranks: Any, tmp_path: Path) -> None:
    before = len(ranks.log.read_text(errors="replace")) if ranks.log.exists() else 0
    assert all(ranks(3, stalls, str(tmp_path / "run"), 1.5, {5: 5.0}, 0.0))
    found = [entry["text"] for entry in events(tmp_path / "run", "late") if entry["at"] == 6]
    assert len(found) == 1
    assert found[0].startswith(f"rank 2 on {HOST} is late: step 6, waiting for images, for ")
    log = ranks.log.read_text(errors="replace")[before:]
    assert "late: rank 2, step 6, waiting for images" in log and "in item" in log
    assert "late: rank 0, step 6, waiting for other ranks" in log


def wait_for_a_silent_one(world: World) -> list[str]:
    """What rank 0 reports while rank 1 has no thread that could."""
    reports: list[str] = []
    os.environ["RANKLESS_LATE"] = "0.4"
    clock = Clock(world.transport.waits)
    dog = Watchdog(world, clock, lambda step, text: reports.append(text))
    del os.environ["RANKLESS_LATE"]
    if world.rank:
        time.sleep(3)
        world.gather(None)
        return []
    with dog:
        for step in range(3):
            clock.begin("computing", step)
        world.gather(None)
    return reports


def test_what_the_launcher_hears_of_a_rank() -> None:
    """A step may take some times the slowest so far, and at least a minute; a first one half an hour."""
    told: list[tuple[int, float | None, str]] = []
    world = World(0, 1, torch.device("cpu"))
    batches: Any = SimpleNamespace(waited=0.0, is_waiting=False)
    clock = Clock(world.transport.waits, batches)
    dog = Watchdog(world, clock, lambda *_: None, lambda *pulse: told.append(pulse))

    def hear() -> tuple[int, float | None, str]:
        dog._beat()
        return told[-1]

    clock.begin("computing", 1)
    assert hear() == (1, 1800.0, "step 1, computing")
    clock.begin("logging", 1)
    assert hear() == (2, 1800.0, "step 1, logging"), "a sink of the user's may wait for a network"
    clock.begin("computing", 2)
    assert hear() == (3, 60.0, "step 2, computing")
    clock.now = Phase("computing", 2, time.monotonic() - 100)
    clock.begin("computing", 3)
    assert hear()[1] == pytest.approx(500, abs=5)
    batches.is_waiting = True
    assert hear() == (4, 1800.0, "step 3, waiting for images")
    with world.transport.waits.waiting():
        assert hear() == (4, None, "step 3, waiting for other ranks")
    batches.is_waiting = False
    for step in (4, 5):  # a save that goes on beside the steps takes longer than this phase did
        clock.begin("saving", step)
        assert hear()[1:] == (1800.0, f"step {step}, saving")
    clock.begin("saving", 6, slowest=80.0)
    assert hear()[1] == 400
    with dog:
        pass
    assert told[-1][1:] == (1800.0, "step 6, ending")


@pytest.mark.processes
def test_a_rank_that_cannot_even_say_so_is_named_too(ranks: Any) -> None:
    (reports, _) = ranks(2, wait_for_a_silent_one)
    assert len(reports) == 1
    assert reports[0].startswith(f"rank 1 on {HOST} does not respond: step 2, for ")


@pytest.mark.processes
@pytest.mark.parametrize("reduce", ["exact", "fast"])
def test_a_slow_rank_is_named_in_the_journal(ranks: Any, tmp_path: Path, reduce: str) -> None:
    assert all(ranks(2, stalls, str(tmp_path / "run"), 60, {}, 0.04, reduce))
    (event,) = events(tmp_path / "run", "slow")
    assert event["at"] == 24 and event["text"].startswith(f"rank 1 on {HOST} is slow: it takes ")
    assert not events(tmp_path / "run", "late")


def test_a_rank_that_recomputes_a_micro_batch_is_not_slow() -> None:
    """Ranks with one and with two micro-batches, of which every step computes one more."""

    def spread(world: World) -> list[float]:
        stragglers = Stragglers(world, 1 + world.rank)
        for _ in range(20):
            stragglers.add(StepTime(0.1 * (2 + world.rank)), more=1)
        assert stragglers.compare() == []
        return stragglers.take().get("ranks", [])

    assert together(2, spread)[0] == [100, 100]


def test_slow_is_far_above_the_others() -> None:
    assert slow_ranks([0.1, 0.1, 0.119, 0.1]) == {}
    assert slow_ranks([0.1, 0.1, 0.125, 0.1]) == {2: 0.1}
    assert slow_ranks([0.001, 0.004]) == {}  # nobody waits long for that
    assert slow_ranks([0.3, 0.1]) == {0: 0.1}
    assert set(slow_ranks([0.3, 0.1, 0.3, 0.1, 0.1, 0.1])) == {0, 2}
