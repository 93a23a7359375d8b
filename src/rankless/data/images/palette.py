"""Class colors: each is as far as possible from all earlier ones, so the first few are the most distinct."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

Color = tuple[int, int, int]
COUNT = 96
"""So many colors can be distinguished; more classes repeat them."""

# Points of OKLCH (Ottosson, A perceptual color space, 2020), neither too dark nor too pale for a line.
_LIGHTNESS = np.arange(0.50, 0.93, 0.06)
_CHROMA = (0.07, 0.11, 0.15, 0.19, 0.24)
_HUES = range(0, 360, 10)
_FIRST = (0.62, 0.19, 30)  # a red
_OF_HUE = 1.6  # differences in hue are easier to see than differences in lightness


def color(label: int) -> Color:
    """Return the color of a class id."""
    return _colors()[label % COUNT]


@cache
def _colors() -> list[Color]:
    points = np.array([_oklab(*each) for each in _grid()])
    linear = _linear(points)
    real = ((linear >= 0) & (linear <= 1)).all(1)  # inside the sRGB gamut
    points, linear = points[real], linear[real]
    seen = points * np.array([1.0, _OF_HUE, _OF_HUE])
    chosen = [int(np.linalg.norm(points - np.array(_oklab(*_FIRST)), axis=1).argmin())]
    distance = np.linalg.norm(seen - seen[chosen[0]], axis=1)
    while len(chosen) < COUNT:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, np.linalg.norm(seen - seen[chosen[-1]], axis=1))
    encoded = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear.clip(0) ** (1 / 2.4) - 0.055)
    return [(red, green, blue) for red, green, blue in np.rint(255 * encoded[chosen]).astype(int).tolist()]


def _grid() -> list[tuple[float, float, float]]:
    return [(each, chroma, hue) for each in _LIGHTNESS.tolist() for chroma in _CHROMA for hue in _HUES]


def _oklab(lightness: float, chroma: float, hue: float) -> tuple[float, float, float]:
    return lightness, chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))


def _linear(oklab: NDArray[np.float64]) -> NDArray[np.float64]:
    """Convert points of OKLab to linear sRGB, (N, 3)."""
    lightness, a, b = oklab.T
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    red = 4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short
    green = -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short
    blue = -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short
    return np.stack([red, green, blue], 1)
