"""The anchor-free head's loss against a literal reference and its finite differences."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
import torch

from rankless.geometry.boxes import SIMILARITIES
from rankless.models.heads.anchor_free.codec import AnchorFreeHead
from rankless.models.heads.anchor_free.loss import AnchorFreeLoss
from rankless.recipe import loss_kinds
from rankless.structures import DetectionBatch

sys.path.insert(0, str(Path(__file__).parent))
from reference_for_anchor_free import (
    STRIDES,
    case,
    hard_truths,
    make_batch,
    make_raw,
    random_truths,
    reference,
)


def loss_of(**options) -> AnchorFreeLoss:
    """The loss with these options."""
    return AnchorFreeLoss(loss_kinds.AnchorFreeLoss(**options))


LOSSES = [
    AnchorFreeLoss(),
    loss_of(assign="simota", box_loss="iou", box=5.0, classes=0.5, dfl=1.5),
    loss_of(assign="task-aligned", box_loss="iou", box=0.7, classes=2.0, dfl=0.3, smoothing=0.1),
]
LOSS_IDS = ["plain", "simota", "smooth"]
CASES = ["random", "hard", "crowded", "one-empty", "empty"]


def heads_of(bins):
    return [AnchorFreeHead(stride, bins) for stride in STRIDES]


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
@pytest.mark.parametrize("name", ["random", "hard"])
@pytest.mark.parametrize("bins", [0, 6])
def test_gradient_is_the_references_finite_differences(loss, name, bins):
    """Of the assignment no gradient flows: the reference keeps that of the middle."""
    batch = case(name)
    values = make_raw(bins, 2, 8)
    raw = [value.clone().requires_grad_() for value in values]
    loss(raw, heads_of(bins), batch).sum.backward()
    fixed = []
    reference(loss, values, STRIDES, bins, batch, fixed)
    rng = random.Random(1)
    step = 1e-5
    for value, one in zip(values, raw, strict=True):
        flat = value.view(-1)
        steep = one.grad.flatten().abs().topk(6).indices.tolist()
        for index in {*steep, *rng.sample(range(one.numel()), 3)}:
            middle = flat[index].item()
            sides = []
            for side in (step, -step):
                flat[index] = middle + side
                parts, _ = reference(loss, values, STRIDES, bins, batch, fixed)
                sides.append(sum(parts.values()))
            flat[index] = middle
            difference = (sides[0] - sides[1]) / (2 * step)
            assert one.grad.view(-1)[index].item() == pytest.approx(difference, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("bins", [0, 6])
@pytest.mark.parametrize("truths", [0, 3])
@pytest.mark.parametrize("loss", LOSSES, ids=LOSS_IDS)
def test_without_positives_all_is_finite_and_connected(loss, truths, bins):
    batch = DetectionBatch(
        torch.zeros(2, 3, 64, 96, dtype=torch.uint8),
        torch.zeros(2, truths, 4),
        torch.zeros(2, truths, dtype=torch.int64),
        torch.zeros(2, truths, dtype=torch.bool),
        [0, 1],
        [],
    )
    raw = [r.requires_grad_() for r in make_raw(bins, 2, 3, torch.float32)]
    found = loss(raw, heads_of(bins), batch)
    found.sum.backward()
    assert found.sum.isfinite()
    assert found.count == 0
    assert found.parts["box"] == 0
    for r in raw:
        assert r.grad.isfinite().all()
        assert (r.grad[:, -3:] > 0).all()
        assert (r.grad[:, :-3] == 0).all()


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
    listed = hard_truths() + random_truths(random.Random(5), 40)
    raw = [r.requires_grad_() for r in make_raw(6, 2, 4, torch.float32)]

    def bits(batch):
        found = loss(raw, heads_of(6), batch)
        return [found.sum, found.count, *torch.autograd.grad(found.sum, raw)]

    shuffled = random.Random(2).sample(listed, len(listed))
    for one, other in zip(
        bits(make_batch([listed, []])), bits(make_batch([shuffled, []], padding=17)), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize("loss", LOSSES, ids=LOSS_IDS)
def test_a_batch_is_the_sum_of_its_images(loss):
    lists = [hard_truths(), random_truths(random.Random(2), 4), []]
    raw = make_raw(0, 3, 9)
    whole = loss(raw, heads_of(0), make_batch(lists))
    single = [loss([r[[b]] for r in raw], heads_of(0), make_batch([lists[b]])) for b in range(3)]
    assert whole.sum.item() == pytest.approx(sum(one.sum.item() for one in single), rel=1e-12)
    assert whole.count.item() == pytest.approx(sum(one.count.item() for one in single), rel=1e-12)


@pytest.mark.parametrize("bins", [0, 6])
@pytest.mark.parametrize("loss", LOSSES, ids=LOSS_IDS)
def test_half_precision_outputs_are_computed_in_float32(loss, bins):
    batch = case("hard")
    raw = [r.to(torch.bfloat16) for r in make_raw(bins, 2, 6)]
    with torch.autocast("cpu", torch.bfloat16):
        found = loss(raw, heads_of(bins), batch)
    expected = loss([r.float() for r in raw], heads_of(bins), batch)
    assert found.sum.dtype == torch.float32
    assert torch.equal(found.sum, expected.sum)


@pytest.mark.slow
@pytest.mark.parametrize("bins", [0, 6])
@pytest.mark.parametrize("loss", LOSSES, ids=LOSS_IDS)
def test_never_asks_the_device_for_a_value(loss, bins):
    # On the meta device there are no values: whatever needed one would fail.
    batch = case("hard").to(torch.device("meta"))
    raw = [r.to("meta").requires_grad_() for r in make_raw(bins, 2, 0, torch.float32)]
    found = loss(raw, heads_of(bins), batch)
    found.sum.backward()
    assert found.sum.shape == found.count.shape == ()
    assert raw[0].grad.shape == raw[0].shape


@pytest.mark.parametrize("loss", LOSSES, ids=LOSS_IDS)
def test_runs_with_deterministic_algorithms_and_without_gradients(loss):
    batch = case("crowded")
    raw = [r.requires_grad_() for r in make_raw(6, 2, 2, torch.float32)]
    plain = loss(raw, heads_of(6), batch).sum
    torch.use_deterministic_algorithms(True)
    try:
        found = loss(raw, heads_of(6), batch).sum
        found.backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(found, plain)
    with torch.inference_mode():
        assert torch.equal(loss(raw, heads_of(6), batch).sum, plain)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("loss", LOSSES, ids=LOSS_IDS)
def test_on_a_gpu_it_is_the_same_loss_and_repeats_bit_for_bit(loss):
    batch = case("crowded")
    raw = make_raw(6, 2, 2, torch.float32)
    here = loss(raw, heads_of(6), batch)
    device = torch.device("cuda")
    torch.use_deterministic_algorithms(True)
    try:
        runs = []
        for _ in range(3):
            there = [r.to(device).requires_grad_() for r in raw]
            found = loss(there, heads_of(6), batch.to(device))
            runs.append([found.sum, *torch.autograd.grad(found.sum, there)])
    finally:
        torch.use_deterministic_algorithms(False)
    assert runs[0][0].item() == pytest.approx(here.sum.item(), rel=1e-4)
    for run in runs[1:]:
        assert all(torch.equal(one, other) for one, other in zip(run, runs[0], strict=True))
