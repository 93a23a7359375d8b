"""Degrade images as cameras and storage do: blur, noise and JPEG artifacts. Boxes do not change."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from rankless.hardware.threads import one_thread
from rankless.randomness import GENERATORS, generator, torch_seed
from rankless.recipe.schema import Augment

SIGMA = (0.5, 2.0)
"""The range of the blur's sigma, in pixels of the input."""
NOISE = (0.01, 0.06)
"""The range of the noise's standard deviation, as a fraction of 255."""
QUALITY = (10, 60)
"""The range of the JPEG quality, both ends included."""
Key = tuple[int, str, int, int]
"""The key of an image's random draws in one epoch: (seed, "augment", epoch, index)."""


@contextmanager
def drawing(key: Key, part: str) -> Iterator[None]:
    """Seed torch's CPU generator with ``key`` and ``part``, and restore its state on exit.

    Torchvision's random transforms draw from this generator. Turning one part off does not change the others.
    """
    with GENERATORS, torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would seed the GPUs as well.
        torch.default_generator.manual_seed(torch_seed(*key, part))
        yield


@one_thread()
def degrade(image: Tensor, options: Augment, key: Key) -> Tensor:
    """Randomly blur an input, uint8 (3, H, W), add noise to it and compress it.

    ``options`` gives the probability of each step, and ``key`` seeds the draws. If no step is applied,
    ``image`` itself is returned.
    """
    if not (options.blur or options.noise or options.jpeg):
        return image
    from torchvision.transforms.v2 import functional as TF  # importing it takes as long as importing torch

    rng = generator(*key, "degrade")
    blurred, noisy, compressed = (rng.random(3) < (options.blur, options.noise, options.jpeg)).tolist()
    sigma, deviation = (float(rng.uniform(*limits)) for limits in (SIGMA, NOISE))
    quality = int(rng.integers(QUALITY[0], QUALITY[1] + 1))
    if blurred:
        # Three standard deviations to either side, but torchvision's mirrored border must be shorter than the
        # side.
        radius = min(round(3 * sigma), min(image.shape[-2:]) - 1)
        image = TF.gaussian_blur(image, [2 * radius + 1] * 2, [sigma] * 2)
    if noisy:
        with drawing(key, "noise"):
            image = TF.gaussian_noise(image, sigma=deviation)
    return _compressed(image, quality) if compressed else image


def _compressed(image: Tensor, quality: int) -> Tensor:
    """Encode and decode an image as JPEG, with Pillow because torchvision's JPEG is deprecated since 0.29."""
    file = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).save(file, "JPEG", quality=quality)
    return torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1).contiguous()
