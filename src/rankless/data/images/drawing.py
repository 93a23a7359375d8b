"""Draw labeled boxes on images."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from rankless.data.images.fonts import Font, font_for

Color = tuple[int, int, int]
Floats = NDArray[np.float64]
Rectangle = tuple[float, float, float, float]

_REACH = 6  # maximum distance of a label from its box, in label heights
_MOST_PLACES = 10_000  # maximum number of candidate positions

# Each color is as different as possible from all earlier colors, so the first few are the most distinct. They
# were chosen from points of OKLCH (Ottosson, A perceptual color space, 2020) with lightness 0.5 to 0.92 and
# chroma 0.07 to 0.24, neither too dark nor too pale for a line, with a weight of 1.6 for differences in hue.
_COLORS = bytes.fromhex("""
    e14b39 6bf548 3646e8 afd5fe 2b7440 d657f1 cfa508 87678e f89fbb 66c093 7591f4 fde0b0 ab1d72 905211
    8437b2 edee31 0e6a9b fb40ad 32a8c7 8afde7 bc8c71 38a017 c88ef1 adfd9c 8a8c34 5554b6 974555 7a47f3
    b761b1 f9875e f21764 aaa4d5 599480 b2cb52 bb1cb5 e06c94 f1bafe 56d3da 2dcb65 b71532 c0c28e 20f6a5
    6e87b1 956ed2 f7cc4b 276ee1 f674d0 6c6433 29706c e6af9c cb6620 903d8b bf696a b688a6 cdf1c5 73b0ee
    faab3f 986655 9f33da 82c11f 7472f4 d44996 2f8adc a7e954 568502 5b5f8b 8aa173 aef2fe e9ec94 b07932
    a63c0c 2cdcaf b74771 8da523 f398eb 25aea7 7468b0 de9a60 d8aed3 9ce6ab 619655 90cdb7 b7698f 74b7c3
    f964f1 db2fb2 7d24d3 a053fd 45b164 bc70ee ad85cb afb15b 4d74b5 6bcbf7 8e710f 04896a
""")
COUNT = len(_COLORS) // 3  # Number of distinct colors. Further classes repeat them.


class Mark(NamedTuple):
    """A box to draw."""

    box: Rectangle  # xyxy in pixels of the image
    text: str  # text of the label; "" for no label
    label: int  # class id, which determines the color
    short: str = ""  # a shorter text, for contact sheets with little space
    dashed: bool = False  # whether the outline is dashed, as for annotations in contrast to predictions

    def scaled(self, scale: float) -> Mark:
        """Return the mark for an image that is ``scale`` times as large."""
        x1, y1, x2, y2 = self.box
        return self._replace(box=(x1 * scale, y1 * scale, x2 * scale, y2 * scale))


def color(label: int) -> Color:
    red, green, blue = _COLORS[label % COUNT * 3 :][:3]
    return red, green, blue


def annotate(image: Image.Image, marks: Sequence[Mark]) -> Image.Image:
    """Return a copy of an RGB image with all marks drawn on it, the first mark on top.

    Labels are placed next to their boxes. A label without space there is placed as near as possible and
    connected to its box by a line. Text that no available font can draw is replaced with the class id, as
    in ``#3: 90%``.
    """
    drawn = image.copy()
    draw = ImageDraw.Draw(drawn)
    # Line width and font size are proportional to the square root of the side: 2 and 13 pixels for 400
    # pixels.
    root = (image.width * image.height) ** 0.25
    line, size = max(1, round(root / 9)), max(10, round(0.7 * root))
    frames = [_around(mark.box, line, image.size) for mark in marks]
    named = [(mark, frame) for mark, frame in zip(marks, frames, strict=True) if mark.text]
    texts = [_text_of(mark, size, image.width, draw) for mark, _ in named]
    labels = place([text.size for text in texts], [frame for _, frame in named], image.size)
    for mark, frame in reversed(list(zip(marks, frames, strict=True))):
        _outline(draw, frame, color(mark.label), line, dashed=mark.dashed)
    for (mark, frame), label in zip(named, labels, strict=True):
        if link := _link(frame, label):
            draw.line(link, fill=(0, 0, 0), width=line + 2 * _rim(line))
            draw.line(link, fill=color(mark.label), width=line)
    for (mark, _), text, label in reversed(list(zip(named, texts, labels, strict=True))):
        fill = color(mark.label)
        draw.rectangle(_pixels(label), fill=fill)
        at = (label[0] + _pad(size), (label[1] + label[3]) / 2)
        draw.text(at, text.text, fill=_ink(fill), font=text.font, anchor="lm")
    return drawn


def _ink(background: Color) -> Color:
    """Return black or white, whichever has the higher WCAG 2 contrast with the background."""
    linear = [(c / 255 / 12.92) if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in background]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return (0, 0, 0) if luminance > 0.179 else (255, 255, 255)


def _outline(
    draw: ImageDraw.ImageDraw, frame: Rectangle, fill: Color, line: int, *, dashed: bool = False
) -> None:
    """Draw a frame in the given color with dark rims, so that it is visible on light areas."""
    rim = _rim(line)
    x1, y1, x2, y2 = _pixels(frame)
    wide = line + 2 * rim
    if dashed:
        for left, right in _dashes(x1, x2, 4 * wide):
            for top in (y1, y2 - wide + 1):
                draw.rectangle((left, top, right, top + wide - 1), fill, (0, 0, 0), rim)
        for top, bottom in _dashes(y1, y2, 4 * wide):
            for left in (x1, x2 - wide + 1):
                draw.rectangle((left, top, left + wide - 1, bottom), fill, (0, 0, 0), rim)
        return
    draw.rectangle((x1, y1, x2, y2), outline=(0, 0, 0), width=wide)
    if min(x2 - x1, y2 - y1) > 2 * rim:
        draw.rectangle((x1 + rim, y1 + rim, x2 - rim, y2 - rim), outline=fill, width=line)


def _dashes(first: int, last: int, length: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last pixel of each dash in a line; a dash is about ``length`` pixels long."""
    count = max(1, round((last - first + 1) / length / 1.5 + 1 / 3))
    period = (last - first + 1) / (count - 1 / 3)
    for at in range(count):
        yield round(first + at * period), min(last, round(first + (at + 2 / 3) * period) - 1)


def _rim(line: int) -> int:
    return max(1, line // 3)


def _around(box: Rectangle, line: int, size: tuple[int, int]) -> Rectangle:
    grow = line + 2 * _rim(line)
    x1, y1 = max(0.0, box[0] - grow), max(0.0, box[1] - grow)
    return x1, y1, min(float(size[0]), box[2] + grow), min(float(size[1]), box[3] + grow)


def _pixels(box: Rectangle) -> tuple[int, int, int, int]:
    """Convert a box to inclusive pixel indices, xyxy, with at least one pixel per side."""
    x1, y1 = round(box[0]), round(box[1])
    return x1, y1, max(x1, round(box[2]) - 1), max(y1, round(box[3]) - 1)


def _pad(size: int) -> int:
    return max(1, round(size / 6))


class _Text(NamedTuple):
    """The text of a label, its font, and the (width, height) of the label."""

    text: str
    font: Font
    size: tuple[int, int]


def _text_of(mark: Mark, size: int, widest: int, draw: ImageDraw.ImageDraw) -> _Text:
    text, font = mark.text, font_for(mark.text, size)
    if font is None:
        text = f"#{mark.label}{':' * (':' in text)} {text.rpartition(' ')[2] if ':' in text else ''}".strip()
        font = ImageFont.load_default(size)
    text = _shorten(text, draw, font, widest - 2 * _pad(size))
    _, top, _, bottom = draw.textbbox((0, 0), f"Äg{text}", font=font, anchor="lm")
    width, height = draw.textlength(text, font=font), 2 * max(-top, bottom)
    return _Text(text, font, (math.ceil(width + 2 * _pad(size)), math.ceil(height + 2 * _pad(size))))


def place(
    labels: Sequence[tuple[int, int]], frames: Sequence[Rectangle], size: tuple[int, int]
) -> list[Rectangle]:
    """Return a position, xyxy in whole pixels, for each label. Earlier labels have precedence.

    Labels overlap only if there is no free position within six label heights of the box.

    Args:
        labels: (width, height) of each label.
        frames: xyxy frame of each label's box.
        size: (width, height) of the image.
    """
    placed = np.zeros((len(labels), 4))
    for number, ((width, height), frame) in enumerate(zip(labels, frames, strict=True)):
        near = _inside(np.array(list(_candidates(frame, width, height))), size)
        hidden = _hidden(near, frame, placed[:number])
        if hidden.min() > 0:
            near = _inside(_further(frame, width, height), size)
            hidden = _hidden(near, frame, placed[:number])
        # argmin returns the first minimum, and candidates are in order of preference.
        placed[number] = near[hidden.argmin()]
    return [(x1, y1, x2, y2) for x1, y1, x2, y2 in placed.tolist()]


def _hidden(candidates: Floats, box: Rectangle, placed: Floats) -> Floats:
    """Return the cost, (N,), of each position: the area that it hides of earlier labels and of the box."""
    own = _overlaps(candidates, np.array([box]))[:, 0]
    own[own < 0.2 * (box[2] - box[0]) * (box[3] - box[1])] = 0
    hidden: Floats = own / 2 + _overlaps(candidates, placed).sum(1)
    return hidden


def _candidates(box: Rectangle, width: float, height: float) -> Iterator[Rectangle]:
    x1, y1, x2, y2 = box
    tops = (y1 - height, y1, y2, y2 - height)
    if y1 < height:  # no space above
        tops = (y1, y2, y2 - height, y1 + height)
    for top in tops:
        for left in (x1, x2 - width):
            yield left, top, left + width, top + height


def _further(box: Rectangle, width: float, height: float) -> Floats:
    """Return label positions around a box, (N, 4), nearest first."""
    x1, y1, x2, y2 = box
    reach_x, reach_y = _REACH * height, _REACH * height
    lefts = np.arange(x1 - width - reach_x, x2 + reach_x + 1, max(1.0, height / 2))
    tops = np.arange(y1 - height - reach_y, y2 + reach_y + 1, max(1.0, height / 2))
    if len(lefts) * len(tops) > _MOST_PLACES:  # for a large box
        lefts = np.linspace(lefts[0], lefts[-1], 100)
        tops = np.linspace(tops[0], tops[-1], 100)
    left, top = (axis.ravel() for axis in np.meshgrid(lefts, tops))
    away_x = np.maximum(np.maximum(x1 - (left + width), left - x2), 0)
    away_y = np.maximum(np.maximum(y1 - (top + height), top - y2), 0)
    # At equal distances, positions near the upper left corner come first.
    order = np.lexsort((np.abs(left - x1) + np.abs(top + height - y1), np.hypot(away_x, away_y)))
    return np.stack([left, top, left + width, top + height], 1)[order]


def _inside(frames: Floats, size: tuple[int, int]) -> Floats:
    """Move rectangles, (N, 4), into the image and align them to whole pixels."""
    sides = np.round(frames[:, 2:] - frames[:, :2])  # removes rounding errors
    corners = np.clip(np.round(frames[:, :2]), 0, np.maximum(np.array(size) - sides, 0))
    return np.concatenate([corners, corners + sides], 1)


def _overlaps(one: Floats, other: Floats) -> Floats:
    least, most = (
        np.maximum(one[:, None, :2], other[None, :, :2]),
        np.minimum(one[:, None, 2:], other[None, :, 2:]),
    )
    shared: Floats = np.clip(most - least, 0, None).prod(2)
    return shared


def _link(frame: Rectangle, label: Rectangle) -> tuple[float, float, float, float] | None:
    """Return the ends of a line between a label and its box, or None if they touch."""
    nearest = [
        (
            min(max(label[axis], frame[axis]), frame[axis + 2]),
            min(max(frame[axis], label[axis]), label[axis + 2]),
        )
        for axis in (0, 1)
    ]
    (x1, x2), (y1, y2) = nearest
    if abs(x1 - x2) <= 1 and abs(y1 - y2) <= 1:
        return None
    return x1, y1, x2, y2


def _shorten(text: str, draw: ImageDraw.ImageDraw, font: Font, room: float) -> str:
    """Shorten a text to ``room`` pixels, keeping its last word, the score."""
    name, _, score = text.rpartition(" ")
    while len(name) > 1 and draw.textlength(text, font=font) > room:
        name = name[:-1]
        text = f"{name}… {score}"
    return text
