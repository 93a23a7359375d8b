"""The resize without antialiasing is OpenCV's, bit for bit: its results are written down here."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from rankless.geometry.letterbox import bilinear

SOURCE = [[248, 207, 237, 211, 5], [60, 109, 82, 36, 222], [8, 15, 144, 24, 11], [104, 226, 159, 163, 41]]
# cv2.resize of SOURCE, OpenCV 4.13: larger, smaller, and one way each.
RESIZED = {
    (7, 9): [
        [248, 234, 211, 220, 237, 222, 188, 74, 5],
        [181, 178, 173, 176, 182, 163, 141, 104, 82],
        [73, 87, 111, 106, 93, 68, 66, 154, 206],
        [34, 43, 59, 85, 113, 67, 40, 87, 117],
        [15, 20, 28, 81, 145, 83, 31, 20, 13],
        [70, 97, 142, 152, 153, 131, 104, 58, 30],
        [104, 145, 212, 196, 159, 161, 149, 82, 41],
    ],
    (2, 3): [[155, 160, 117], [77, 152, 48]],
    (9, 2): [
        [217, 159], [197, 146], [143, 112], [92, 79], [55, 52], [18, 24], [84, 64], [165, 114], [195, 132],
    ],
}  # fmt: skip


@pytest.mark.parametrize("size", RESIZED)
def test_every_pixel_is_opencvs(size: tuple[int, int]) -> None:
    image = torch.tensor(SOURCE, dtype=torch.uint8).expand(3, 4, 5)
    found = bilinear(image, size, (4 / size[0], 5 / size[1]))
    assert found.dtype == torch.uint8
    assert all(channel.tolist() == RESIZED[size] for channel in found)


@pytest.mark.skipif("RANKLESS_REAL_DATA" not in os.environ, reason="RANKLESS_REAL_DATA names no folder")
def test_a_photo_is_resized_as_opencv_does() -> None:
    from rankless.data.images.image_file import read

    root = Path(os.environ["RANKLESS_REAL_DATA"])
    stored = np.load(root / "golden" / "yolo-fastest-1.1_dog_raw.npz")["input_u8_rgb_hwc"]
    image = read(root / "images" / "dog.jpg")
    found = bilinear(image, (320, 320), (image.shape[1] / 320, image.shape[2] / 320))
    assert np.array_equal(found.permute(1, 2, 0).numpy(), stored)
