"""Blur, noise and JPEG: as often and as much as they are called, keyed, and nothing moves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter1d

from rankless.data.augment.degrade import degrade
from rankless.recipe.schema import Augment

OFF = Augment(preset="none")


def key(index: int, epoch: int = 0) -> tuple[int, str, int, int]:
    return 7, "augment", epoch, index


def noise() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 64, 80), dtype=np.uint8))


def test_off_is_the_image_itself() -> None:
    image = noise()
    assert degrade(image, OFF, key(1)) is image


@pytest.mark.slow
@pytest.mark.parametrize("part", ["blur", "noise", "jpeg"])
def test_each_part_is_as_frequent_as_it_is_called_and_keyed(part: str) -> None:
    image = noise()
    before = image.clone()
    options = Augment(preset="none", **{part: 0.3})
    state = torch.get_rng_state()
    first = [degrade(image, options, key(index)) for index in range(200)]
    changed = sum(not torch.equal(one, image) for one in first)
    assert 35 < changed < 85  # 60, standard deviation 6.5
    assert torch.equal(image, before) and torch.equal(torch.get_rng_state(), state)
    again = [degrade(image, options, key(index)) for index in reversed(range(200))][::-1]
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    always = Augment(preset="none", **{part: 1.0})
    assert not torch.equal(degrade(image, always, key(1)), degrade(image, always, key(1, epoch=1)))


def test_the_blur_is_a_gaussian_of_half_to_two_pixels() -> None:
    image = torch.zeros(3, 65, 65, dtype=torch.uint8)
    image[:, :, 32:] = 255
    for index in range(20):
        edge = degrade(image, Augment(preset="none", blur=1.0), key(index))[0, 32].numpy().astype(float)
        step = np.where(np.arange(65) >= 32, 255.0, 0.0)
        errors = [np.abs(gaussian_filter1d(step, sigma) - edge).max() for sigma in np.arange(0.3, 2.3, 0.02)]
        sigma = np.arange(0.3, 2.3, 0.02)[int(np.argmin(errors))]
        assert min(errors) < 4 and 0.45 < sigma < 2.05


def test_the_noise_has_its_deviation_and_no_bias() -> None:
    image = torch.full((3, 128, 128), 128, dtype=torch.uint8)
    found = [degrade(image, Augment(preset="none", noise=1.0), key(index)).float() for index in range(20)]
    deviations = [float(one.std()) / 255 for one in found]
    assert min(deviations) > 0.009 and max(deviations) < 0.062 and max(deviations) > 2 * min(deviations)
    # gaussian_noise cuts the fraction off instead of rounding: half a step of 255 at most
    assert all(abs(float(one.mean()) - 128) < 1 for one in found)


def test_jpeg_leaves_traces_and_the_image() -> None:
    y, x = np.mgrid[:64, :80]
    smooth = torch.from_numpy(np.stack([x * 3, y * 3, x + y]).astype(np.uint8))
    for index in range(10):
        got = degrade(smooth, Augment(preset="none", jpeg=1.0), key(index))
        assert got.shape == smooth.shape and got.dtype == torch.uint8 and got.is_contiguous()
        difference = (got.float() - smooth.float()).abs()
        assert 0.5 < float(difference.mean()) < 12


def test_small_inputs() -> None:
    options = Augment(preset="none", blur=1.0, noise=1.0, jpeg=1.0)
    assert degrade(noise()[:, :8, :8], options, key(0)).shape == (3, 8, 8)
