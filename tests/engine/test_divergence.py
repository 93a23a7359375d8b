"""Steps that cannot be applied: said alike on every rank, the weights as they were before, nothing lost."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rankless.engine.divergence import DivergedError
from rankless.engine.state import TrainingState
from rankless.models.weights_files import weights
from rankless.recipe.schema import Batch, Checkpoint, Ema, Evaluate, Optim, Recipe
from rankless.runs.directory import RunDirectory
from rankless.structures import LossSum
from rankless.world.process_group import World
from support.small_task import Regression, steps, train

IMAGES, MICRO, LEAVES = 12, 3, 4
BAD_STEP, BAD_LEAF = 2, 1  # from 0; an odd micro-batch adds its gradient to its sibling's


class Heads(nn.Module):
    """A batch norm, and a second head that not every micro-batch uses."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.head, self.other = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x: Tensor, second: bool = True) -> Tensor:
        y = self.norm(self.trunk(x))
        out: Tensor = self.head(y) + (self.other(y) if second else 0)
        return out


class FaultyTask(Regression):
    """Does something wrong in one micro-batch of the ``leaves`` that this rank has of a step."""

    images = IMAGES
    FACTORS: ClassVar = {"large": 1e6, "loss": float("inf"), "overflow": 1e30}

    def __init__(self, problem: str, leaves: int = LEAVES) -> None:
        self.problem, self.leaves, self.calls = problem, leaves, 0

    def model(self) -> nn.Module:
        return Heads()

    def loss(self, model: nn.Module, batch: Tensor) -> LossSum:
        place = divmod(self.calls, self.leaves)
        self.calls += 1
        is_bad = place == (BAD_STEP, BAD_LEAF) or self.problem == "large"
        return self.loss_of(model, batch, self.problem if is_bad else "")

    def loss_of(self, model: nn.Module, batch: Tensor, problem: str) -> LossSum:
        out = model(batch, problem != "unused")
        loss = out.float().square().sum() * self.FACTORS.get(problem, 1)
        if problem == "gradient":
            loss = loss + (out * 0).sum().abs().sqrt()  # finite itself
        return LossSum(loss, torch.tensor(float(len(batch))))


def recipe(**changes: Any) -> Recipe:
    settings: dict[str, Any] = {
        "batch": Batch(IMAGES, MICRO),
        "precision": "fp32",
        "ema": Ema(0.5),
        **changes,
    }
    return Recipe(**settings)


def digest(tensors: Iterable[Tensor]) -> str:
    return hashlib.sha256(b"".join(t.detach().contiguous().numpy().tobytes() for t in tensors)).hexdigest()


def digest_of(state: TrainingState) -> str:
    return digest(state.tensors().values())


class Keyed(FaultyTask):
    """The fault is a matter of the images, as it is in life: they say which micro-batch they are of."""

    def loss(self, model: nn.Module, batch: Tensor) -> LossSum:
        return self.loss_of(model, batch[:, :4], self.problem if batch[0, 4] else "")


def rows(step: int, leaf: int, always: bool) -> Tensor:
    drawn = torch.from_numpy(np.random.default_rng([step, leaf]).normal(size=(MICRO, 5))).float()
    drawn[:, 4] = float((always or step == BAD_STEP) and leaf == BAD_LEAF)
    return drawn


def digests(world: World, changes: dict[str, Any], problem: str, count: int, always: bool) -> list[Any]:
    """A digest after each step; the sentences of the one that failed, and whether it left no trace."""
    state = TrainingState(Keyed(problem), recipe(**changes), world, IMAGES)  # type: ignore[arg-type]
    found = [digest_of(state)]
    try:
        for _ in steps(state, count, partial(rows, always=always)):
            found.append(digest_of(state))
    except DivergedError as error:
        is_untouched = digest_of(state) == found[-1]
        return [*found[1:], list(error.problems), is_untouched, error.is_whole, error.repeats]
    return found[1:]


FAULTS = {
    "gradient": (
        "but the gradient of 'trunk.weight', 'trunk.bias', 'norm.weight', 'norm.bias', 'head.weight' and 3 "
        "more is not finite; lower optim.lr (now 0.01)"
    ),
    "loss": "step 3 was not applied, because the loss became inf; lower optim.lr (now 0.01)",
    "unused": "step 3: the loss of micro-batch 1 does not depend on 'other.weight', 'other.bias'; use these",
}
WAYS = {
    "micro": {},
    "clip": {"optim": Optim(clip=1.0)},
    "sync": {"batch_norm": "sync"},
    "fast": {"reduce": "fast"},
}


def each(world: World, cases: list[tuple[Any, ...]]) -> list[list[Any]]:
    return [digests(world, *case) for case in cases]


@pytest.mark.processes
def test_every_rank_refuses_the_step_alike(ranks: Any) -> None:
    cases = [(way, problem) for way in WAYS for problem in FAULTS]
    asked = [(WAYS[way], problem, 5, False) for way, problem in cases]
    answers = [answer for size in (1, 2, 3) for answer in ranks(size, each, asked)]
    for place, (way, problem) in enumerate(cases):
        first = answers[0][place]
        for answer in answers:
            *before, sentences, is_untouched, is_whole, repeats = answer[place]
            assert len(before) == BAD_STEP
            assert FAULTS[problem] in sentences[0]
            assert is_untouched and is_whole
            assert repeats == (problem != "unused")
            assert answer[place] == first or (way == "fast" and sentences == first[-4])


@pytest.mark.processes
def test_missing_gradients_as_zero_are_the_same_bits_on_any_number_of_ranks(ranks: Any) -> None:
    zero = {"find_unused_parameters": True}
    ways = [WAYS[way] for way in ("micro", "clip", "sync")]
    asked = [({**way, **zero}, "unused", 5, False) for way in ways]
    worlds = [answer for size in (1, 2, 3, 4) for answer in ranks(size, each, asked)]
    assert all(answer == worlds[0] for answer in worlds)
    assert all(len(set(digests)) == 5 for digests in worlds[0])
    # Where every parameter is used, the key changes nothing.
    plain = [(way, "", 5, False) for way in ways]
    keyed = [({**way, **zero}, "", 5, False) for way in ways]
    (found,) = ranks(1, each, [*plain, *keyed])
    assert found[:3] == found[3:] and found[:3] != worlds[0]


@pytest.mark.processes
def test_fp16_gives_up_when_every_step_overflows(ranks: Any) -> None:
    for size in (1, 2):
        for answer in ranks(size, digests, {"precision": "fp16"}, "gradient", 60, True):
            *before, sentences, is_untouched, is_whole, repeats = answer
            assert 25 < len(before) < 35
            assert "(loss scale 6.10352e-05)" in sentences[0] and "precision: fp32" in sentences[0]
            assert is_untouched and is_whole and repeats


def overflow(world: World) -> list[dict[str, Any]]:
    """What each step leaves where a micro-batch of one has infinite gradients in fp16."""
    settings = recipe(precision="fp16", optim=Optim(lr=0.05, clip=10.0))
    state = TrainingState(Keyed("overflow"), settings, world, IMAGES)  # type: ignore[arg-type]
    # fp16 begins with a scale at which all of these gradients are infinite.
    state.scaler.load_state_dict({**state.scaler.state_dict(), "scale": 8.0})
    found = []
    for numbers in steps(state, 5, partial(rows, always=False)):
        buffers = [value for name, value in state.model.named_buffers() if not name.endswith("tracked")]
        found.append(
            {
                "skipped": numbers.skipped,
                "scale": state.scaler.get_scale(),
                "weights": digest(state.model.parameters()),
                "statistics": digest(buffers),
                "everything": digest_of(state),
                "finite": all(value.isfinite().all().item() for value in state.tensors().values()),
            }
        )
    return found


@pytest.mark.processes
def test_an_overflow_in_one_micro_batch_skips_the_step_everywhere(ranks: Any) -> None:
    worlds = {size: ranks(size, overflow) for size in (1, 2, 3)}
    lines = worlds[1][0]
    assert [line["skipped"] for line in lines] == [step == BAD_STEP for step in range(5)]
    before, at, after = lines[BAD_STEP - 1 : BAD_STEP + 2]
    assert at["scale"] == before["scale"] / 2 == after["scale"]
    assert (at["weights"], at["statistics"]) == (before["weights"], before["statistics"])
    assert after["weights"] != at["weights"] and after["statistics"] != at["statistics"]
    assert all(line["finite"] for line in lines)
    assert all(answer == lines for answers in worlds.values() for answer in answers)


def fails(
    world: World, folder: str, problem: str, changes: dict[str, Any], lr: float | None = None
) -> bool | list[str]:
    """Ranks call the run's directory differently, and only the first one has the problem."""
    task = FaultyTask(problem if world.is_first else "", LEAVES // world.size)
    settings = {"epochs": 6, "evaluate": Evaluate(every=0), "checkpoint": Checkpoint(every=1000), **changes}
    made = recipe(**settings)
    if lr:
        object.__setattr__(made.optim, "lr", lr)  # more than a recipe may say
    return train(world, task, made, folder if world.is_first else os.path.relpath(folder))


@pytest.mark.processes
@pytest.mark.parametrize("problem", FAULTS)
def test_the_state_before_is_saved(ranks: Any, tmp_path: Path, problem: str) -> None:
    said, other = ranks(2, fails, str(tmp_path), problem, {})
    assert other == said, "though they call the run's directory differently"
    run = RunDirectory(tmp_path)
    assert run.pointed("last") == BAD_STEP and run.steps() == [BAD_STEP]
    saved = weights.load(run.step_directory(BAD_STEP) / "model.safetensors").state
    assert all(torch.isfinite(value).all() for value in saved.values())
    assert FAULTS[problem] in said[0]
    assert said[1].startswith(f"the checkpoint of step {BAD_STEP} is ")
    way = "--resume --run" if problem == "unused" else f"model.pretrained={run.step_directory(BAD_STEP)}"
    assert way in said[1]


@pytest.mark.processes
def test_weights_that_are_not_finite_are_never_saved(ranks: Any, tmp_path: Path) -> None:
    """A finite gradient whose update overflows."""
    (said,) = ranks(1, fails, str(tmp_path), "large", {"checkpoint": Checkpoint(every=1)}, 1e38)
    assert "the weights 'trunk.weight'" in said[0] and "not finite after step 1" in said[0] and len(said) == 1
    assert RunDirectory(tmp_path).steps() == []
