"""The losses of classifiers against torch's own, float64 written out, and finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor, nn

from rankless.errors import UserError
from rankless.losses.classify import ClassificationLoss, from_recipe
from rankless.recipe.loss_kinds import CrossEntropyLoss, FocalLoss, Loss

WEIGHTS = (0.5, 2.0, 1.0, 0.0, 3.0)


def batch(count: int = 7, classes: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(count, classes, generator=rng), torch.randint(classes, (count,), generator=rng))


def one_hot(labels: Tensor, classes: int = 5) -> Tensor:
    return nn.functional.one_hot(labels, classes).float()


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_mean_is_torchs(weights, smoothing):
    """Torch's path for class numbers, which divides by the weights of the targets."""
    logits, labels = batch()
    theirs = nn.CrossEntropyLoss(
        weight=None if weights is None else torch.tensor(weights), label_smoothing=smoothing
    )(logits, labels)
    ours = ClassificationLoss(CrossEntropyLoss(smoothing=smoothing), weights)(logits, one_hot(labels))
    torch.testing.assert_close(ours.sum / ours.count, theirs)


@settings(settings.get_profile("files"))
@given(st.integers(1, 6), st.integers(0, 1000), st.sampled_from(["cross-entropy", "focal"]))
def test_how_a_batch_is_cut_does_not_matter(cut, seed, name):
    logits, labels = batch(seed=seed)
    loss = ClassificationLoss(Loss(name=name, smoothing=0.1), WEIGHTS)
    whole = loss(logits, one_hot(labels))
    parts = [loss(logits[piece], one_hot(labels[piece])) for piece in (slice(cut), slice(cut, None))]
    torch.testing.assert_close(parts[0].sum + parts[1].sum, whole.sum)
    torch.testing.assert_close(parts[0].count + parts[1].count, whole.count)


def written_out(
    logits: Tensor, targets: Tensor, gamma: float, smoothing: float, weights
) -> tuple[float, float]:
    """Both losses in float64, number by number."""
    total = count = 0.0
    for row, target in zip(logits.tolist(), targets.tolist(), strict=True):
        normal = math.fsum(math.exp(x) for x in row)
        p = [math.exp(x) / normal for x in row]
        smooth = [y * (1 - smoothing) + smoothing / len(row) for y in target]
        entropy = -math.fsum(w * y * math.log(q) for w, y, q in zip(weights, smooth, p, strict=True))
        right = math.fsum(y * q for y, q in zip(target, p, strict=True))
        total += (1 - right) ** gamma * entropy
        count += math.fsum(w * y for w, y in zip(weights, target, strict=True))
    return total, count


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_focal_loss_is_its_formula(gamma, smoothing):
    logits, labels = batch()
    mixed = 0.3 * one_hot(labels) + 0.7 * one_hot(labels.roll(1))
    for targets in (one_hot(labels), mixed):
        for weights in (None, WEIGHTS):
            loss = ClassificationLoss(FocalLoss(gamma=gamma, smoothing=smoothing), weights)(logits, targets)
            expected = written_out(logits.double(), targets.double(), gamma, smoothing, weights or [1.0] * 5)
            assert (loss.sum.item(), loss.count.item()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        CrossEntropyLoss(smoothing=0.1),
        FocalLoss(gamma=0.5, smoothing=0.1),
        FocalLoss(gamma=2.0, smoothing=0.1),
    ],
)
def test_gradients_are_those_of_finite_differences(options):
    logits, labels = batch(3)
    targets = 0.6 * one_hot(labels) + 0.4 * one_hot(labels.roll(1))
    loss = ClassificationLoss(options)  # computes in float32, so the steps are large
    given = logits.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss(x, targets).sum.double(), given, eps=1e-2, atol=1e-3)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_sure_answers_have_finite_gradients(gamma):
    logits = torch.tensor([[500.0, -500.0], [-500.0, 500.0], [30.0, -30.0]], requires_grad=True)
    loss = ClassificationLoss(FocalLoss(gamma=gamma))(logits, one_hot(torch.tensor([0, 0, 0]), 2))
    loss.sum.backward()
    assert loss.sum.isfinite() and logits.grad is not None and logits.grad.isfinite().all()


def test_half_precision_is_computed_in_float32():
    logits, labels = batch()
    loss = ClassificationLoss()(logits.bfloat16(), one_hot(labels))
    assert loss.sum.dtype == torch.float32
    torch.testing.assert_close(loss.sum, ClassificationLoss()(logits.bfloat16().float(), one_hot(labels)).sum)


def test_from_a_recipe():
    counts = [10, 30, 20]
    assert from_recipe(CrossEntropyLoss(), counts) == ClassificationLoss()
    options = FocalLoss(gamma=1.5, smoothing=0.1, class_weights=(1.0, 2.0, 0.5))
    assert from_recipe(options, counts) == ClassificationLoss(options, (1.0, 2.0, 0.5))
    balanced = from_recipe(CrossEntropyLoss(class_weights="balanced"), counts).class_weights
    assert balanced == pytest.approx([2.0, 2 / 3, 1.0])
    theirs = compute_class_weight("balanced", classes=np.arange(3), y=np.repeat(np.arange(3), counts))
    assert balanced == pytest.approx(theirs.tolist())


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ((1.0, 2.0), "has 2 numbers; expected 3"),
        ((0.0, 0.0, 0.0), "are all 0"),
        ("balanced", r"1 class has no training images \(1\)"),
    ],
)
def test_weights_that_do_not_fit(weights, words):
    with pytest.raises(UserError, match=words):
        from_recipe(CrossEntropyLoss(class_weights=weights), [3, 0, 2])


def test_the_part_top1_becomes_the_fraction_of_right_images():
    """Divided by the count, as the journal and the progress line divide every part."""
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [0.0, 1.0, 4.0], [5.0, 0.0, 0.0]])
    targets = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.7, 0.3, 0.0]])  # one mixed
    for weights in (None, (1.0, 2.0, 3.0)):
        found = ClassificationLoss(class_weights=weights)(logits, targets)
        assert float(found.parts["top1"] / found.count) == pytest.approx(0.75)
        assert not found.parts["top1"].requires_grad
