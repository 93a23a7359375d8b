"""Weights are compared across ranks, and begin alike on all of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rankless.engine.evaluate import fingerprint
from rankless.engine.soundness import checksums, non_finite
from rankless.engine.state import TrainingState
from rankless.errors import UserError
from rankless.recipe.schema import Batch, Checkpoint, Ema, Evaluate, Recipe
from rankless.runs.directory import RunDirectory
from rankless.structures import Scores
from rankless.world.bits import short_hash
from rankless.world.process_group import World
from support.small_task import Regression, train


class DrawsFromNumpy(Regression):
    images = 8
    is_drawn = True

    def model(self) -> nn.Module:
        net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        net.register_buffer("centers", torch.zeros(2))
        if self.is_drawn:
            rng = np.random.default_rng(os.getpid())
            net[2].weight.data = torch.from_numpy(rng.normal(size=(1, 3))).float()
            net.centers += float(rng.normal())  # type: ignore[operator]
        return net


class Plain(DrawsFromNumpy):
    is_drawn = False


class Unlike(Regression):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 1 + os.getpid()))


RECIPE = Recipe(
    batch=Batch(8, 2),
    precision="fp32",
    ema=Ema(0.9),
    epochs=9,
    evaluate=Evaluate(every=0),
    checkpoint=Checkpoint(4),
)


def begin(world: World) -> Any:
    """Fingerprints of what a rank begins with, beside those of its own model; and the warnings."""
    own = DrawsFromNumpy().model().state_dict()
    state = TrainingState(DrawsFromNumpy(), RECIPE, world, 8)  # type: ignore[arg-type]
    assert state.ema is not None
    held = [fingerprint(dict(model.state_dict())) for model in (state.model, state.ema.model)]
    return (
        held,
        {name: fingerprint(own[name]) for name in ("centers", "2.weight")},
        {name: fingerprint(state.model.state_dict()[name]) for name in ("centers", "2.weight")},
        state.warnings,
    )


@pytest.mark.processes
def test_every_rank_begins_with_the_weights_of_rank_0(ranks: Any) -> None:
    answers = ranks(3, begin)
    _, of_rank_0, _, _ = answers[0]
    for held, _, found, warnings in answers:
        assert held == answers[0][0]
        assert found == of_rank_0
        (text,) = warnings
        assert "different initial weights on rank 1 than on rank 0 (first difference: '2.weight')" in text
    (alone,) = ranks(1, begin)
    assert alone[3] == []


def refused(world: World) -> str:
    try:
        TrainingState(Unlike(), RECIPE, world, 8)  # type: ignore[arg-type]
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.processes
def test_another_model_is_refused_on_every_rank(ranks: Any) -> None:
    for said in ranks(2, refused):
        assert "created a different model on rank 1 than on rank 0 (first difference: '0.weight')" in said


def drifts(world: World, folder: str, at: int) -> list[str]:
    def observe(step: int, state: TrainingState, scores: Scores | None) -> None:
        if step == at and world.rank == 1:
            with torch.no_grad():
                state.model[2].weight[0, 0] += 1e-6  # type: ignore[index]

    found = train(world, Plain(), RECIPE, folder, observe=observe)
    return [] if isinstance(found, bool) else found


@pytest.mark.processes
def test_a_rank_that_drifts_ends_the_run_before_it_saves(ranks: Any, tmp_path: Path) -> None:
    answers = ranks(3, drifts, str(tmp_path), 5)
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][0].startswith(
        "after step 8, the weights on rank 1 differ from those on rank 0 (first difference: '"
    )
    assert answers[0][1].startswith("the checkpoint of step 4")
    assert RunDirectory(tmp_path).steps() == [4]


KINDS = [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_a_checksum_depends_on_every_element(dtype: torch.dtype) -> None:
    tensor = torch.zeros(2, 3, 2, 2).to(memory_format=torch.channels_last).to(dtype)
    (before,) = checksums({"a": tensor})
    for place in np.ndindex(*tensor.shape):
        other = tensor.clone()
        other[place] = 1
        assert checksums({"a": other}) != [before]


def test_tensors_that_are_not_finite_are_named() -> None:
    tensors = {
        "whole": torch.ones(3),
        "nan": torch.tensor([[1.0, torch.nan]]),
        "inf": torch.tensor([torch.inf, 0]).bfloat16(),
        "counts": torch.tensor(3),
        "none": None,
        "large": torch.tensor([3e38, -3e38]),
        "empty": torch.empty(0),
    }
    assert non_finite(tensors) == ["nan", "inf"]


def test_a_short_hash_sees_every_bit_and_the_order() -> None:
    sums = torch.tensor([5, -(2**62), 7, 7], dtype=torch.int64)
    for bits in (8, 24, 26):
        before = int(short_hash(sums, bits))
        assert 0 <= before < 2**bits
        for place in range(4):
            for bit in range(64):
                other = sums.numpy().copy()
                other.view(np.uint64)[place] ^= np.uint64(1 << bit)
                # A part of 2**-bits of all changes is not seen.
                assert bits == 8 or int(short_hash(torch.from_numpy(other), bits)) != before
        assert int(short_hash(sums.flip(0), bits)) != before
