"""The losses of single logits against torchvision, the papers' formulas, and finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torchvision.ops import sigmoid_focal_loss

from rankless.losses.logits import focal, quality_focal

ALPHAS = [None, 0.25, 0.0, 1.0]


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 5.0])
def test_focal_equals_torchvision(gamma, alpha):
    logits = torch.linspace(-8, 8, 41, dtype=torch.float64)
    for yes in (False, True):
        present = torch.full_like(logits, yes, dtype=torch.bool)
        expected = sigmoid_focal_loss(logits, present.double(), -1 if alpha is None else alpha, gamma)
        torch.testing.assert_close(focal(logits, present, gamma, alpha), expected)


@given(st.floats(-12, 12), st.floats(0, 1), st.floats(0, 4), st.sampled_from(ALPHAS), st.booleans())
def test_quality_focal_equals_the_papers_formula(logit, y, gamma, alpha, present):
    p = 1 / (1 + math.exp(-logit))
    assume(abs(y - p) > 1e-6)  # nearer ones are taken for so far, for the gradient's sake
    expected = -(abs(y - p) ** gamma) * ((1 - y) * math.log(1 - p) + y * math.log(p))
    expected *= 1 if alpha is None else alpha if present else 1 - alpha
    given_ = (torch.tensor(value, dtype=torch.float64) for value in (logit, y))
    found = quality_focal(*given_, torch.tensor(present), gamma, alpha)
    assert found.item() == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 3.5])
def test_gradients_are_finite_differences(gamma):
    logits = torch.linspace(-6, 6, 24, dtype=torch.float64, requires_grad=True)
    present = torch.arange(24) % 3 == 0
    quality = torch.where(present, torch.linspace(0.05, 0.95, 24, dtype=torch.float64), 0)
    assert torch.autograd.gradcheck(lambda x: focal(x, present, gamma, 0.3), logits)
    assert torch.autograd.gradcheck(lambda x: quality_focal(x, quality, present, gamma, 0.3), logits)


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("size", [0.0, 17.0, 60.0, 1e4])
def test_the_surest_logits_have_finite_losses_and_gradients(gamma, size):
    for yes in (False, True):
        logits = torch.tensor([-size, size], requires_grad=True)  # float32: σ is 0 and 1 from 17 on
        present = torch.tensor([yes, yes])
        wrong = 0 if yes else 1
        for loss in (
            focal(logits, present, gamma),
            quality_focal(logits, present.float(), present, gamma),
            quality_focal(logits, logits.detach().sigmoid(), present, gamma),
        ):
            (gradient,) = torch.autograd.grad(loss.sum(), logits)
            assert loss.isfinite().all() and gradient.isfinite().all()
        if size > 10:
            hard = focal(logits, present, gamma)
            assert hard[wrong].item() == pytest.approx(size, rel=1e-6)  # nothing of a wrong answer is lost
            assert hard[1 - wrong].item() < 1e-6
