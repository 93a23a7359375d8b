"""Degrade images with blur, noise and JPEG artifacts."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from rankless.hardware.cpu_threads import one_thread
from rankless.randomness import GENERATORS, generator, torch_seed
from rankless.recipe.schema import Augment

SIGMA = (0.5, 2.0)  # range of the blur's sigma in pixels of the input
NOISE = (0.01, 0.06)  # range of the noise's standard deviation as a fraction of 255
QUALITY = (10, 60)  # range of the JPEG quality, inclusive
Key = tuple[int, str, int, int]
"""Key of an image's random generators in one epoch: (seed, "augment", epoch, index)."""


@contextmanager
def drawing(key: Key, part: str) -> Iterator[None]:
    """Seed torch's CPU generator, which torchvision's transforms use, and restore its state on exit.

    Each ``part`` of the augmentation has its own seed, so turning one part off does not change the others.
    """
    with GENERATORS, torch.random.fork_rng(devices=[]):
        # torch.manual_seed would seed the GPUs as well.
        torch.default_generator.manual_seed(torch_seed(*key, part))
        yield


@one_thread()
def degrade(image: Tensor, options: Augment, key: Key) -> Tensor:
    """Randomly blur an image, uint8 (3, H, W), add noise to it and compress it."""
    if not (options.blur or options.noise or options.jpeg):
        return image
    from torchvision.transforms.v2 import functional as TF  # as slow to import as torch

    rng = generator(*key, "degrade")
    blurred, noisy, compressed = (rng.random(3) < (options.blur, options.noise, options.jpeg)).tolist()
    sigma, deviation = (float(rng.uniform(*limits)) for limits in (SIGMA, NOISE))
    quality = int(rng.integers(QUALITY[0], QUALITY[1] + 1))
    if blurred:
        # The radius is three standard deviations, but torchvision requires it to be shorter than the side.
        radius = min(round(3 * sigma), min(image.shape[-2:]) - 1)
        image = TF.gaussian_blur(image, [2 * radius + 1] * 2, [sigma] * 2)
    if noisy:
        with drawing(key, "noise"):
            image = TF.gaussian_noise(image, sigma=deviation)
    return _compressed(image, quality) if compressed else image


def _compressed(image: Tensor, quality: int) -> Tensor:
    """Encode and decode an image as JPEG with Pillow, because torchvision's encoder is deprecated."""
    file = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).save(file, "JPEG", quality=quality)
    return torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1).contiguous()
