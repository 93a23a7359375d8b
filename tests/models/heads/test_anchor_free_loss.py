"""The anchor-free head's loss against a literal reference and its finite differences."""

from __future__ import annotations

import random

import pytest
import torch

from rankless.geometry.boxes import SIMILARITIES
from support.loss_cases import CASES, assert_gradients
from support.reference_for_anchor_free import (
    HARD,
    LOSS_IDS,
    LOSSES,
    STRIDES,
    TRUTHS,
    case,
    heads_of,
    loss_of,
    make_batch,
    make_raw,
    reference,
)
from support.thorough import THOROUGH


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES, ids=LOSS_IDS)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("bins", [0, 6])
def test_equals_the_literal_reference(loss, name, bins):
    batch = case(name)
    for seed in range(2):
        raw = make_raw(bins, 2, seed)
        found = loss(raw, heads_of(bins), batch)
        parts, count = reference(loss, raw, STRIDES, bins, batch)
        assert {key: part.item() for key, part in found.parts.items()} == pytest.approx(parts, rel=1e-9)
        assert found.sum.item() == pytest.approx(sum(parts.values()), rel=1e-9)
        assert found.count.item() == pytest.approx(count, rel=1e-9)
        assert not found.count.requires_grad


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES, ids=LOSS_IDS)
@pytest.mark.parametrize("name", ["random", "hard", "ignored"] if THOROUGH else ["ignored"])
@pytest.mark.parametrize("bins", [0, 6])
def test_gradient_is_the_references_finite_differences(loss, name, bins):
    """Of the assignment no gradient flows: the reference keeps that of the middle."""
    batch = case(name)
    raw = [value.requires_grad_() for value in make_raw(bins, 2, 8)]
    loss(raw, heads_of(bins), batch).sum.backward()
    fixed = []
    reference(loss, raw, STRIDES, bins, batch, fixed)
    assert_gradients(
        raw, lambda values: sum(reference(loss, values, STRIDES, bins, batch, fixed)[0].values()), 6, 3
    )


@pytest.mark.slow
@pytest.mark.parametrize("bins", [0, 6])
@pytest.mark.parametrize("box_loss", SIMILARITIES)
@pytest.mark.parametrize("value", [0.0, 30.0, -30.0, 1e4, -1e4])
def test_a_training_that_ran_away_still_has_a_finite_gradient(box_loss, value, bins):
    raw = [torch.full_like(r, value).requires_grad_() for r in make_raw(bins, 2, 3, torch.float32)]
    found = loss_of(box_loss=box_loss)(raw, heads_of(bins), case("hard"))
    found.sum.backward()
    assert found.sum.isfinite() and found.count.isfinite()
    assert all(r.grad.isfinite().all() for r in raw)


@pytest.mark.parametrize("loss", LOSSES, ids=LOSS_IDS)
def test_a_box_without_end_where_nothing_is_disturbs_nothing(loss):
    raw = make_raw(0, 1, 3, torch.float32)
    raw[0][0, 0, -1, -1] = 3e38  # times the stride it is infinite
    raw = [r.requires_grad_() for r in raw]
    found = loss(raw, heads_of(0), make_batch([[([4.0, 4.0, 30.0, 30.0], 1)]]))
    found.sum.backward()
    assert found.sum.isfinite() and found.count > 0
    assert all(r.grad.isfinite().all() for r in raw)


@pytest.mark.parametrize("loss", LOSSES, ids=LOSS_IDS)
def test_padding_and_the_truths_order_change_no_bit(loss):
    listed = HARD + TRUTHS.drawn(random.Random(5), 40)
    raw = [r.requires_grad_() for r in make_raw(6, 2, 4, torch.float32)]

    def bits(batch):
        found = loss(raw, heads_of(6), batch)
        return [found.sum, found.count, *torch.autograd.grad(found.sum, raw)]

    shuffled = random.Random(2).sample(listed, len(listed))
    for one, other in zip(
        bits(make_batch([listed, []])), bits(make_batch([shuffled, []], padding=17)), strict=True
    ):
        assert torch.equal(one, other)
