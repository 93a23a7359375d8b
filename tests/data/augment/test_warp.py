"""The warp against OpenCV's pixels and torchvision's boxes, and what happens at the horizon."""

from __future__ import annotations

import math

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as TF

from rankless.data.augment.warp import drawn_warp, from_unit_square, origins, sampled, shrunk, warped_boxes
from rankless.randomness import generator
from rankless.recipe.schema import Augment

SIZE = (96, 128)
CORNERS = [[0, 0], [128, 0], [128, 96], [0, 96]]
options = st.builds(
    Augment,
    rotate=st.floats(0.5, 180),
    shear=st.floats(0, 40),
    perspective=st.sampled_from([0.0, 0.05, 0.24]),
)


def landscape() -> torch.Tensor:
    """Smooth, so that OpenCV's coordinates of 1/32 pixel differ by less than two steps of brightness."""
    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    waves = [np.sin(x / 17 + shift) + np.cos(y / 13 - shift) for shift in (0, 1, 2)]
    return torch.from_numpy((128 + 60 * np.stack(waves)).clip(0, 255).astype(np.uint8))


def projected(warp: np.ndarray, points: np.ndarray) -> np.ndarray:
    return cv2.perspectiveTransform(points.reshape(1, -1, 2).astype(np.float64), warp)[0]


@given(st.lists(st.floats(-0.249, 0.249), min_size=8, max_size=8))
def test_four_corners_make_a_homography_as_in_opencv(shifts: list[float]) -> None:
    square = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], np.float64)
    corners = square + np.array(shifts).reshape(4, 2)
    expected = cv2.getPerspectiveTransform(square.astype(np.float32), corners.astype(np.float32))
    inside = np.random.default_rng(0).uniform(0, 1, (20, 2))
    assert np.allclose(projected(from_unit_square(corners), square), corners, atol=1e-9)
    assert np.allclose(projected(from_unit_square(corners), inside), projected(expected, inside), atol=1e-3)


@given(options, st.integers(0, 10**6))
def test_pixels_are_opencvs(chosen: Augment, seed: int) -> None:
    warp = drawn_warp(chosen, SIZE, generator(seed))
    image = landscape()
    got = sampled(image, origins(warp, SIZE), (1.0, 1.0), (0, 0)).permute(1, 2, 0).numpy().astype(int)
    half = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])  # OpenCV's pixel (0, 0) is the middle of it
    expected = cv2.warpPerspective(
        image.permute(1, 2, 0).numpy(),
        np.linalg.inv(half) @ warp @ half,
        SIZE[::-1],
        flags=cv2.INTER_LINEAR,
        borderValue=(114, 114, 114),
    ).astype(int)
    # At the rim OpenCV's 1/32 of a pixel is 1/32 of the step to gray.
    assert (np.abs(got - expected) > 8).mean() < 0.002
    assert np.abs(got - expected).mean() < 0.5


@given(options, st.integers(0, 10**6), st.integers(0, 10**6))
def test_boxes_are_torchvisions(chosen: Augment, seed: int, boxes_seed: int) -> None:
    warp = drawn_warp(chosen, SIZE, generator(seed))
    rng = np.random.default_rng(boxes_seed)
    first = rng.uniform(0, (100, 70), (6, 2))
    boxes = torch.from_numpy(np.concatenate((first, first + rng.uniform(2, 26, (6, 2))), 1)).float()
    got = warped_boxes(boxes, warp)
    limits = torch.tensor([128.0, 96, 128, 96])
    expected = TF.perspective(
        tv_tensors.BoundingBoxes(boxes.double(), format="XYXY", canvas_size=SIZE, clamping_mode="soft"),
        startpoints=CORNERS,
        endpoints=projected(warp, np.array(CORNERS)).tolist(),
    )
    got, expected = (found.double().clamp(min=0).minimum(limits) for found in (got, torch.Tensor(expected)))
    assert torch.allclose(got, expected, atol=0.05)


@pytest.mark.parametrize("angle", [3.0, 90.0])
def test_a_turn_is_about_the_middle_by_a_share_of_the_largest(angle: float) -> None:
    drawn, middle = drawn_warp(Augment(rotate=angle), SIZE, generator(5)), np.array([[64, 48]])
    turned = math.atan2(drawn[1, 0], drawn[0, 0])
    assert math.isclose(turned, math.radians(generator(5).uniform(-1, 1) * angle), abs_tol=1e-9)
    assert np.allclose(projected(drawn, middle), middle)


@given(st.integers(0, 10**6), st.floats(-0.02, 0.02), st.floats(-0.02, 0.02))
def test_of_a_box_across_the_horizon_the_visible_part_counts(seed: int, across: float, down: float) -> None:
    warp = np.array([[1, 0, 0], [0, 1, 0], [across, down, 1.0]])
    rng = np.random.default_rng(seed)
    first = rng.uniform(-150, 100, 2)
    box = np.concatenate((first, first + rng.uniform(5, 200, 2)))
    got = warped_boxes(torch.tensor(box[None]).float(), warp)[0].double().numpy()
    grid = np.stack(np.meshgrid(np.linspace(*box[[0, 2]], 60), np.linspace(*box[[1, 3]], 60)), -1).reshape(
        -1, 2
    )
    ahead = grid[grid @ [across, down] + 1 > 1e-3]
    if len(ahead) == 0:
        assert (got == -1).all() or (grid @ [across, down] + 1).max() > -0.1
        return
    found = projected(warp, ahead)
    slack = 1e-3 * (1 + np.abs(got).max())
    assert (found >= got[:2] - slack).all() and (found <= got[2:] + slack).all()


def test_what_lies_beyond_the_horizon_is_gray() -> None:
    warp = np.array([[1, 0, 0], [0, 1, 0], [0, 0.05, 1.0]])  # to y = 20 and no further
    image = torch.full((3, *SIZE), 255, dtype=torch.uint8)
    got = sampled(image, origins(warp, SIZE), (1.0, 1.0), (0, 0))
    assert bool((got[:, 21:] == 114).all()) and bool((got[:, :12, :20] == 255).all())
    # Of an image that reaches from y = -60, what lies above -20 is not seen upside down below.
    got = sampled(image, origins(warp, SIZE), (1.0, 1.0), (-60, -60))
    assert bool((got[:, 21:] == 114).all()) and bool((got[:, :12, :20] == 255).all())


def test_a_warp_that_is_off_draws_no_numbers_and_its_parts_are_independent() -> None:
    rng = generator(3)
    assert drawn_warp(Augment(), SIZE, rng) is None
    assert rng.random() == generator(3).random()
    turn = drawn_warp(Augment(rotate=30), SIZE, generator(3))
    both = drawn_warp(Augment(rotate=30, shear=1e-9, perspective=1e-12), SIZE, generator(3))
    assert np.allclose(turn, both, atol=1e-6)
    areas = [
        np.linalg.det(drawn_warp(Augment(rotate=90, shear=60), SIZE, generator(k))[:2, :2]) for k in range(9)
    ]
    assert np.allclose(areas, 1)  # turning and slanting keep every area


def test_without_a_warp_a_image_is_itself() -> None:
    image = torch.randint(0, 256, (3, *SIZE), dtype=torch.uint8)
    assert torch.equal(sampled(image, origins(np.eye(3), SIZE), (1.0, 1.0), (0, 0)), image)


def test_fine_stripes_become_even_gray_not_moire() -> None:
    image = torch.zeros(3, 400, 600, dtype=torch.uint8)
    image[..., ::2] = 255
    smaller, scales = shrunk(image, (0.3, 0.3))
    assert smaller.shape == (3, 133, 200) and scales == pytest.approx((0.9, 0.9))
    assert float(smaller.float().std()) < 30  # 127 before
    for height, width in ((1, 500), (500, 1), (1, 1)):
        small, _ = shrunk(torch.zeros(3, height, width, dtype=torch.uint8), (0.1, 0.1))
        assert min(small.shape) >= 1


@given(st.integers(2, 900), st.floats(0.01, 0.49))
def test_shrinking_moves_nothing(side: int, scale: float) -> None:
    image = torch.zeros(3, 4, side, dtype=torch.uint8)
    first, last = side // 3, side // 3 + max(1, side // 4)
    image[..., first:last] = 255
    smaller, (across, _) = shrunk(image, (scale, 1.0))
    weights = smaller[0, 0].double()
    middle = float((weights * (torch.arange(len(weights)) + 0.5)).sum() / weights.sum()) * across
    assert abs(middle - (first + last) / 2 * scale) < 0.5
