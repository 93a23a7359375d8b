"""The letterbox: geometry against an independent sub-pixel measurement, exact inverses, OpenCV's resize."""

import math
import os
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rankless.geometry.boxes import clip
from rankless.geometry.letterbox import (
    GRAY,
    Placing,
    bilinear,
    letterbox,
    place,
    stretched,
    to_input,
    to_source,
)
from rankless.structures import Letterbox

SIDES = st.integers(1, 700)
SIZE = (96, 128)


def test_a_image_of_the_right_size_is_returned_as_it_is() -> None:
    image = torch.randint(0, 256, (3, *SIZE), dtype=torch.uint8)
    placed, where = letterbox(image, SIZE)
    assert placed is image
    assert where == Letterbox(1.0, 0.0, 0.0, *SIZE)


@given(height=SIDES, width=SIDES)
def test_the_image_fills_one_side_and_lies_in_the_middle(height: int, width: int) -> None:
    placed, where = letterbox(torch.full((3, height, width), 7, dtype=torch.uint8), SIZE)
    assert placed.shape == (3, *SIZE) and placed.dtype == torch.uint8
    inside = placed[0] == 7
    assert bool(((placed == 7) | (placed == GRAY)).all())
    rows, columns = int(inside.any(1).sum()), int(inside.any(0).sum())
    scale = min(SIZE[0] / height, SIZE[1] / width)
    assert where.scale == scale and (where.height, where.width) == (height, width)
    assert rows == SIZE[0] or columns == SIZE[1]
    assert rows == max(1, math.floor(height * scale + 1e-6))
    assert columns == max(1, math.floor(width * scale + 1e-6))
    assert where.left == int(inside.any(0).nonzero()[0]) and where.top == int(inside.any(1).nonzero()[0])
    assert abs(where.left - (SIZE[1] - columns) / 2) <= 0.5 and abs(where.top - (SIZE[0] - rows) / 2) <= 0.5


@pytest.mark.parametrize(("height", "width"), [(67, 101), (300, 203), (101, 67), (480, 640)])
@pytest.mark.parametrize("zoom", [0.6, 0.83, 1.0, 1.37, 2.9])
def test_every_pixel_lies_where_the_placement_says(height: int, width: int, zoom: float) -> None:
    """On a ramp the resampled value tells the source coordinate: measured against the formula."""
    across = torch.linspace(0, 255, width).round().to(torch.uint8).expand(3, height, width).contiguous()
    down = (
        torch.linspace(0, 255, height).round().to(torch.uint8)[:, None].expand(3, height, width).contiguous()
    )
    scale = min(SIZE[0] / height, SIZE[1] / width) * zoom
    left, top = (-40, -17) if zoom > 1.2 else (13, 9)
    for ramp, side, axis in ((across, width, 1), (down, height, 0)):
        placed, where = place(ramp, SIZE, scale, left, top)
        offset = where.left if axis == 1 else where.top
        assert abs(offset - (left if axis == 1 else top)) < 1
        values = placed[0].double()
        source = (torch.arange(SIZE[axis]) + 0.5 - offset) / scale - 0.5  # pixel centers
        source = source if axis == 1 else source[:, None]
        expected = (source * 255 / (side - 1)).expand(*SIZE)
        rows = (torch.arange(SIZE[0]) + 0.5 - where.top) / scale
        columns = (torch.arange(SIZE[1]) + 0.5 - where.left) / scale
        margin = 2 + 2 / scale  # at the image's own edge the filter is cut off
        inside = (
            ((rows > margin) & (rows < height - margin))[:, None]
            & (columns > margin)
            & (columns < width - margin)
        )
        assert int(inside.sum()) > 100
        level = 255 / (side - 1)  # a ramp's step in gray levels, rounded to whole ones twice
        error = (values - expected)[inside]
        assert error.abs().max() < 1.01 + 0.5 * level * (level > 1)
        assert abs(error.mean()) < 0.1  # no shift: below a tenth of a gray level on average


def test_resampling_agrees_with_another_library() -> None:
    rng = np.random.default_rng(0)
    small = Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8))
    source = small.resize((240, 160), Image.Resampling.BICUBIC)
    expected = np.asarray(source.resize((96, 64), Image.Resampling.BILINEAR)).astype(int)
    placed, where = letterbox(torch.from_numpy(np.array(source)).permute(2, 0, 1), (64, 96))
    assert where.scale == 0.4
    assert np.abs(placed.permute(1, 2, 0).numpy().astype(int) - expected).max() <= 1


def test_memory_layout_does_not_matter() -> None:
    rows_first = torch.randint(0, 256, (100, 77, 3), dtype=torch.uint8).permute(2, 0, 1)
    assert torch.equal(letterbox(rows_first, SIZE)[0], letterbox(rows_first.contiguous(), SIZE)[0])


def test_threads_do_not_change_a_bit() -> None:
    image = torch.randint(0, 256, (901, 1203, 3), dtype=torch.uint8).permute(2, 0, 1)
    threads, made = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            made.append(letterbox(image, (416, 416))[0])
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(made[0], made[1]) and torch.equal(made[0], made[2])


@given(height=st.integers(1, 5000), width=st.integers(1, 5000), data=st.data())
def test_to_source_undoes_to_input(height: int, width: int, data: st.DataObject) -> None:
    where = Letterbox(
        data.draw(st.floats(0.05, 8)),
        data.draw(st.floats(-50, 50)),
        data.draw(st.floats(-50, 50)),
        height,
        width,
    )
    share = st.floats(0, 1)
    corners = [data.draw(share) * side for side in (width, height, width, height)]
    boxes = torch.tensor([corners, corners], dtype=torch.float64)
    assert torch.allclose(to_source(to_input(boxes, where), where), boxes, rtol=0, atol=1e-9)
    assert torch.equal(boxes, torch.tensor([corners, corners], dtype=torch.float64))  # not edited in place
    assert torch.allclose(to_source(to_input(boxes.float(), where), where), boxes.float(), rtol=0, atol=0.01)


DARKNET = Placing(antialias=False, gray=128)


@pytest.mark.parametrize(("height", "width"), [(576, 768), (301, 203), (50, 31), (424, 640), (2, 900)])
def test_darknets_letterbox_is_whole_pixels_in_the_middle_of_gray(height: int, width: int) -> None:
    """As ``letterbox_image`` of Darknet rounds, with OpenCV's resize; the placed one is the whole source."""
    image = torch.randint(0, 256, (3, height, width), dtype=torch.uint8)
    across, down = SIZE[1], height * SIZE[1] // width
    if SIZE[1] * height >= SIZE[0] * width:
        across, down = width * SIZE[0] // height, SIZE[0]
    down = max(1, down)
    left, top = (SIZE[1] - across) // 2, (SIZE[0] - down) // 2
    expected = np.full((*SIZE, 3), 128, np.uint8)
    source = image.permute(1, 2, 0).numpy()
    expected[top : top + down, left : left + across] = cv2.resize(source, (across, down))
    placed, where = letterbox(image, SIZE, placing=DARKNET)
    np.testing.assert_array_equal(placed.permute(1, 2, 0).numpy(), expected)
    filled, _ = stretched(image, SIZE, DARKNET)
    np.testing.assert_array_equal(filled.permute(1, 2, 0).numpy(), cv2.resize(source, SIZE[::-1]))
    patch = torch.tensor([[left, top, left + across, top + down]], dtype=torch.float32)
    whole = torch.tensor([[0, 0, width, height]], dtype=torch.float32)
    torch.testing.assert_close(to_source(patch, where), whole)
    torch.testing.assert_close(to_input(whole, where), patch)


def test_boxes_are_clipped_to_the_source() -> None:
    where = Letterbox(0.5, 10, 0, 100, 200)
    boxes = torch.tensor([[-50.0, -50, 500, 500]])
    assert clip(to_source(boxes, where), where.height, where.width).tolist() == [[0, 0, 200, 100]]
    assert to_source(boxes, where).tolist() != [[0, 0, 200, 100]]
    assert clip(to_source(boxes[:0], where), where.height, where.width).shape == (0, 4)


@pytest.mark.parametrize(("left", "top"), [(-1000, 0), (1000, 0), (0, -1000), (0, 1000)])
def test_a_image_shifted_out_of_sight_leaves_gray(left: int, top: int) -> None:
    placed, _ = place(torch.zeros(3, 50, 60, dtype=torch.uint8), SIZE, 1.3, left, top)
    assert bool((placed == GRAY).all())


@given(st.integers(1, 60), st.integers(1, 60), st.sampled_from([(32, 64), (64, 32), (32, 32)]))
def test_a_stretched_image_fills_the_input_and_boxes_come_back(height, width, size):
    image = torch.full((3, height, width), 200, dtype=torch.uint8)
    placed, where = stretched(image, size)
    assert placed.shape == (3, *size)
    assert (placed == 200).all()
    box = torch.tensor([[0.0, 0.0, width, height], [width / 4, height / 2, width / 2, height]])
    there = to_input(box, where)
    torch.testing.assert_close(there[0], torch.tensor([0.0, 0.0, size[1], size[0]]))
    torch.testing.assert_close(to_source(there, where), box)


@pytest.mark.skipif("RANKLESS_REAL_DATA" not in os.environ, reason="RANKLESS_REAL_DATA names no folder")
def test_a_photo_is_resized_as_opencv_does() -> None:
    from rankless.data.images.image_file import read

    root = Path(os.environ["RANKLESS_REAL_DATA"])
    stored = np.load(root / "golden" / "yolo-fastest-1.1_dog_raw.npz")["input_u8_rgb_hwc"]
    image = read(root / "images" / "dog.jpg")
    found = bilinear(image, (320, 320), (image.shape[1] / 320, image.shape[2] / 320))
    assert np.array_equal(found.permute(1, 2, 0).numpy(), stored)
