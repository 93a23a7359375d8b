"""How a picture fills a classifier's input: placed whole or cropped, and how training varies it.

Without a random crop the whole picture is stretched onto the input. With one, evaluation and prediction take
the middle, as published for ImageNet: a network that learned from crops has seen its subjects larger.

Chance is keyed. Torchvision's random transforms draw from torch's global generator, so each part runs on a
seed of its own and the generator's state is put back; switching one part off leaves the others as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as TF

from rankless.data.augment import colour_matrix, recolour
from rankless.data.letterbox import GREY
from rankless.randomness import generator, torch_seed
from rankless.recipe import Augment

MARGIN = 256 / 224
"""The picture is resized so much larger than the input before its middle is taken."""
_ASPECTS = (3 / 4, 4 / 3)  # of random crops, width to height (Szegedy et al., 2015)
_POLICIES = {
    # Two operations of strength 9 of 30 (Cubuk et al., 2020); one of any strength (Müller and Hutter, 2021).
    "randaugment": v2.RandAugment(num_ops=2, magnitude=9, fill=GREY),
    "trivialaugment": v2.TrivialAugmentWide(fill=GREY),
}

Key = tuple[int, str, int, int]
"""(seed, "augment", epoch, index): what one variation is a function of."""


@contextmanager
def _drawing(key: Key, part: str) -> Iterator[None]:
    """Inside, torch's CPU generator draws what ``key`` and ``part`` say; outside nothing is noticed."""
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would seed the GPUs as well.
        torch.default_generator.manual_seed(torch_seed(*key, part))
        yield


@contextmanager
def _one_thread() -> Iterator[None]:
    """Inside, one thread, as in a loader process: some operations may add in an order that depends on it."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def place(image: Tensor, size: tuple[int, int], *, cropped: bool) -> Tensor:
    """The picture on the input as in evaluation and prediction.

    Args:
        image: uint8, (3, h, w).
        size: the input's (H, W) in pixels.
        cropped: resized, aspect kept, to cover 256/224 of the input, whose middle is taken; else stretched.

    Returns:
        uint8 (3, H, W).
    """
    if not cropped:
        return _resize(image, size)
    height, width = image.shape[-2:]
    scale = max(round(size[0] * MARGIN) / height, round(size[1] * MARGIN) / width)
    # Never smaller than the input, and the shorter side exactly as asked.
    larger = (max(size[0], round(height * scale)), max(size[1], round(width * scale)))
    middle: Tensor = TF.center_crop(_resize(image, larger), list(size))
    return middle


@_one_thread()
def vary(image: Tensor, size: tuple[int, int], options: Augment, key: Key) -> Tensor:
    """One variation of a picture on the input; with everything off it is ``place``'s, bit for bit.

    In this order: random crop, mirror images, zoom and shift, colour, policy, erasing.

    Args:
        image: uint8, (3, h, w).
        size: the input's (H, W) in pixels.
        options: how much of what.
        key: decides the variation.

    Returns:
        uint8 (3, H, W).
    """
    chance = generator(*key)
    mirrored, upside_down = chance.random() < options.flip, chance.random() < options.flip_vertical
    hue, saturation, value, zoom, shift_x, shift_y = chance.uniform(-1, 1, 6).tolist()
    if options.crop < 1:
        with _drawing(key, "crop"):
            top, left, height, width = _crop(image, options.crop)
        image = image[:, top : top + height, left : left + width]
    varied = _resize(image, size)
    if mirrored:
        varied = varied.flip(-1)
    if upside_down:
        varied = varied.flip(-2)
    if options.scale or options.translate:
        shift = [shift_x * options.translate * size[1], shift_y * options.translate * size[0]]
        varied = _zoom_and_shift(varied, (1 + options.scale) ** zoom, shift)
    if options.hue or options.saturation or options.value:
        factors = (1 + options.saturation) ** saturation, (1 + options.value) ** value
        varied = recolour(varied, colour_matrix(hue * options.hue, *factors))
    if options.policy != "none":
        with _drawing(key, "policy"):
            varied = _POLICIES[options.policy](varied)
    if options.erase:
        with _drawing(key, "erase"):
            varied = v2.RandomErasing(options.erase, value=GREY)(varied)
    return varied


def _crop(image: Tensor, smallest: float) -> tuple[int, int, int, int]:
    """(top, left, height, width) of a random part: an even share of the area, a log-even aspect.

    Ten trials; then the largest middle part whose aspect is allowed (Szegedy et al., 2015).
    """
    transform = v2.RandomResizedCrop(1, scale=(smallest, 1.0), ratio=_ASPECTS)
    found = transform.make_params([image])
    return found["top"], found["left"], found["height"], found["width"]


def _zoom_and_shift(image: Tensor, zoom: float, shift: list[float]) -> Tensor:
    """Zoomed about the middle and shifted by pixels (x, y); what comes in from outside is grey."""
    moved: Tensor = TF.affine(
        image,
        angle=0.0,
        translate=shift,
        scale=zoom,
        shear=[0.0, 0.0],
        interpolation=InterpolationMode.BILINEAR,
        fill=[float(GREY)] * 3,
    )
    return moved


def _resize(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Bilinear and antialiased, on uint8."""
    if tuple(image.shape[-2:]) == tuple(size):
        return image
    resized: Tensor = TF.resize(image, list(size), antialias=True)
    return resized
