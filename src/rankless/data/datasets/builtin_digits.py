"""The built-in data ``digits`` for classification: one handwritten digit in each image.

The same digits and the same split as in the scenes of :mod:`rankless.data.datasets.builtin`: a digit image
serves in one split alone.
"""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from rankless.data.datasets.builtin import SPLITS, digits_of
from rankless.errors import UserError

SIDE = 64
"""Of an image, in pixels: the 8 × 8 gray levels are enlarged eight times."""


class DigitImages:
    """Scikit-learn's handwritten digits, 1,438 for training and 359 for validation, white on black.

    Args:
        split: ``train`` or ``val``.

    Raises:
        UserError: an unknown split.
    """

    class_names: tuple[str, ...] = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")

    def __init__(self, split: str) -> None:
        if split not in SPLITS:
            known = " and ".join(SPLITS)
            raise UserError(f"digits: no split {split!r}; the built-in data has {known}: name one of them")
        self.split = split
        parts = digits_of(split)
        self._levels = np.concatenate(parts)  # (N, 8, 8) uint8, 0 to 16
        self._labels = np.repeat(np.arange(len(parts)), [len(part) for part in parts])

    def __len__(self) -> int:
        return len(self._levels)

    def source(self, index: int) -> str:
        """A name for reports: ``digits/val/12``."""
        return f"digits/{self.split}/{index}"

    def image(self, index: int) -> Tensor:
        """Digit ``index``, uint8 (3, 64, 64), its three channels equal.

        Raises:
            IndexError: ``index`` is not in 0..len-1.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"digits: no image {index}; the {self.split} split has 0 to {len(self) - 1}")
        gray = (self._levels[index].astype(np.uint16) * 255 // 16).astype(np.uint8)
        enlarged = Image.fromarray(gray).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        return torch.from_numpy(np.array(enlarged)).expand(3, SIDE, SIDE).contiguous()

    def label(self, index: int) -> int:
        """The digit that image ``index`` shows."""
        return int(self._labels[index])
