"""Render the surroundings of the built-in digits: backgrounds, clutter, ink and sensor noise.

Rendering uses only integer arithmetic, tables and Pillow, and no matrix products, so the result does not
depend on the number of threads. All colors are at least ``HEADROOM`` away from 0 and 255, so that noise never
overflows a byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from rankless.randomness import generator

Bytes = NDArray[np.uint8]
Box = tuple[int, int, int, int]
Color = tuple[int, int, int]

GLYPH_SIDE = 40
"""Side of an enlarged glyph before trimming: 8 cells and a border of 1 cell, with 4 texels per cell."""
HEADROOM = 20
_DARKEST, _LIGHTEST = HEADROOM, 255 - HEADROOM
_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, as Pillow's "L"
_BANK_KEY = 0  # textures belong to the data set, so they do not depend on the recipe's seed
_MARGIN = 128  # number of pixels by which textures are larger than a scene, so that crops vary
_GRADIENT_CELLS = (60, 75, 90, 110, 140, 180)  # sides of noise cells in pixels
_NOISE_CELLS = (1, 2, 4, 9, 20)
_DEVIATIONS = (1.5, 3.0, 5.0, 7.0)  # standard deviations of the sensor noise, in gray levels


class Draws:
    """A source of single random numbers that is ten times as fast as NumPy's scalar methods."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._next = self._numbers(rng).__next__

    @staticmethod
    def _numbers(rng: np.random.Generator) -> Iterator[float]:
        while True:
            yield from rng.random(256).tolist()

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        return low + (high - low) * self._next()

    def below(self, count: int) -> int:
        """Return a random integer in 0..count-1."""
        return int(self._next() * count)

    def log_uniform(self, low: float, high: float) -> float:
        """Return a log-uniform random number in [low, high), rounded to 1/16 for portability."""
        return round(16 * low * float((high / low) ** self._next())) / 16


def color(rng: Draws, luma: float, vividness: float = 1.0) -> Color:
    """Return a random color with the given luma (0 to 255), at least ``HEADROOM`` away from 0 and 255."""
    raw = rng.uniform(-1.0, 1.0), rng.uniform(-1.0, 1.0), rng.uniform(-1.0, 1.0)
    mean = _LUMA[0] * raw[0] + _LUMA[1] * raw[1] + _LUMA[2] * raw[2]
    room = 1e9
    for value in raw:
        if value != mean:
            room = min(room, ((_LIGHTEST if value > mean else _DARKEST) - luma) / (value - mean))
    scale = room * vividness * rng.uniform()
    red, green, blue = (round(luma + scale * (value - mean)) for value in raw)
    return red, green, blue


def ink(rng: Draws, canvas: Image.Image, box: Box, contrast: float) -> Color:
    """Return a color that contrasts with nearly all pixels in ``box``.

    Its luma is at least ``contrast`` levels above the 97th percentile of the luma in ``box``, or below the
    3rd percentile. If neither is possible, the luma is the extreme value with the higher contrast.
    """
    sample = canvas.resize((12, 12), Image.Resampling.NEAREST, box=box)
    lumas = sorted(sample.convert("L").tobytes())
    low, high = lumas[4], lumas[139]
    darker, lighter = low - _DARKEST, _LIGHTEST - high
    if min(darker, lighter) >= contrast:
        down = rng.uniform() < 0.5
    else:
        down = darker > lighter
    room = darker if down else lighter
    step = contrast + (room - contrast) * rng.uniform() ** 2 if room > contrast else room
    return color(rng, low - step if down else high + step)


def background(rng: Draws, height: int, width: int) -> Image.Image:
    """Return a textured RGB background: a mixture of a gradient, noise and a pattern, colored by a palette.

    The luma of the palette spans at most 130 of 256 levels, so that a contrasting ink always exists.
    """
    gradients, noises = _textures(height, width)
    gradient = _crop(rng, gradients[rng.below(len(gradients))], height, width)
    noise = _crop(rng, noises[rng.below(len(noises))], height, width)
    weights = [rng.uniform() ** 2 for _ in range(3)]
    if rng.uniform() < 0.4:
        weights[2] = 0.0
    total = sum(weights) + 1e-9
    noise_weight, pattern_weight = (round(255 * weight / total) for weight in weights[1:])
    mixed = noise * np.uint16(noise_weight)  # the weights add up to 256, so 16 bits suffice
    mixed += gradient * np.uint16(256 - noise_weight - pattern_weight)
    if pattern_weight:
        mixed += _pattern(rng, noise) * np.uint16(pattern_weight)
    span = rng.uniform(15, 130)
    low = rng.uniform(_DARKEST, _LIGHTEST - span)
    canvas = Image.fromarray((mixed >> 8).astype(np.uint8))
    canvas.putpalette(_palette(rng, low, low + span))
    canvas = canvas.convert("RGB")
    _panels_and_lines(rng, canvas, low, low + span)
    return canvas


def sensor_noise(rng: Draws, planes: Bytes) -> None:
    """Randomly add gray noise, colored noise or no noise to ``planes``, uint8 (3, H, W), in place."""
    _, height, width = planes.shape
    choice = rng.below(len(_DEVIATIONS) + 1)
    if choice == len(_DEVIATIONS):
        return
    bank = _noise(height, width)[choice]
    if rng.uniform() < 0.5:
        planes += _crop(rng, bank, height, width)  # bytes wrap around, as in two's complement
    else:
        for plane in planes:
            plane += _crop(rng, bank, height, width)


def _crop(rng: Draws, bank: Bytes, height: int, width: int) -> Bytes:
    top, left = rng.below(_MARGIN), rng.below(_MARGIN)
    piece = bank[top : top + height, left : left + width]
    return piece[:: 1 - 2 * rng.below(2), :: 1 - 2 * rng.below(2)]


def _pattern(rng: Draws, noise: Bytes) -> Bytes:
    """Return random stripes, checkers or rings, uint8 (H, W), sharp or smooth, some distorted by noise."""
    height, width = noise.shape
    x, y = np.arange(width, dtype=np.uint16), np.arange(height, dtype=np.uint16)[:, None]
    # A phase is a 16-bit number that wraps after one period: a step of 2000 repeats every 33 pixels.
    step_x, step_y = (round(rng.uniform(-1, 1) * rng.log_uniform(900, 9000)) for _ in range(2))
    along, across = x * np.uint16(step_x % 65536), y * np.uint16(step_y % 65536)
    kind = rng.below(4)
    if kind == 0:
        return ((along ^ across) >> 15).astype(np.uint8) * np.uint8(255)
    if kind == 1:
        center_x, center_y = rng.below(width), rng.below(height)
        across = (y - np.uint16(center_y)) ** 2 * np.uint16(1 + abs(step_y) // 700)
        along = (x - np.uint16(center_x)) ** 2 * np.uint16(1 + abs(step_y) // 700)
    phase = along + across
    if rng.uniform() < 0.5:
        phase += noise * np.uint16(rng.below(160))
    if kind == 2:
        return (phase >> 15).astype(np.uint8) * np.uint8(255)
    ramp = (phase >> 7).astype(np.int16)  # 0..511, folded into a triangle wave
    return np.minimum(ramp, 511 - ramp).astype(np.uint8)


def _palette(rng: Draws, low: float, high: float) -> bytes:
    """Return 256 RGB entries that interpolate random colors with luma from ``low`` to ``high``, inclusive."""
    count = 2 + rng.below(4)
    lumas = [low, high] + [rng.uniform(low, high) for _ in range(count - 2)]
    shift = rng.below(count)
    stops = [color(rng, luma, 0.7) for luma in lumas[shift:] + lumas[:shift]]
    at = np.linspace(0, 255, count)
    ramps = [np.interp(np.arange(256), at, [stop[channel] for stop in stops]) for channel in range(3)]
    return np.rint(np.stack(ramps, axis=1)).astype(np.uint8).tobytes()


def _panels_and_lines(rng: Draws, canvas: Image.Image, low: float, high: float) -> None:
    draw = ImageDraw.Draw(canvas)
    width, height = canvas.size
    for _ in range(rng.below(4)):
        x, y = rng.uniform(-0.2, 0.9) * width, rng.uniform(-0.2, 0.9) * height
        corners = (x, y, x + rng.uniform(0.15, 0.7) * width, y + rng.uniform(0.15, 0.7) * height)
        shape = draw.rectangle if rng.uniform() < 0.6 else draw.ellipse
        shape(corners, fill=color(rng, rng.uniform(low, high), 0.7))
    for _ in range(rng.below(5)):
        ends = [
            (rng.uniform(-0.2, 1.2) * width, rng.uniform(-0.2, 1.2) * height) for _ in range(2 + rng.below(2))
        ]
        draw.line(ends, fill=color(rng, rng.uniform(low, high)), width=1 + rng.below(4))


@lru_cache(maxsize=4)
def _textures(height: int, width: int) -> tuple[list[Bytes], list[Bytes]]:
    """Return coarse and fine noise textures, uint8 (height + margin, width + margin)."""

    def texture(cell: int) -> Bytes:
        rows, columns = ((side + _MARGIN) // cell + 3 for side in (height, width))
        cells = generator(_BANK_KEY, "digits", "texture", cell).integers(0, 256, (rows, columns), np.uint8)
        smooth = Image.fromarray(cells).resize((columns * cell, rows * cell), Image.Resampling.BICUBIC)
        top = left = cell  # the outermost cells are flat
        return np.asarray(smooth)[top : top + height + _MARGIN, left : left + width + _MARGIN].copy()

    return [texture(cell) for cell in _GRADIENT_CELLS], [texture(cell) for cell in _NOISE_CELLS]


@lru_cache(maxsize=4)
def _noise(height: int, width: int) -> list[Bytes]:
    """Return sensor noise for each standard deviation as two's complement bytes, limited to the headroom."""
    rng = generator(_BANK_KEY, "digits", "noise")
    normal = rng.standard_normal((height + _MARGIN, width + _MARGIN))
    bounded = [np.rint(d * normal).clip(-HEADROOM, HEADROOM) for d in _DEVIATIONS]
    return [levels.astype(np.int8).view(np.uint8) for levels in bounded]


@cache
def scribbles() -> tuple[Image.Image, ...]:
    """Return grayscale drawings that resemble handwriting but show no digits, trimmed to their ink."""
    rng = Draws(generator(_BANK_KEY, "digits", "scribbles"))
    drawings = []
    for number in range(96):
        sheet = Image.new("L", (4 * GLYPH_SIDE, 4 * GLYPH_SIDE))
        _SHAPES[number % len(_SHAPES)](rng, ImageDraw.Draw(sheet))
        drawing = sheet.resize((GLYPH_SIDE, GLYPH_SIDE), Image.Resampling.LANCZOS)
        drawings.append(drawing.crop(drawing.getbbox()))
    return tuple(drawings)


# The shapes are drawn on a sheet of 160 × 160 pixels with its center at (80, 80). There are no rings, single
# strokes or squares, because they would look like 0 or 1.


def _zigzag(rng: Draws, draw: ImageDraw.ImageDraw) -> None:
    turns = 5 + rng.below(4)
    reaches = [(1 - 2 * (turn % 2)) * rng.uniform(15, 50) for turn in range(turns + 1)]
    points = [(22 + 116 * turn / turns, 80 + reach) for turn, reach in enumerate(reaches)]
    if rng.uniform() < 0.5:
        points = [(y, x) for x, y in points]
    draw.line(points, fill=255, width=9 + rng.below(5), joint="curve")


def _star(rng: Draws, draw: ImageDraw.ImageDraw) -> None:
    strokes = ((60, 0), (0, 60), (42, 42), (42, -42), (55, 23), (-23, 55))
    for x, y in strokes[: 3 + rng.below(4)]:
        reach = rng.uniform(0.8, 1.0)
        ends = (80 - x * reach, 80 - y * reach, 80 + x * reach, 80 + y * reach)
        draw.line(ends, fill=255, width=8 + rng.below(6))


def _blob(rng: Draws, draw: ImageDraw.ImageDraw) -> None:
    for _ in range(3 + rng.below(4)):
        x, y, radius = rng.uniform(55, 105), rng.uniform(50, 110), rng.uniform(18, 35)
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)


def _polygon(rng: Draws, draw: ImageDraw.ImageDraw) -> None:
    corners = [(80, 22), (136, 60), (118, 132), (42, 132), (24, 60)]
    if rng.uniform() < 0.5:
        corners = [(24, 132), (80, 24), (136, 132)]
    draw.polygon([(x + rng.uniform(-9, 9), y + rng.uniform(-9, 9)) for x, y in corners], fill=255)


def _grid(rng: Draws, draw: ImageDraw.ImageDraw) -> None:
    for offset in (-22 - rng.below(12), 0, 22 + rng.below(12)):
        draw.line((80 + offset, 24, 80 + offset + rng.uniform(-8, 8), 136), fill=255, width=9)
        draw.line((24, 80 + offset, 136, 80 + offset + rng.uniform(-8, 8)), fill=255, width=9)


def _dots(rng: Draws, draw: ImageDraw.ImageDraw) -> None:
    for column in range(3):
        for row in range(3):
            x, y, radius = 40 + 40 * column, 40 + 40 * row, rng.uniform(8, 15)
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)


def _tangle(rng: Draws, draw: ImageDraw.ImageDraw) -> None:
    points = [(rng.uniform(24, 136), rng.uniform(24, 136)) for _ in range(9)]
    draw.line(points, fill=255, width=8, joint="curve")


_SHAPES = (_zigzag, _star, _blob, _polygon, _grid, _dots, _tangle)
