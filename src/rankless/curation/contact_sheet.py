"""Write contact sheets as image files or as self-contained HTML pages."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from rankless.curation.data_set import refuse_data_files
from rankless.curation.sampling import Selection, Shown
from rankless.data.images.drawing import annotate, color
from rankless.errors import UserError, counted
from rankless.files.outputs import Outputs
from rankless.report import markup
from rankless.report.page import document

WIDTH, HEIGHT = 1656, 300
"""Maximum width of a sheet's rows and approximate height of its images, in pixels."""
PAGE_WIDTH, PAGE_HEIGHT = 1800, 480
"""Maximum size of an image on an HTML page, in pixels. Browsers show it at about two thirds of this size."""
LARGEST_ZOOM = 6
CROWDED = 24
"""Maximum number of boxes in an image for full labels."""
COVERED = 0.12
"""Maximum fraction of an image that full labels may cover."""
_NARROWEST, _WIDEST = 0.35, 6.0  # limits of a cell's width divided by height, without its caption
_HIGHEST = 3 * HEIGHT  # maximum height of a row
_GAP, _CAPTION, _TITLE, _LEGEND, _HEADING = 14, 24, 46, 30, 38
_LINE = 1.3  # line spacing as a multiple of the font size
_INK, _FAINT, _PAPER = (28, 30, 34), (105, 110, 118), (255, 255, 255)
# Images grow in proportion to their aspect ratio to fill a row; the pseudo-element fills the last row.
_STYLE = """
body { max-width: 1800px; }
.sheet { display: flex; flex-wrap: wrap; gap: 1.2rem; }
.sheet::after { content: ""; flex: 1000 1 0; }
.sheet h2 { flex-basis: 100%; margin: .6rem 0 0; }
.sheet figure { border: 0; flex: var(--aspect) 1 calc(var(--aspect) * 19rem); max-width: 100%; padding: 0; }
.sheet img { border-radius: 4px; display: block; height: auto; width: 100%; }
.sheet figcaption { opacity: .7; overflow-wrap: anywhere; padding: .3rem 0; }
.chip { display: inline-block; margin: 0 1rem .4rem 0; }
.chip i { border-radius: 3px; display: inline-block; height: .8em; margin-right: .4em; width: .8em; }
"""


def write(selection: Selection, out: Path, outputs: Outputs) -> None:
    """Write the contact sheet to ``out``, which must be one of the files of ``outputs``."""
    if not selection.shown:
        raise UserError(f"{selection.title}: no images to show; choose another split or class")
    outputs.refuse_inputs(selection.files)
    if selection.root is not None:
        refuse_data_files(outputs, selection.root, selection.format)
    with outputs.writing(out) as file:
        if out.suffix.lower() == ".html":
            file.write_text(page(selection), encoding="utf-8")
        else:
            sheet(selection).save(file, "PNG" if out.suffix.lower() == ".png" else "JPEG")


def sheet(selection: Selection) -> Image.Image:
    """Return the contact sheet as a single image, with a title, captions and a legend."""
    starts = [at for at, one in enumerate(selection.shown) if one.heading or not at]
    groups = pairwise([*starts, len(selection.shown)])
    rows = [row for start, end in groups for row in _rows(selection.shown[start:end])]
    wide = max(sum(room.width for room in row) + _GAP * (len(row) - 1) for row in rows)
    title = _Text(selection.title, 20, wide)
    headings = [_Text(row[0].shown.heading, 17, wide) for row in rows]
    captions = [[_Text(room.shown.caption, 14, room.width) for room in row] for row in rows]
    legend = _legend(selection, wide)
    top = _TITLE + title.more + (legend.height if legend else 0)
    above = [_HEADING + heading.more if heading.text else 0 for heading in headings]
    below = [_CAPTION + max(text.more for text in texts) + _GAP for texts in captions]
    height = sum(row[0].height for row in rows) + sum(above) + sum(below)
    whole = Image.new("RGB", (wide + 2 * _GAP, top + height), _PAPER)
    draw = ImageDraw.Draw(whole)
    title.draw(draw, (_GAP, 12), _INK)
    if legend:
        whole.paste(legend, (_GAP, _TITLE + title.more))
    for row, heading, texts, before, after in zip(rows, headings, captions, above, below, strict=True):
        heading.draw(draw, (_GAP, top + 6), _INK)
        top, left = top + before, _GAP
        for room, text in zip(row, texts, strict=True):
            cell = _cell(room.shown, room.width, room.height)
            whole.paste(cell, (left + (room.width - cell.width) // 2, top + (room.height - cell.height) // 2))
            text.draw(draw, (left + room.width / 2, top + room.height + 4), _FAINT, centered=True)
            left += room.width + _GAP
        top += row[0].height + after
    return whole


class _Text:
    """Text wrapped to a width of ``room`` pixels."""

    def __init__(self, text: str, size: int, room: float) -> None:
        self.font = ImageFont.load_default(size)
        self.spacing = round(_LINE * size)
        self.text = ""
        for word in text.split(" "):
            joined = f"{self.text} {word}" if self.text else word
            self.text = joined if self._fits(joined, room) else self._below(word, room)
        self.more = self.spacing * self.text.count("\n")
        """Height of all lines after the first, in pixels."""

    def _fits(self, text: str, room: float) -> bool:
        return self.font.getlength(text.rpartition("\n")[2]) <= room

    def _below(self, word: str, room: float) -> str:
        """Return the text with ``word`` added on a new line, broken if it is too long."""
        text = f"{self.text}\n" if self.text else ""
        for letter in word:
            line = text.rpartition("\n")[2]
            text += letter if not line or self._fits(text + letter, room) else f"\n{letter}"
        return text

    def draw(
        self,
        draw: ImageDraw.ImageDraw,
        at: tuple[float, float],
        ink: tuple[int, int, int],
        *,
        centered: bool = False,
    ) -> None:
        """Draw the text with its top left corner or, if ``centered``, its top center at ``at``."""
        for number, line in enumerate(self.text.split("\n")):
            x, y = at
            draw.text((x, y + number * self.spacing), line, ink, self.font, "ma" if centered else "la")


class _Room(NamedTuple):
    """The cell of an image. All cells in a row have the same height."""

    shown: Shown
    width: int
    height: int


def _rows(shown: Sequence[Shown]) -> list[list[_Room]]:
    aspects = [_aspect(one) for one in shown]
    tallest = max((one.image.height for one in shown if one.image is not None), default=HEIGHT)
    height = min(HEIGHT, LARGEST_ZOOM * tallest)
    count = max(1, round(sum(aspects) * height / WIDTH))
    ends = _evenly(aspects, min(count, len(shown)))
    width = WIDTH
    if len(ends) == 1:  # a single row may be narrower
        width = min(WIDTH, round(sum(aspects) * height) + _GAP * (len(shown) - 1))
    rows = []
    for start, end in pairwise([0, *ends]):
        free = width - _GAP * (end - start - 1)
        high = min(free / sum(aspects[start:end]), _HIGHEST)  # a single tall image would be huge
        edges = [0, *(round(high * each) for each in accumulate(aspects[start:end]))]
        sizes = [right - left for left, right in pairwise(edges)]
        high = max(1, round(high))
        rows.append([_Room(one, size, high) for one, size in zip(shown[start:end], sizes, strict=True)])
    return rows


def _aspect(one: Shown) -> float:
    """Return the aspect ratio, width divided by height, of an image's cell."""
    aspect = 2.0 if one.image is None else one.image.width / one.image.height
    return min(max(aspect, _NARROWEST), _WIDEST)


def _evenly(lengths: Sequence[float], count: int) -> list[int]:
    """Divide ``lengths`` into ``count`` slices with nearly equal sums, and return the end of each slice."""
    total = [0.0, *accumulate(lengths)]
    mean = total[-1] / count
    none: tuple[float, list[int]] = math.inf, []
    best = [(0.0, none[1])] + [none] * len(lengths)  # minimum cost of the first n lengths, and the ends
    for _ in range(count):
        best = [none] + [
            min(
                (cost + (total[end] - total[start] - mean) ** 2, [*ends, end])
                for start, (cost, ends) in enumerate(best[:end])
            )
            for end in range(1, len(best))
        ]
    return best[-1][1]


def page(selection: Selection) -> str:
    """Return a self-contained HTML page with all images."""
    chips = "".join(
        f'<span class="chip"><i style="background:rgb{color(label)}"></i>'
        f"{markup.text(selection.class_names[label])}</span>"
        for label in _classes(selection.shown)
    )
    figures = "\n".join(map(_figure, selection.shown))
    return document(
        selection.title, f"<style>{_STYLE}</style><p>{chips}</p><div class='sheet'>{figures}</div>"
    )


def _figure(one: Shown) -> str:
    buffer = io.BytesIO()
    _cell(one, PAGE_WIDTH, PAGE_HEIGHT).save(buffer, "JPEG", quality=88)
    encoded = base64.b64encode(buffer.getvalue()).decode("ascii")
    boxes = sum(not mark.dashed or bool(mark.text) for mark in one.marks)
    caption = markup.text(one.caption) + (f" · {counted(boxes, 'box', 'boxes')}" if boxes else "")
    heading = f"<h2>{markup.text(one.heading)}</h2>\n" if one.heading else ""
    return (
        f'{heading}<figure style="--aspect:{_aspect(one):.3f}">'
        f'<img alt="{markup.text(one.caption)}" src="data:image/jpeg;base64,{encoded}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _cell(one: Shown, width: int, height: int) -> Image.Image:
    """Return an image scaled to its cell, with boxes drawn after scaling so that labels are legible."""
    if one.image is None:
        made = Image.new("RGB", (width, height), (235, 236, 238))
        font = ImageFont.load_default(16)
        middle = (width / 2, height / 2)
        ImageDraw.Draw(made).text(middle, "cannot be read", fill=_FAINT, font=font, anchor="mm")
        return made
    scale = min(width / one.image.width, height / one.image.height)
    # Rounding must not leave a narrow gap.
    size = [max(1, round(one.image.width * scale)), max(1, round(one.image.height * scale))]
    size = [room if abs(room - side) <= 2 else side for room, side in zip((width, height), size, strict=True)]
    how = Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.BICUBIC
    texts = _texts(one, (size[0], size[1]))
    marks = [mark.scaled(scale)._replace(text=text) for mark, text in zip(one.marks, texts, strict=True)]
    return annotate(one.image.resize((size[0], size[1]), how), marks)


def _texts(one: Shown, size: tuple[int, int]) -> list[str]:
    """Return the text of each box, shortened if there is not enough space."""
    letters = [len(mark.text) + 1 for mark in one.marks]
    side = 0.7 * (size[0] * size[1]) ** 0.25  # size of a letter, as drawn
    covered = sum(letters) * 0.6 * side * 1.4 * side <= COVERED * size[0] * size[1]
    has_room = len(one.marks) <= CROWDED and covered and max(letters, default=0) * 0.6 * side <= size[0]
    return [mark.text if has_room else mark.short for mark in one.marks]


def _classes(shown: Sequence[Shown]) -> list[int]:
    return sorted({mark.label for one in shown for mark in one.marks if mark.label >= 0})


def _legend(selection: Selection, width: int) -> Image.Image | None:
    """Return a legend of up to three lines for the classes, or None if there are no boxes."""
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
