"""Generate the built-in data set ``digits``: handwritten digits, on textured scenes for detectors.

The 1,797 handwritten digits in ``optdigits.gz`` (8 × 8 gray levels; E. Alpaydin and C. Kaynak, Optical
Recognition of Handwritten Digits, UCI 1998) are enlarged, slightly warped and placed on scenes. Scenes are
generated on demand and depend only on (seed, split, number, size). Nothing is downloaded.
"""

from __future__ import annotations

import gzip
from importlib import resources
from math import ceil, cos, sin
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor

from rankless.data.builtin.digits.scenery import (
    GLYPH_SIDE,
    Box,
    Bytes,
    Draws,
    background,
    ink,
    scribbles,
    sensor_noise,
)
from rankless.data.datasets.annotated import ClassificationImages, DetectionImages, GroundTruth
from rankless.errors import UserError
from rankless.randomness import generator, key
from rankless.recipe.schema import IN_RECIPE
from rankless.structures import Sample

TITLE = "the built-in digits"
_MOST_DIGITS = 12
SIZE = (160, 160)
"""(H, W) of the scenes in pixels where no network gives its input size."""
# Range of the heights of glyphs with their soft rims, in pixels of a scene whose shorter side is 256. Boxes
# are a tenth smaller.
_HEIGHTS = (15.5, 118.0)
# Minimum in smaller scenes. Smaller digits are legible down to 13.5 pixels, but take a network much longer to
# learn.
_SMALLEST_HEIGHT = 20.0
_MOST_COVERED = 0.1  # maximum fraction of a digit's box that another digit may cover
_LARGEST_IOU = 0.05
_VAL_FRACTION = 0.2
_SHARPEN = 1.6
_CELL = GLYPH_SIDE / 10  # number of texels per original pixel
VISIBLE = 64
"""Minimum ink coverage, in units of 1/255, of pixels that belong to a digit. Boxes enclose these pixels."""
_VISIBLE_CURVE = bytes(255 if level >= VISIBLE else 0 for level in range(256))
_LEVELS = np.arange(256, dtype=np.float64) / 255


def splits(root: object = None) -> list[str]:
    return ["train", "val"]


class _Digits:
    class_names = tuple("0123456789")

    def __init__(self, split: str) -> None:
        if split not in splits():
            expected = f"expected {' or '.join(splits())}; choose one of these{IN_RECIPE}"
            raise UserError(f"digits: no split {split!r}; {expected}")
        self.split = split

    def source(self, index: int) -> str:
        return f"digits/{self.split}/{index}"


class DigitScenes(_Digits, DetectionImages):
    """Scenes with 1 to 12 handwritten digits each.

    Each digit image is in only one split. In a scene whose shorter side is 256 pixels, digits are about 14 to
    110 pixels high (log-uniform); their size scales with this side, but in smaller scenes they are at least
    about 18 pixels high. Boxes are inside the scene and overlap only slightly: the IoU is at most 0.05, and
    the overlap at most a tenth of the smaller box. A digit is omitted if there is no space for it.

    Args:
        split: ``train`` or ``val``.
        images: number of scenes, which does not affect their content.
        seed: seed of the scenes. Evaluations always use 0.
        size: (H, W) of the scenes in pixels, at least 32.
    """

    def __init__(self, split: str, images: int, seed: int = 0, size: tuple[int, int] = SIZE) -> None:
        super().__init__(split)
        self.seed, self.size, self._images = seed, size, images
        self._digits = digits_of(split)
        self._truths: dict[int, GroundTruth] = {}
        self._glyphs: dict[tuple[int, int], Image.Image] = {}

    def __len__(self) -> int:
        return self._images

    def ground_truth(self, index: int) -> GroundTruth:
        """Return the digits of a scene. Each scene is rendered only once."""
        if index not in self._truths:
            self._truths[index] = super().ground_truth(index)
        return self._truths[index]

    def read(self, index: int) -> Sample:
        """Return a scene, which depends only on (seed, split, index, size).

        Each box encloses exactly the pixels with an ink coverage of at least ``VISIBLE`` / 255, even if
        another digit covers some of them.
        """
        return self._render(index)

    def _render(self, index: int, hidden: int | None = None) -> Sample:
        """Render a scene. For tests, the digit with the number ``hidden`` can be omitted."""
        rng = Draws(generator(self.seed, "digits", self.split, index))
        digits, labels, boxes = self._layout(rng)
        clutter = self._clutter(rng, boxes)
        canvas = background(rng, *self.size)
        for mask, box in [*clutter, *zip(digits, boxes, strict=True)]:
            contrast = 30 + 30 * _HEIGHTS[0] / (box[3] - box[1])  # small digits need more contrast
            paint = ink(rng, canvas, box, contrast)
            if hidden is None or mask is not digits[hidden]:
                canvas.paste(paint, box, mask)
        bands = bytearray().join(canvas.tobytes("raw", band) for band in "RGB")  # writable, for the noise
        planes = np.frombuffer(bands, np.uint8).reshape(3, *self.size)
        sensor_noise(rng, planes)
        return Sample(
            image=torch.from_numpy(planes),
            boxes=torch.tensor(boxes, dtype=torch.float32),
            labels=torch.tensor(labels, dtype=torch.int64),
        )

    def _layout(self, rng: Draws) -> tuple[list[Image.Image], list[int], list[Box]]:
        """Return the ink masks, classes and boxes of random digits, the largest first."""
        scale = min(self.size) / 256
        low = _HEIGHTS[0] * scale if scale >= 1 else max(_HEIGHTS[0] * scale, _SMALLEST_HEIGHT)
        high = max(_HEIGHTS[1] * scale, low)
        count = 1 + rng.below(_MOST_DIGITS)
        masks: list[Image.Image] = []
        labels: list[int] = []
        boxes: list[Box] = []
        for height in sorted((rng.log_uniform(low, high) for _ in range(count)), reverse=True):
            label = rng.below(len(self._digits))
            glyph = self._glyph(label, rng.below(len(self._digits[label])))
            box = None
            while box is None and height >= low:
                mask = warp(rng, glyph, height)
                box = self._position(rng, mask, boxes, _LARGEST_IOU, _MOST_COVERED)
                height = max(0.7 * height, low) if height > low else 0.0  # a smaller digit may fit
            if box is not None:
                masks.append(mask)
                labels.append(label)
                boxes.append(box)
        return masks, labels, boxes

    def _clutter(self, rng: Draws, boxes: list[Box]) -> list[tuple[Image.Image, Box]]:
        """Return the ink masks and boxes of random scribbles between the digits."""
        low, high = (height * min(self.size) / 256 for height in (18.0, 80.0))
        drawings = scribbles()
        placed = []
        for _ in range(rng.below(6)):
            mask = warp(rng, drawings[rng.below(len(drawings))], rng.log_uniform(low, high))
            box = self._position(rng, mask, boxes, 0.0, 0.0)
            if box is not None:
                placed.append((mask, box))
        return placed

    def _position(
        self, rng: Draws, mask: Image.Image, boxes: list[Box], largest_iou: float, most_covered: float
    ) -> Box | None:
        """Place a mask randomly where it hardly overlaps ``boxes``; return its box, or None if this fails."""
        width, height = mask.size
        free_x, free_y = self.size[1] - width + 1, self.size[0] - height + 1
        for _ in range(40 if min(free_x, free_y) > 0 else 0):
            left, top = rng.below(free_x), rng.below(free_y)
            box = (left, top, left + width, top + height)
            if not any(_too_close(box, other, largest_iou, most_covered) for other in boxes):
                return box
        return None

    def _glyph(self, label: int, number: int) -> Image.Image:
        at = label, number
        if at not in self._glyphs:
            self._glyphs[at] = enlarged(self._digits[label][number])
        return self._glyphs[at]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_glyphs": {}, "_truths": {}}


SIDE = 64  # side of the image of a single digit in pixels, eight times the original side


class DigitImages(_Digits, ClassificationImages):
    """Images with one handwritten digit each: 1,438 for training and 359 for validation."""

    def __init__(self, split: str) -> None:
        super().__init__(split)
        parts = digits_of(split)
        self._levels = np.concatenate(parts)  # (N, 8, 8) uint8, 0 to 16
        self._labels = np.repeat(np.arange(len(parts)), [len(part) for part in parts])

    def __len__(self) -> int:
        return len(self._levels)

    def read(self, index: int) -> Tensor:
        """Return a digit, uint8 (3, 64, 64), with three equal channels."""
        gray = (self._levels[index].astype(np.uint16) * 255 // 16).astype(np.uint8)
        enlarged = Image.fromarray(gray).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        return torch.from_numpy(np.array(enlarged)).expand(3, SIDE, SIDE).contiguous()

    def label(self, index: int) -> int:
        return int(self._labels[index])


detection, classification = DigitScenes, DigitImages  # see rankless.data.builtin.BuiltIn


def _too_close(box: Box, other: Box, largest_iou: float, most_covered: float) -> bool:
    width = min(box[2], other[2]) - max(box[0], other[0])
    height = min(box[3], other[3]) - max(box[1], other[1])
    if width <= 0 or height <= 0:
        return False
    shared = width * height
    first, second = ((b[2] - b[0]) * (b[3] - b[1]) for b in (box, other))
    return shared > most_covered * min(first, second) or shared > largest_iou * (first + second - shared)


def stored_digits() -> tuple[Bytes, Bytes]:
    """Return all digits: gray levels from 0 to 16, (1797, 8, 8), and classes, (1797,)."""
    stored = gzip.decompress((resources.files(__name__) / "optdigits.gz").read_bytes())
    rows = np.frombuffer(stored, np.uint8).reshape(-1, 65)
    return rows[:, :64].reshape(-1, 8, 8), rows[:, 64]


def digits_of(split: str) -> list[Bytes]:
    """Return the digits of each class in a split: uint8 from 0 to 16, (N, 8, 8) each.

    The digits of each class are sorted by a hash of their bytes, and the first fifth is for validation. The
    split does not depend on a seed or on the order in the file.
    """
    images, classes = stored_digits()
    parts = []
    for label in range(10):
        members = sorted(images[classes == label], key=lambda image: key(0, "digits", image.tobytes().hex()))
        cut = round(_VAL_FRACTION * len(members))
        parts.append(np.stack(members[:cut] if split == "val" else members[cut:]))
    return parts


def enlarged(digit: Bytes) -> Image.Image:
    """Enlarge an 8 × 8 digit to a smooth grayscale image with 4 × 4 texels per pixel, trimmed to its ink.

    The image is sharpened over about one pixel, so that thresholding it later does not break thin strokes or
    fill loops.
    """
    levels = np.pad(digit, 1).astype(np.float32) * np.float32(255 / 16)
    smooth = Image.fromarray(levels).resize((GLYPH_SIDE, GLYPH_SIDE), Image.Resampling.BICUBIC)
    ink_map = Image.fromarray(np.asarray(smooth).clip(0, 255).astype(np.uint8))
    around = np.asarray(ink_map.filter(ImageFilter.BoxBlur(_CELL * 1.25)), np.float32)
    sharp = np.float32(_SHARPEN + 1) * np.asarray(ink_map, np.float32) - np.float32(_SHARPEN) * around
    glyph = Image.fromarray(sharp.clip(0, 255).astype(np.uint8)).filter(ImageFilter.BoxBlur(1))
    return glyph.crop(glyph.getbbox())  # a small source is warped faster


def warp(rng: Draws, glyph: Image.Image, height: float) -> Image.Image:
    """Return the ink mask of a glyph, about ``height`` pixels high, slightly rotated and distorted.

    The grayscale mask is cropped to the box that encloses all ``VISIBLE`` pixels.
    """
    angle, shear, stretch = rng.uniform(-0.26, 0.26), rng.uniform(-0.2, 0.2), rng.uniform(0.8, 1.15)
    # Rounding to 2**-20 removes differences between math libraries.
    c, s = (round(f(angle) * 2**20) / 2**20 for f in (cos, sin))
    scale = height / glyph.height  # pixels per texel
    # The forward matrix is rotate · shear · stretch · scale. Pillow needs the inverse, from pixels to texels.
    a, b = c * stretch * scale, (c * shear - s) * scale
    d, e = s * stretch * scale, (s * shear + c) * scale
    width, rows = (ceil(glyph.width * abs(p) + glyph.height * abs(q)) + 2 for p, q in ((a, b), (d, e)))
    x, y = width / 2 + rng.uniform(-0.5, 0.5), rows / 2 + rng.uniform(-0.5, 0.5)
    determinant = a * e - b * d
    ia, ib, id_, ie = e / determinant, -b / determinant, -d / determinant, a / determinant
    shift_x, shift_y = glyph.width / 2 - ia * x - ib * y, glyph.height / 2 - id_ * x - ie * y
    back = (ia, ib, shift_x, id_, ie, shift_y)
    shape = glyph.transform((width, rows), Image.Transform.AFFINE, back, Image.Resampling.BILINEAR)
    levels, curve = shape.tobytes(), _ink_curve(rng, _CELL * scale)
    # bytes.translate is faster than Image.point, which spends most of its time on the table.
    coverage, visible = (
        Image.frombuffer("L", shape.size, levels.translate(table), "raw", "L", 0, 1)
        for table in (curve, curve.translate(_VISIBLE_CURVE))
    )
    return coverage.crop(visible.getbbox())


def _ink_curve(rng: Draws, cell: float) -> bytes:
    """Return a table from gray level to ink coverage: a random threshold with a soft edge of 1 to 2 pixels.

    ``cell`` is the number of pixels per original pixel. The threshold determines the thickness of the
    strokes. The slope ensures that the paper has no ink.
    """
    level, softness = rng.uniform(0.42, 0.55), rng.uniform(1.0, 2.2)
    slope = max(cell / softness, 0.5 / level)
    curve = ((_LEVELS - level) * slope + 0.5).clip(0, 1) * 255
    return bytes(np.rint(curve).astype(np.uint8))
