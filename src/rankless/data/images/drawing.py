"""Boxes with labels drawn on an image, legible on light and on dark ones, small and large."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

Color = tuple[int, int, int]
Rectangle = tuple[float, float, float, float]

_GOLDEN_ANGLE = math.pi * (3 - math.sqrt(5))  # neighboring class ids get hues far apart
_LIGHTNESS = (0.72, 0.60, 0.82)  # classes whose hues come close again differ in lightness
_CHROMA = 0.17


class Mark(NamedTuple):
    """One box to draw.

    Attributes:
        box: xyxy in pixels of the image.
        text: what stands on its label; without one it has none.
        label: class id; it gives the color.
    """

    box: Rectangle
    text: str
    label: int


def annotate(image: Image.Image, marks: Sequence[Mark]) -> Image.Image:
    """A copy of ``image`` (RGB) with every mark drawn on it, the first on top.

    Line width and font size follow the image's size. A label stands above its box where there is room that
    no earlier label took, else inside, below or beside its right end. The font is Pillow's own, which has
    Latin letters; others show as boxes.
    """
    drawn = image.copy()
    draw = ImageDraw.Draw(drawn)
    # Grow with the root of the side: 1 px and 10 on 100 px, 2 and 13 on 400 px, 5 and 31 on 2,000 px.
    root = (image.width * image.height) ** 0.25
    line = max(1, round(root / 9))
    font = ImageFont.load_default(max(10, round(0.7 * root)))
    frames = [_around(mark.box, line, image.size) for mark in marks]
    named = [(mark, frame) for mark, frame in zip(marks, frames, strict=True) if mark.text]
    labels = _place([mark for mark, _ in named], [frame for _, frame in named], draw, font, image.size)
    for mark, frame in reversed(list(zip(marks, frames, strict=True))):
        _outline(draw, frame, color(mark.label), line)
    for (mark, _), (frame, text) in reversed(list(zip(named, labels, strict=True))):
        fill = color(mark.label)
        draw.rectangle(_pixels(frame), fill=fill)
        pad = _pad(font)
        draw.text((frame[0] + pad, frame[1] + pad), text, fill=_ink(fill), font=font, anchor="la")
    return drawn


def color(label: int) -> Color:
    """The color of a class: hues a golden angle apart, OKLCH (Ottosson, A perceptual color space, 2020)."""
    hue = 0.5 + label * _GOLDEN_ANGLE
    lightness = _LIGHTNESS[label % len(_LIGHTNESS)]
    a, b = _CHROMA * math.cos(hue), _CHROMA * math.sin(hue)
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    return (
        _srgb(4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short),
        _srgb(-1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short),
        _srgb(-0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short),
    )


def _srgb(linear: float) -> int:
    linear = min(max(linear, 0.0), 1.0)
    encoded = 12.92 * linear if linear <= 0.0031308 else 1.055 * linear ** (1 / 2.4) - 0.055
    return round(255 * encoded)


def _ink(background: Color) -> Color:
    """Black or white, whichever has the higher contrast (WCAG 2: they part at a luminance of 0.179)."""
    linear = [(c / 255 / 12.92) if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in background]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return (0, 0, 0) if luminance > 0.179 else (255, 255, 255)


def _outline(draw: ImageDraw.ImageDraw, frame: Rectangle, fill: Color, line: int) -> None:
    """A colored line between two dark ones, which part it from light ground."""
    rim = _rim(line)
    x1, y1, x2, y2 = _pixels(frame)
    draw.rectangle((x1, y1, x2, y2), outline=(0, 0, 0), width=line + 2 * rim)
    if min(x2 - x1, y2 - y1) > 2 * rim:
        draw.rectangle((x1 + rim, y1 + rim, x2 - rim, y2 - rim), outline=fill, width=line)


def _rim(line: int) -> int:
    return max(1, line // 3)


def _around(box: Rectangle, line: int, size: tuple[int, int]) -> Rectangle:
    """The frame's outer edge: outside the box, which may be small, but on the image."""
    grow = line + 2 * _rim(line)
    x1, y1 = max(0.0, box[0] - grow), max(0.0, box[1] - grow)
    return x1, y1, min(float(size[0]), box[2] + grow), min(float(size[1]), box[3] + grow)


def _pixels(box: Rectangle) -> tuple[int, int, int, int]:
    """First and last column and row that a box of pixel edges covers; at least one of each."""
    x1, y1 = round(box[0]), round(box[1])
    return x1, y1, max(x1, round(box[2]) - 1), max(y1, round(box[3]) - 1)


def _pad(font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> int:
    return max(1, round(getattr(font, "size", 10) / 6))


def _place(
    marks: Sequence[Mark],
    around: Sequence[Rectangle],
    draw: ImageDraw.ImageDraw,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
    size: tuple[int, int],
) -> list[tuple[Rectangle, str]]:
    """A frame and a text for each label; earlier marks choose first."""
    placed: list[tuple[Rectangle, str]] = []
    pad = _pad(font)
    height = draw.textbbox((0, 0), "Äg", font=font, anchor="la")[3] + 2 * pad
    for mark, outer in zip(marks, around, strict=True):
        text = _shorten(mark.text, draw, font, size[0] - 2 * pad)
        width = draw.textlength(text, font=font) + 2 * pad
        frames = [_inside(frame, size) for frame in _candidates(outer, width, height)]
        hidden = [_hidden(frame, mark.box, placed) for frame in frames]
        # The first of equals: the order of the candidates is the order of preference.
        placed.append((frames[hidden.index(min(hidden))], text))
    return placed


def _hidden(frame: Rectangle, box: Rectangle, placed: Sequence[tuple[Rectangle, str]]) -> float:
    """Pixels of earlier labels under the frame, and of its box where it hides much of that."""
    hidden = _overlap(frame, box)
    if hidden < 0.2 * (box[2] - box[0]) * (box[3] - box[1]):
        hidden = 0.0
    return hidden / 2 + sum(_overlap(frame, other) for other, _ in placed)


def _candidates(box: Rectangle, width: float, height: float) -> Iterator[Rectangle]:
    """Above, inside at the top, below, inside at the bottom; each at the left, then at the right."""
    x1, y1, x2, y2 = box
    tops = (y1 - height, y1, y2, y2 - height)
    if y1 < height:  # no room above
        tops = (y1, y2, y2 - height, y1 + height)
    for top in tops:
        for left in (x1, x2 - width):
            yield left, top, left + width, top + height


def _inside(frame: Rectangle, size: tuple[int, int]) -> Rectangle:
    """The frame moved onto the image, on whole pixels."""
    width, height = math.ceil(frame[2] - frame[0]), math.ceil(frame[3] - frame[1])
    left = max(0, min(round(frame[0]), size[0] - width))
    top = max(0, min(round(frame[1]), size[1] - height))
    return left, top, left + width, top + height


def _overlap(one: Rectangle, other: Rectangle) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(0.0, width) * max(0.0, height)


def _shorten(
    text: str, draw: ImageDraw.ImageDraw, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, room: float
) -> str:
    """The text, cut until it fits, except its last word: the score stays."""
    name, _, score = text.rpartition(" ")
    while len(name) > 1 and draw.textlength(text, font=font) > room:
        name = name[:-1]
        text = f"{name}… {score}"
    return text
