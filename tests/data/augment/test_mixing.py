"""Mixed images: the target says what the image is made of."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rankless.data.augment.mixing import cutmix, mixup, target_of

WHITE = (torch.full((3, 40, 60), 255, dtype=torch.uint8), target_of(1, 4))
BLACK = (torch.zeros(3, 40, 60, dtype=torch.uint8), target_of(3, 4))


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_a_blend_is_as_bright_as_its_target_says(alpha):
    shares = []
    for number in range(300):
        image, target = mixup(WHITE, BLACK, alpha, np.random.default_rng(number))
        assert image.dtype == torch.uint8 and image.unique().numel() == 1
        assert target.sum().item() == pytest.approx(1) and target[[0, 2]].eq(0).all()
        assert image[0, 0, 0].item() / 255 == pytest.approx(target[1].item(), abs=0.5 / 255 + 1e-6)
        shares.append(target[1].item())
    # Beta(α, α): mean 1/2, variance 1 / (4 (2 α + 1))
    assert np.mean(shares) == pytest.approx(0.5, abs=0.08)
    assert np.var(shares) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.25)


@pytest.mark.slow
def test_a_cut_covers_what_its_target_says():
    shares, columns = [], torch.zeros(60)
    for number in range(400):
        image, target = cutmix(WHITE, BLACK, 1.0, np.random.default_rng(number))
        assert set(image.unique().tolist()) <= {0, 255}
        assert (image[0] == 255).float().mean().item() == pytest.approx(target[1].item(), abs=1e-6)
        assert target.sum().item() == pytest.approx(1)
        black = (image[0] == 0).nonzero()
        if len(black):
            (top, left), (bottom, right) = black.min(0).values, black.max(0).values
            assert len(black) == (bottom - top + 1) * (right - left + 1)  # one rectangle
        shares.append(target[1].item())
        columns += (image[0] == 0).float().mean(0)
    assert 0.5 < np.mean(shares) < 0.75  # λ's mean is 1/2, and what lies outside is not cut
    assert (columns > 0).all()
    assert WHITE[0].eq(255).all() and BLACK[0].eq(0).all()  # nobody else's image was changed
