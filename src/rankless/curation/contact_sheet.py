"""Many images on one sheet: a PNG to look at, or a page for a browser in one file."""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from rankless.curation.data_set import spare
from rankless.curation.looking import Selection, Shown
from rankless.data.images.drawing import Mark, annotate
from rankless.data.images.palette import color
from rankless.errors import UserError, counted, escaped
from rankless.files.outputs import Outputs

WIDTH, HEIGHT = 1656, 300
"""Of a PNG's rows at most, and about how high its images are, in pixels."""
PAGE_WIDTH, PAGE_HEIGHT = 1800, 480
"""Of an image on a page, at most: it is shown about two thirds as high, sharp on dense screens too."""
LARGEST_ZOOM = 6
CROWDED = 24
COVERED = 0.12
"""Of an image with more boxes, or with labels on more of it, the texts are short or left to the legend."""
_NARROWEST = 0.35  # width over height that an image has room for at least: its caption stands below it
_WIDEST = 6.0  # width over height of the largest room
_HIGHEST = 3 * HEIGHT  # of a row
_GAP, _CAPTION, _TITLE, _LEGEND, _HEADING = 14, 24, 46, 30, 38
_INK, _FAINT, _PAPER = (28, 30, 34), (105, 110, 118), (255, 255, 255)


def write(selection: Selection, out: Path, outputs: Outputs) -> None:
    """Write the sheet to ``out``, one of the outputs.

    Raises:
        UserError: nothing to show, or it cannot be written.
    """
    if not selection.shown:
        raise UserError(f"{selection.title}: no such image to show")
    outputs.refuse_inputs(selection.files)
    if selection.root is not None:
        spare(outputs, selection.root, selection.format)
    with outputs.writing(out) as file:
        if out.suffix.lower() == ".html":
            file.write_text(page(selection), encoding="utf-8")
        else:
            sheet(selection).save(file, "PNG" if out.suffix.lower() == ".png" else "JPEG")


def sheet(selection: Selection) -> Image.Image:
    """All images in rows that are full to their end, with captions and a title."""
    rows = [row for group in _groups(selection.shown) for row in _rows(group)]
    width = max(_width_of(row) for row in rows) + 2 * _GAP
    legend = _legend(selection, width - 2 * _GAP)
    top = _TITLE + (legend.height if legend else 0)
    height = sum(row[0].height + _above(row) for row in rows) + len(rows) * (_CAPTION + _GAP)
    whole = Image.new("RGB", (width, top + height), _PAPER)
    draw = ImageDraw.Draw(whole)
    title, medium, small = (ImageFont.load_default(size) for size in (20, 17, 14))
    draw.text((_GAP, 12), _fitting(draw, selection.title, title, width - 2 * _GAP), fill=_INK, font=title)
    if legend:
        whole.paste(legend, (_GAP, _TITLE))
    for row in rows:
        if heading := row[0].shown.heading:
            draw.text((_GAP, top + 6), _fitting(draw, heading, medium, width), fill=_INK, font=medium)
        top, left = top + _above(row), _GAP
        for room in row:
            cell = _cell(room.shown, room.width, room.height)
            whole.paste(cell, (left + (room.width - cell.width) // 2, top + (room.height - cell.height) // 2))
            text = _fitting(draw, room.shown.caption, small, room.width)
            below = (left + room.width / 2, top + room.height + 4)
            draw.text(below, text, fill=_FAINT, font=small, anchor="ma")
            left += room.width + _GAP
        top += row[0].height + _CAPTION + _GAP
    return whole


class _Room(NamedTuple):
    """Where an image stands on the sheet: the images of a row are equally high."""

    shown: Shown
    width: int
    height: int


def _groups(shown: Sequence[Shown]) -> list[Sequence[Shown]]:
    """The images, divided before each that has a heading."""
    starts = [0, *(at for at, one in enumerate(shown) if at and one.heading)]
    return [shown[start:end] for start, end in pairwise([*starts, len(shown)])]


def _above(row: Sequence[_Room]) -> int:
    """Pixels of a row's heading."""
    return _HEADING if row[0].shown.heading else 0


def _rows(shown: Sequence[Shown]) -> list[list[_Room]]:
    """The images in their order, in rows that are equally wide, unless too high, and almost equally high."""
    aspects = [_aspect(one) for one in shown]
    tallest = max((one.image.height for one in shown if one.image is not None), default=HEIGHT)
    height = min(HEIGHT, LARGEST_ZOOM * tallest)
    count = max(1, round(sum(aspects) * height / WIDTH))
    ends = _evenly(aspects, min(count, len(shown)))
    width = WIDTH
    if len(ends) == 1:  # a row that is not full is as high as any, and the sheet is as wide as it
        width = min(WIDTH, round(sum(aspects) * height) + _GAP * (len(shown) - 1))
    rows = []
    for start, end in pairwise([0, *ends]):
        free = width - _GAP * (end - start - 1)
        high = min(free / sum(aspects[start:end]), _HIGHEST)  # a tall image alone would be huge
        edges = [0, *(round(high * each) for each in accumulate(aspects[start:end]))]
        sizes = [right - left for left, right in pairwise(edges)]
        high = max(1, round(high))
        rows.append([_Room(one, size, high) for one, size in zip(shown[start:end], sizes, strict=True)])
    return rows


def _aspect(one: Shown) -> float:
    """Width over height of the room for an image."""
    aspect = 2.0 if one.image is None else one.image.width / one.image.height
    return min(max(aspect, _NARROWEST), _WIDEST)


def _evenly(lengths: Sequence[float], count: int) -> list[int]:
    """Where to end each of ``count`` runs of ``lengths`` so that their sums differ least."""
    total = [0.0, *accumulate(lengths)]
    mean = total[-1] / count
    best = [0.0] + [math.inf] * len(lengths)  # of the first n lengths, with as many runs as were made so far
    cuts: list[list[int]] = []
    for _ in range(count):
        made, cut = [math.inf] * len(best), [0] * len(best)
        for end in range(1, len(best)):
            for start in range(end):
                cost = best[start] + (total[end] - total[start] - mean) ** 2
                if cost < made[end]:
                    made[end], cut[end] = cost, start
        best, end = made, 0
        cuts.append(cut)
    ends, end = [], len(lengths)
    for cut in reversed(cuts):
        ends.append(end)
        end = cut[end]
    return ends[::-1]


def _width_of(row: Sequence[_Room]) -> int:
    return sum(room.width for room in row) + _GAP * (len(row) - 1)


def page(selection: Selection) -> str:
    """An HTML page that needs no other file."""
    figures = "\n".join(map(_figure, selection.shown))
    chips = "".join(_chip(label, selection.class_names[label]) for label in _classes(selection.shown))
    title = _html(selection.title)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.4 system-ui, sans-serif; margin: 2rem auto; max-width: 1800px; padding: 0 1.5rem; }}
h1 {{ font-size: 1.3rem; }}
h2 {{ flex-basis: 100%; font-size: 1.1rem; margin: .6rem 0 0; }}
main {{ display: flex; flex-wrap: wrap; gap: 1.2rem; }}
/* Every image takes its share of a row, so that rows are full; what follows the last one takes the rest. */
figure {{ flex: var(--aspect) 1 calc(var(--aspect) * 19rem); margin: 0; max-width: 100%; }}
main::after {{ content: ""; flex: 1000 1 0; }}
img {{ border-radius: 4px; display: block; height: auto; width: 100%; }}
figcaption {{ opacity: .7; overflow-wrap: anywhere; padding: .3rem 0; }}
.chip {{ display: inline-block; margin: 0 1rem .4rem 0; }}
.chip i {{ border-radius: 3px; display: inline-block; height: .8em; margin-right: .4em; width: .8em; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{chips}</p>
<main>
{figures}
</main>
</body>
</html>
"""


def _html(text: str) -> str:
    return html.escape(escaped(text))


def _chip(label: int, name: str) -> str:
    return f'<span class="chip"><i style="background:rgb{color(label)}"></i>{_html(name)}</span>'


def _figure(one: Shown) -> str:
    buffer = io.BytesIO()
    _cell(one, PAGE_WIDTH, PAGE_HEIGHT).save(buffer, "JPEG", quality=88)
    encoded = base64.b64encode(buffer.getvalue()).decode("ascii")
    caption = _html(one.caption) + (f" · {counted(len(one.marks), 'box', 'boxes')}" if one.marks else "")
    heading = f"<h2>{_html(one.heading)}</h2>\n" if one.heading else ""
    return (
        f'{heading}<figure style="--aspect:{_aspect(one):.3f}">'
        f'<img alt="{_html(one.caption)}" src="data:image/jpeg;base64,{encoded}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _cell(one: Shown, width: int, height: int) -> Image.Image:
    """An image as large as it fits, its boxes drawn at that size, so that their labels can be read."""
    if one.image is None:
        return _blank(width, height)
    scale = min(width / one.image.width, height / one.image.height)
    # What fills its room but for the rounding of sizes fills it.
    size = [max(1, round(one.image.width * scale)), max(1, round(one.image.height * scale))]
    size = [room if abs(room - side) <= 2 else side for room, side in zip((width, height), size, strict=True)]
    how = Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.BICUBIC
    boxes = [[side * scale for side in mark.box] for mark in one.marks]
    marks = [
        Mark((x1, y1, x2, y2), text, mark.label)
        for (x1, y1, x2, y2), mark, text in zip(boxes, one.marks, _texts(one, size[0] * size[1]), strict=True)
    ]
    return annotate(one.image.resize((size[0], size[1]), how), marks)


def _texts(one: Shown, pixels: int) -> list[str]:
    """What stands on the labels of an image so large: all texts, or all short ones, where it has no room."""
    letters = sum(len(mark.text) + 1 for mark in one.marks)
    side = 0.7 * pixels**0.25  # of a letter, as it is drawn
    has_room = len(one.marks) <= CROWDED and letters * 0.6 * side * 1.4 * side <= COVERED * pixels
    return [mark.text if has_room else mark.short for mark in one.marks]


def _blank(width: int, height: int) -> Image.Image:
    made = Image.new("RGB", (width, height), (235, 236, 238))
    font = ImageFont.load_default(16)
    ImageDraw.Draw(made).text((width / 2, height / 2), "cannot be read", fill=_FAINT, font=font, anchor="mm")
    return made


def _classes(shown: Sequence[Shown]) -> list[int]:
    """Of the boxes, in order."""
    return sorted({mark.label for one in shown for mark in one.marks})


def _legend(selection: Selection, width: int) -> Image.Image | None:
    """The colors of the classes that have boxes, in as many lines as they need; of very many the first."""
    labels = _classes(selection.shown)
    if not labels:
        return None
    font = ImageFont.load_default(15)
    made = Image.new("RGB", (width, 3 * _LEGEND), _PAPER)
    draw = ImageDraw.Draw(made)
    left, top = 0, 0
    for label in labels:
        text = selection.class_names[label]
        needed = 34 + int(draw.textlength(text, font=font))
        if left and left + needed > width:
            left, top = 0, top + _LEGEND
        if top >= 3 * _LEGEND:
            break
        draw.rounded_rectangle((left, top + 3, left + 15, top + 18), 3, fill=color(label))
        draw.text((left + 21, top + 2), text, fill=_INK, font=font)
        left += needed
    return made.crop((0, 0, width, min(top, 2 * _LEGEND) + _LEGEND))


def _fitting(
    draw: ImageDraw.ImageDraw, text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, room: float
) -> str:
    """The text; what is too long is cut in its first half, as names differ near their ends."""
    short, kept = text, len(text)
    while kept and draw.textlength(short, font=font) > room:
        kept -= 1
        short = f"{text[: kept // 3]}…{text[len(text) - kept + kept // 3 :]}"
    return short
