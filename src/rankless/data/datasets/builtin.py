"""The built-in data set ``digits``: handwritten digits scattered over textured scenes.

The 1,797 real digits that come with scikit-learn (8 × 8 gray levels; E. Alpaydin and C. Kaynak, Optical
Recognition of Handwritten Digits, UCI 1998) are enlarged, warped a little and laid on scenes that are made
when they are asked for, from (seed, split, number) alone. Nothing is downloaded and nothing stored.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from rankless.data.datasets.annotated import ClassificationImages, DetectionImages, GroundTruth
from rankless.data.datasets.builtin_glyphs import digits_of, enlarged, warp
from rankless.data.datasets.builtin_scenery import (
    Box,
    Draws,
    background,
    ink,
    scribbles,
    sensor_noise,
)
from rankless.errors import UserError
from rankless.randomness import generator
from rankless.structures import Sample

DIGITS = "digits"
"""The root that names the built-in data."""
SPLITS = ("train", "val")
_MOST_DIGITS = 12
# Of glyphs with their soft rim, in pixels of a scene whose shorter side is 256; a box is a tenth lower.
_HEIGHTS = (15.5, 118.0)
_SMALLEST_HEIGHT = 13.5  # below this a person cannot read a digit, however small the scene
_MOST_COVERED = 0.1  # fraction of a digit's box that another may cover
_LARGEST_IOU = 0.05


class _Digits:
    """The base of the two kinds of built-in data."""

    class_names = tuple("0123456789")

    def __init__(self, split: str, *problems: str) -> None:
        if split not in SPLITS:
            expected = " or ".join(SPLITS)
            problems = f"digits: no split {split!r}; expected {expected}", *problems
        if problems:
            raise UserError(problems)
        self.split = split

    def source(self, index: int) -> str:
        """Return a name for reports: ``digits/val/12``."""
        return f"digits/{self.split}/{index}"


class DigitScenes(_Digits, DetectionImages):
    """Scenes with 1 to 12 handwritten digits each; the data set to start with, to test and to compare on.

    A digit image serves in one split alone. Digits are about 14 to 110 pixels high on a scene whose shorter
    side is 256 (every octave alike) and scale with that side; their boxes overlap at most slightly (IoU up to
    0.05, a tenth of the smaller) and lie wholly inside. A crowded scene of small size may lack room for some.

    Args:
        split: ``train`` or ``val``.
        images: how many scenes; does not change the scenes themselves.
        seed: keys the scenes. Scenes to be scored on take 0, whatever the recipe's seed.
        size: height and width of a scene in pixels, 32 or more.
    """

    def __init__(self, split: str, images: int, seed: int = 0, size: tuple[int, int] = (256, 256)) -> None:
        problems = []
        if images < 1:
            problems.append(f"digits: {images} scenes asked for; expected 1 or more; raise the number")
        if min(size) < 32:
            asked = f"{size[0]} × {size[1]}"
            problems.append(
                f"digits: scenes of {asked} pixels asked for; expected sides of 32 or more; enlarge them"
            )
        super().__init__(split, *problems)
        self.seed, self.size, self._images = seed, size, images
        self._digits = digits_of(split)
        self._truths: dict[int, GroundTruth] = {}

    def __len__(self) -> int:
        return self._images

    def ground_truth(self, index: int) -> GroundTruth:
        """Return the digits of scene ``index``; it is drawn once, and each evaluation asks for it again."""
        if index not in self._truths:
            self._truths[index] = super().ground_truth(index)
        return self._truths[index]

    def read(self, index: int) -> Sample:
        """Return scene ``index``, a function of (seed, split, index, size) alone.

        Boxes are exact: the extent of the pixels of which the digit's ink covers ``VISIBLE``/255 or more, its
        last column and row included. A digit slightly covered by a later one keeps its whole box.
        """
        return self._render(index)

    def _render(self, index: int, hidden: int | None = None) -> Sample:
        """Render a scene without the ink of digit ``hidden``, so that a test can see which pixels it drew."""
        if not 0 <= index < self._images:
            raise IndexError(f"digits: no scene {index}; the {self.split} split has 0 to {self._images - 1}")
        rng = Draws(generator(self.seed, "digits", self.split, index))
        digits, labels, boxes = self._layout(rng)
        clutter = self._clutter(rng, boxes)
        canvas = background(rng, *self.size)
        for mask, box in [*clutter, *zip(digits, boxes, strict=True)]:
            contrast = 30 + 30 * _HEIGHTS[0] / (box[3] - box[1])  # small digits need more to be read
            paint = ink(rng, canvas, box, contrast)
            if hidden is None or mask is not digits[hidden]:
                canvas.paste(paint, box, mask)
        planes = np.stack([np.asarray(plane) for plane in canvas.split()])  # (3, H, W)
        sensor_noise(rng, planes)
        return Sample(
            image=torch.from_numpy(planes),
            boxes=torch.tensor(boxes, dtype=torch.float32),
            labels=torch.tensor(labels, dtype=torch.int64),
        )

    def _layout(self, rng: Draws) -> tuple[list[Image.Image], list[int], list[Box]]:
        """Ink masks, classes and boxes of the digits, the largest first; as many as there is room for."""
        scale = min(self.size) / 256
        low = max(_HEIGHTS[0] * scale, _SMALLEST_HEIGHT)
        high = max(_HEIGHTS[1] * scale, low)
        count = 1 + rng.below(_MOST_DIGITS)
        masks: list[Image.Image] = []
        labels: list[int] = []
        boxes: list[Box] = []
        for height in sorted((rng.log_uniform(low, high) for _ in range(count)), reverse=True):
            label = rng.below(len(self._glyphs))
            glyph = self._glyphs[label][rng.below(len(self._glyphs[label]))]
            box = None
            while box is None and height >= low:
                mask = warp(rng, glyph, height)
                box = self._position(rng, mask, boxes, _LARGEST_IOU, _MOST_COVERED)
                height = max(0.7 * height, low) if height > low else 0.0  # a smaller one may find room
            if box is not None:
                masks.append(mask)
                labels.append(label)
                boxes.append(box)
        return masks, labels, boxes

    def _clutter(self, rng: Draws, boxes: list[Box]) -> list[tuple[Image.Image, Box]]:
        """Scribbles in the gaps between the digits."""
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
        """A box of the mask's size that overlaps no other too much, or None after 40 trials."""
        width, height = mask.size
        free_x, free_y = self.size[1] - width + 1, self.size[0] - height + 1
        for _ in range(40 if min(free_x, free_y) > 0 else 0):
            left, top = rng.below(free_x), rng.below(free_y)
            box = (left, top, left + width, top + height)
            if not any(_too_close(box, other, largest_iou, most_covered) for other in boxes):
                return box
        return None

    @cached_property
    def _glyphs(self) -> list[list[Image.Image]]:
        """The digits of each class, enlarged once; see :func:`enlarged`."""
        return [[enlarged(digit) for digit in digits] for digits in self._digits]

    def __getstate__(self) -> dict[str, Any]:
        """Without the enlarged digits: a loader process makes them again."""
        made = {name: value for name, value in self.__dict__.items() if name != "_glyphs"}
        return {**made, "_truths": {}}


SIDE = 64
"""Of a single digit's image, in pixels: the 8 × 8 gray levels are enlarged eight times."""


class DigitImages(_Digits, ClassificationImages):
    """The same digits and splits, one digit per image: 1,438 for training and 359 for validation.

    Args:
        split: ``train`` or ``val``.
    """

    def __init__(self, split: str) -> None:
        super().__init__(split)
        parts = digits_of(split)
        self._levels = np.concatenate(parts)  # (N, 8, 8) uint8, 0 to 16
        self._labels = np.repeat(np.arange(len(parts)), [len(part) for part in parts])

    def __len__(self) -> int:
        return len(self._levels)

    def read(self, index: int) -> Tensor:
        """Return digit ``index``, uint8 (3, 64, 64), its three channels equal."""
        if not 0 <= index < len(self):
            raise IndexError(f"digits: no image {index}; the {self.split} split has 0 to {len(self) - 1}")
        gray = (self._levels[index].astype(np.uint16) * 255 // 16).astype(np.uint8)
        enlarged = Image.fromarray(gray).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        return torch.from_numpy(np.array(enlarged)).expand(3, SIDE, SIDE).contiguous()

    def label(self, index: int) -> int:
        return int(self._labels[index])


def _too_close(box: Box, other: Box, largest_iou: float, most_covered: float) -> bool:
    """Whether two boxes exceed the IoU limit, or the covered fraction of the smaller box."""
    width = min(box[2], other[2]) - max(box[0], other[0])
    height = min(box[3], other[3]) - max(box[1], other[1])
    if width <= 0 or height <= 0:
        return False
    shared = width * height
    first, second = ((b[2] - b[0]) * (b[3] - b[1]) for b in (box, other))
    return shared > most_covered * min(first, second) or shared > largest_iou * (first + second - shared)
