"""The ink of the built-in digits: scikit-learn's small images, enlarged and warped."""

from __future__ import annotations

import gzip
import importlib.util
from math import ceil, cos, sin
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from rankless.data.datasets.builtin_scenery import GLYPH_SIDE, Bytes, Draws
from rankless.randomness import key

VISIBLE = 64
"""A pixel belongs to a digit where its ink covers at least 64/255 of it; boxes are the extent of these."""

_FILE = Path("datasets", "data", "digits.csv.gz")
_VAL_FRACTION = 0.2
_SHARPEN = 1.6
_CELL = GLYPH_SIDE / 10  # texels from one of the 8 × 8 gray levels to the next


def stored_digits() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return scikit-learn's digits: gray levels, 0–16, (1797, 8, 8), and the class of each, (1797,).

    scikit-learn takes a processor's second to import, in every rank; its file takes 5 ms to read. A
    release that keeps the file elsewhere is asked for it.
    """
    found = importlib.util.find_spec("sklearn")
    for folder in (found and found.submodule_search_locations) or ():
        if (path := Path(folder, _FILE)).is_file():
            with gzip.open(path, "rt") as text:
                rows = np.loadtxt(text, delimiter=",", dtype=np.uint8)
            return rows[:, :64].reshape(-1, 8, 8), rows[:, 64]
    from sklearn.datasets import load_digits

    stored = load_digits()
    return stored.images.astype(np.uint8), stored.target.astype(np.uint8)


def digits_of(split: str) -> list[Bytes]:
    """The digit images of each class that serve in ``split``: uint8 0–16, (N, 8, 8) each.

    Each class is ordered by a hash of the image's own bytes, and its first fifth is for validation: neither
    a seed nor the order in which scikit-learn stores the images reaches the split. No two of the 1,797
    images are equal.
    """
    images, classes = stored_digits()
    parts = []
    for label in range(10):
        members = sorted(images[classes == label], key=lambda image: key(0, "digits", image.tobytes().hex()))
        cut = round(_VAL_FRACTION * len(members))
        parts.append(np.stack(members[:cut] if split == "val" else members[cut:]))
    return parts


def enlarged(digit: Bytes) -> Image.Image:
    """An 8 × 8 digit as a smooth "L" image, four texels to a cell, trimmed to its ink.

    Sharpened over about one cell, so that a threshold leaves thin strokes whole and loops open.
    """
    levels = np.pad(digit, 1).astype(np.float32) * np.float32(255 / 16)
    smooth = Image.fromarray(levels).resize((GLYPH_SIDE, GLYPH_SIDE), Image.Resampling.BICUBIC)
    ink_map = Image.fromarray(np.asarray(smooth).clip(0, 255).astype(np.uint8))
    around = np.asarray(ink_map.filter(ImageFilter.BoxBlur(_CELL * 1.25)), np.float32)
    sharp = np.float32(_SHARPEN + 1) * np.asarray(ink_map, np.float32) - np.float32(_SHARPEN) * around
    glyph = Image.fromarray(sharp.clip(0, 255).astype(np.uint8)).filter(ImageFilter.BoxBlur(1))
    return glyph.crop(glyph.getbbox())  # a small source makes a small, quick warp


def warp(rng: Draws, glyph: Image.Image, height: float) -> Image.Image:
    """A glyph about ``height`` pixels high, turned, sheared and stretched a little: an "L" mask of its ink.

    The mask is cropped to its box: at least one pixel of each outer row and column is ``VISIBLE``.
    """
    angle, shear, stretch = rng.uniform(-0.26, 0.26), rng.uniform(-0.2, 0.2), rng.uniform(0.8, 1.15)
    # 2**-20 is no visible angle, but more than two libms differ by.
    c, s = (round(f(angle) * 2**20) / 2**20 for f in (cos, sin))
    scale = height / glyph.height  # pixels a texel
    # Forward: turn · shear · stretch · scale; Pillow wants the way back, from pixels to texels.
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
    # Tables on bytes: Image.point would spend longer on reading its table than on the pixels.
    coverage = Image.frombytes("L", shape.size, levels.translate(curve))
    visible = Image.frombytes("L", shape.size, levels.translate(curve.translate(_VISIBLE_CURVE)))
    return coverage.crop(visible.getbbox())


_VISIBLE_CURVE = bytes(255 if level >= VISIBLE else 0 for level in range(256))
_LEVELS = np.arange(256, dtype=np.float64) / 255


def _ink_curve(rng: Draws, cell: float) -> bytes:
    """Gray level to ink coverage: a threshold one to two pixels soft, where a cell is ``cell`` pixels.

    The threshold sets how thick the stroke is. The slope is never so low that paper takes ink.
    """
    level, softness = rng.uniform(0.42, 0.55), rng.uniform(1.0, 2.2)
    slope = max(cell / softness, 0.5 / level)
    curve = ((_LEVELS - level) * slope + 0.5).clip(0, 1) * 255
    return bytes(np.rint(curve).astype(np.uint8))
