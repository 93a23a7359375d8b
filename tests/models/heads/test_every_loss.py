"""What holds for the loss of every head: images add up, precision, and what devices can do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from rankless.structures import DetectionBatch, LossSum
from support import reference_for_anchor_free as anchor_free
from support import reference_for_yolo as yolo
from support.loss_cases import Truths


@dataclass(frozen=True)
class Kind:
    """A loss with its heads.

    Attributes:
        loss: of outputs and a batch.
        raw: outputs for a number of images, drawn with a seed, of a type.
        taught: the channels of an output that learn something where nothing is.
    """

    loss: Callable[[list[Tensor], DetectionBatch], LossSum]
    raw: Callable[..., list[Tensor]]
    truths: Truths
    taught: Sequence[int]


def of_yolo(loss: Any) -> Kind:
    each = 5 + yolo.CLASSES
    return Kind(lambda raw, batch: loss(raw, yolo.HEADS, batch), yolo.make_raw, yolo.TRUTHS, (4, each + 4))


def without_anchors(loss: Any, bins: int) -> Kind:
    heads, classes = anchor_free.heads_of(bins), anchor_free.CLASSES
    first = 4 * max(bins, 1)
    return Kind(
        lambda raw, batch: loss(raw, heads, batch),
        partial(anchor_free.make_raw, bins),
        anchor_free.TRUTHS,
        range(first, first + classes),
    )


KINDS = {name: of_yolo(loss) for name, loss in zip(yolo.LOSS_IDS, yolo.LOSSES, strict=True)}
for bins in (0, 6):
    for name, loss in zip(anchor_free.LOSS_IDS, anchor_free.LOSSES, strict=True):
        KINDS[f"anchor-free-{name}-{bins}"] = without_anchors(loss, bins)
every = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@every
@pytest.mark.parametrize("truths", [0, 3])
def test_without_positives_all_is_finite_and_connected(kind: Kind, truths: int) -> None:
    batch = kind.truths.batch([[], []], padding=truths)
    raw = [r.requires_grad_() for r in kind.raw(2, 3, torch.float32)]
    found = kind.loss(raw, batch)
    found.sum.backward()
    assert found.sum.isfinite() and found.parts["box"] == 0
    for r in raw:
        assert r.grad is not None and r.grad.isfinite().all()
        idle = [channel for channel in range(r.shape[1]) if channel not in kind.taught]
        assert (r.grad[:, list(kind.taught)] > 0).all() and (r.grad[:, idle] == 0).all()


@every
def test_half_precision_outputs_are_computed_in_float32(kind: Kind) -> None:
    batch = kind.truths.case("hard")
    raw = kind.raw(2, 6, torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        found = kind.loss(raw, batch)
    assert found.sum.dtype == torch.float32
    assert torch.equal(found.sum, kind.loss([r.float() for r in raw], batch).sum)


@pytest.mark.slow
@every
def test_never_asks_the_device_for_a_value(kind: Kind) -> None:
    # On the meta device there are no values: whatever needed one would fail.
    batch = kind.truths.case("ignored").to(torch.device("meta"))
    raw = [r.to("meta").requires_grad_() for r in kind.raw(2, 0, torch.float32)]
    found = kind.loss(raw, batch)
    found.sum.backward()
    assert found.sum.shape == found.count.shape == ()
    assert raw[0].grad is not None and raw[0].grad.shape == raw[0].shape


@every
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_with_deterministic_algorithms_it_repeats_bit_for_bit(kind: Kind, device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    batch = kind.truths.case("crowded")
    plain = kind.loss(kind.raw(2, 2, torch.float32), batch).sum
    torch.use_deterministic_algorithms(True)
    try:
        runs = []
        for _ in range(2):
            raw = [r.to(device).requires_grad_() for r in kind.raw(2, 2, torch.float32)]
            found = kind.loss(raw, batch.to(torch.device(device)))
            runs.append([found.sum, *torch.autograd.grad(found.sum, raw)])
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))
    assert runs[0][0].item() == pytest.approx(plain.item(), rel=1e-4 if device == "cuda" else 0)
    with torch.inference_mode():
        assert torch.equal(
            kind.loss([r.detach() for r in raw], batch.to(torch.device(device))).sum, runs[0][0]
        )
