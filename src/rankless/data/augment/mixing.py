"""Mix two images of the same size, and their targets."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

Example = tuple[Tensor, Tensor]  # an image, uint8 (3, H, W), and its target, float32 (C,)


def target_of(label: int, classes: int) -> Tensor:
    """Return the one-hot target, float32 (C,), of a class."""
    target = torch.zeros(classes)
    target[label] = 1
    return target


def mixup(one: Example, other: Example, alpha: float, rng: np.random.Generator) -> Example:
    """Blend two examples with weights λ and 1 - λ, where λ ~ Beta(α, α) (Zhang et al., "mixup", 2018)."""
    weight = float(rng.beta(alpha, alpha))
    return blended(one[0], other[0], weight), _blend(one[1], other[1], weight)


def blended(one: Tensor, other: Tensor, weight: float) -> Tensor:
    """Return the mean of two uint8 images, weighted by ``weight`` and 1 - ``weight``."""
    sum_ = one.numpy() * np.float32(weight) + other.numpy() * np.float32(1 - weight)
    return torch.from_numpy(np.rint(sum_).astype(np.uint8))


def cutmix(one: Example, other: Example, alpha: float, rng: np.random.Generator) -> Example:
    """Paste a rectangle of another image at the same position (Yun et al., "CutMix", 2019).

    The rectangle has the aspect ratio of the image and covers a fraction 1 - λ of its area, where
    λ ~ Beta(α, α). Its center is uniformly distributed over the image. The area of the visible part
    determines the target.
    """
    weight = float(rng.beta(alpha, alpha))
    height, width = one[0].shape[-2:]
    side = math.sqrt(1 - weight) / 2
    x, y = rng.random(2).tolist()
    left, right = (min(max(round((x + edge) * width), 0), width) for edge in (-side, side))
    top, bottom = (min(max(round((y + edge) * height), 0), height) for edge in (-side, side))
    image = one[0].clone()
    image[:, top:bottom, left:right] = other[0][:, top:bottom, left:right]
    return image, _blend(one[1], other[1], 1 - (right - left) * (bottom - top) / (width * height))


def _blend(one: Tensor, other: Tensor, weight: float) -> Tensor:
    return weight * one + (1 - weight) * other
