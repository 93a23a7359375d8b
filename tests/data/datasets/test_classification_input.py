"""A classifier's input: one way for evaluation and prediction, keyed variations for training."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from rankless.data.augment.warp import drawn_warp
from rankless.data.datasets.classification_input import augment, place, shown_as
from rankless.randomness import generator
from rankless.recipe.schema import Augment

OFF = Augment(flip=0, hue=0, saturation=0, value=0, scale=0, translate=0)
EVERYTHING = {
    "flip": 0.5, "flip_vertical": 0.5, "hue": 0.1, "saturation": 0.5, "value": 0.5, "scale": 0.3,
    "translate": 0.2, "crop": 0.3, "policy": "randaugment", "erase": 0.5, "rotate": 20.0, "shear": 10.0,
    "perspective": 0.1, "blur": 0.5, "noise": 0.5, "jpeg": 0.5,
}  # fmt: skip


def image(height: int = 50, width: int = 70) -> torch.Tensor:
    y, x = np.mgrid[:height, :width]
    noise = np.random.default_rng(0).integers(0, 30, (3, height, width))
    planes = np.stack([x * 220 // width, y * 220 // height, (x + y) * 220 // (height + width)])
    return torch.from_numpy((planes + noise).astype(np.uint8))


def key(index: int, epoch: int = 0, seed: int = 0) -> tuple[int, str, int, int]:
    return seed, "augment", epoch, index


def test_a_whole_image_is_stretched_as_pillow_does():
    found = place(image(), (32, 40), cropped=False)
    pil = Image.fromarray(image().permute(1, 2, 0).numpy()).resize((40, 32), Image.Resampling.BILINEAR)
    expected = torch.from_numpy(np.array(pil)).permute(2, 0, 1)
    assert found.dtype == torch.uint8 and found.shape == (3, 32, 40)
    assert (found.int() - expected.int()).abs().max() <= 1
    assert torch.equal(place(image(), (50, 70), cropped=False), image())


@pytest.mark.parametrize("size", [(50, 70), (300, 200), (257, 256), (40, 400), (9, 8)])
def test_the_middle_is_imagenets(size):
    source = image(*size)
    published = v2.Compose([v2.Resize(256, antialias=True), v2.CenterCrop(224)])
    found = place(source, (224, 224), cropped=True)
    assert found.shape == (3, 224, 224)
    # The longer side is rounded there and truncated here or the other way round: half a pixel.
    assert (found.int() - published(source).int()).abs().float().mean() < 3


def test_the_middle_of_other_shapes_covers_the_input():
    for size in [(32, 64), (64, 32), (31, 33)]:
        for source in [(50, 70), (70, 50), (10, 200)]:
            found = place(torch.full((3, *source), 200, dtype=torch.uint8), size, cropped=True)
            assert found.shape == (3, *size) and found.eq(200).all()


def test_with_everything_off_training_sees_what_evaluation_sees():
    for size in [(32, 40), (50, 70)]:
        assert torch.equal(augment(image(), size, OFF, key(3)), place(image(), size, cropped=False))


def test_a_variation_is_a_function_of_seed_epoch_and_image():
    options = Augment(**EVERYTHING)
    first = [augment(image(), (32, 32), options, key(index)) for index in range(8)]
    state = torch.get_rng_state()
    torch.rand(1000)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    again = [augment(image(), (32, 32), options, key(index)) for index in reversed(range(8))]
    assert torch.get_num_threads() == 2
    torch.set_num_threads(threads)
    for one, other in zip(first, reversed(again), strict=True):
        assert one.dtype == torch.uint8 and one.shape == (3, 32, 32)
        assert torch.equal(one, other)
    assert len({one.numpy().tobytes() for one in first}) == 8
    for other in (key(0, epoch=1), key(0, seed=1)):
        assert not torch.equal(augment(image(), (32, 32), options, other), first[0])
    assert not torch.equal(state, torch.get_rng_state())  # by torch.rand alone:
    before = torch.get_rng_state()
    augment(image(), (32, 32), options, key(0))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", EVERYTHING)
def test_each_part_changes_the_image_and_a_missing_one_leaves_the_rest(name):
    options = {**OFF.__dict__, name: EVERYTHING[name] if name not in ("flip", "flip_vertical") else 1.0}
    plain = place(image(), (32, 32), cropped=False)
    changed = [
        not torch.equal(augment(image(), (32, 32), Augment(**options), key(index)), plain)
        for index in range(12)
    ]
    assert sum(changed) >= 3


def test_switching_a_part_off_leaves_the_others_draws():
    halves = torch.zeros(3, 40, 40, dtype=torch.uint8)
    halves[..., :20] = 255

    def mirrored(**options) -> list[bool]:
        chosen = Augment(**{**OFF.__dict__, "flip": 0.5, **options})
        views = [augment(halves, (40, 40), chosen, key(index)) for index in range(40)]
        return [bool(view[0, :, -4:].float().mean() > 127) for view in views]

    alone = mirrored()
    assert 8 < sum(alone) < 32
    assert mirrored(crop=0.9) == alone
    assert mirrored(value=0.2) == alone
    erased = mirrored(erase=0.2, crop=0.9)  # a gray rectangle may hide a side
    assert sum(one != other for one, other in zip(erased, alone, strict=True)) <= 4


def test_crops_keep_at_least_their_share():
    y, x = np.mgrid[:200, :200]
    source = torch.from_numpy(np.stack([x, y, 0 * x]).astype(np.uint8))
    areas = []
    for index in range(200):
        found = augment(source, (64, 64), Augment(**{**OFF.__dict__, "crop": 0.25}), key(index)).float()
        width, height = (float(found[0].max() - found[0].min()), float(found[1].max() - found[1].min()))
        assert 0.68 < width / height < 1.45
        areas.append(width * height / 200**2)
    assert min(areas) > 0.21 and max(areas) > 0.85
    assert np.mean(areas) == pytest.approx(0.6, abs=0.06)  # even from 0.25 to 1, the largest cut a little


def test_shift_and_zoom_are_as_large_as_they_are_called():
    white = torch.full((3, 100, 100), 255, dtype=torch.uint8)
    for index in range(30):
        found = augment(white, (100, 100), Augment(**{**OFF.__dict__, "translate": 0.2}), key(index))[0]
        gray = found == 114
        assert 0 <= gray.all(0).sum() <= 21 and 0 <= gray.all(1).sum() <= 21
    shares = [
        (augment(white, (100, 100), Augment(**{**OFF.__dict__, "scale": 1.0}), key(index))[0] != 114)
        .float().mean().item()
        for index in range(60)
    ]  # fmt: skip
    assert min(shares) >= 0.24 and max(shares) == 1.0  # half the side is a quarter of the area


def test_a_warp_is_opencvs_with_zoom_shift_and_mirror_in_it():
    y, x = np.mgrid[:90, :120]
    waves = np.stack([np.sin(x / 15 + k) + np.cos(y / 12) for k in range(3)])
    source = torch.from_numpy((128 + 60 * waves).clip(0, 255).astype(np.uint8))
    options = Augment(preset="none", flip=1.0, scale=0.3, translate=0.2, rotate=40.0, shear=15.0)
    for index in range(8):
        got = augment(source, (80, 100), options, key(index)).permute(1, 2, 0).numpy().astype(float)
        rng = generator(*key(index))
        rng.random(2)
        *_, zoom, right, below = rng.uniform(-1, 1, 6)
        warp = drawn_warp(options, (80, 100), rng)
        factor = 1.3**zoom
        stretch = np.array([[-100 / 120, 0, 100], [0, 80 / 90, 0], [0, 0, 1]])  # and mirrored
        left, top = 50 * (1 - factor) + 20 * right, 40 * (1 - factor) + 16 * below
        about = np.array([[factor, 0, left], [0, factor, top], [0, 0, 1]])
        half = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])
        expected = cv2.warpPerspective(
            source.permute(1, 2, 0).numpy(),
            np.linalg.inv(half) @ warp @ about @ stretch @ half,
            (100, 80),
            borderValue=(114, 114, 114),
        )
        assert np.abs(got - expected).mean() < 0.6 and (np.abs(got - expected) > 8).mean() < 0.005


def test_how_far_images_may_be_reduced_by_hand() -> None:
    assert shown_as((100, 100), False, 2.0).reduction(400, 800) == 2  # the short side is shown at 100 of 400
    assert shown_as((100, 100), False, 2.0).reduction(399, 800) == 1
    assert shown_as((224, 224), True, 2.0).reduction(1024, 2000) == 2  # covered at 256 of 1024
    assert shown_as((224, 224), True, 2.0).reduction(1023, 2000) == 1
