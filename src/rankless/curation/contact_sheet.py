"""Many images on one sheet: a PNG to look at, or a page for a browser in one file."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from rankless.curation.data_set import spare
from rankless.curation.looking import Selection, Shown
from rankless.data.images.drawing import Mark, annotate, color
from rankless.errors import UserError, counted, escaped
from rankless.files.outputs import Outputs

COLUMNS = 4
WIDTH, TALLEST = 400, 440
"""Of an image on a PNG, in pixels."""
PAGE_WIDTH = 900
"""Of an image on a page, at most."""
LARGEST_ZOOM = 6
CROWDED = 12
"""If any image has more boxes than so many, only color and legend name the classes."""
_GAP, _CAPTION, _TITLE, _LEGEND = 14, 24, 46, 30
_INK, _FAINT, _PAPER = (28, 30, 34), (105, 110, 118), (255, 255, 255)
_KINDS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".html": ""}


def output(out: Path, *, force: bool = False) -> Outputs:
    """Check the file to write, which ends in ``.png``, ``.jpg`` or ``.html``.

    Args:
        out: its name; an earlier sheet is replaced.
        force: replace another file, too.

    Raises:
        UserError: another ending, or it cannot be written.
    """
    if out.suffix.lower() not in _KINDS:
        raise UserError(f"--out {out}: expected a name that ends in .png, .jpg or .html")
    return Outputs([out], verb="data show", force=force)


def write(selection: Selection, out: Path, *, force: bool = False) -> bool:
    """Write the sheet to ``out``, as :func:`output` allows; return whether another was replaced.

    Raises:
        UserError: nothing to show, or it cannot be written.
    """
    outputs = output(out, force=force)
    if not selection.shown:
        raise UserError(f"{selection.title}: no such image to show")
    outputs.refuse_inputs(selection.files)
    if selection.root is not None:
        spare(outputs, selection.root, selection.format)
    with outputs.writing(out) as file:
        if kind := _KINDS[out.suffix.lower()]:
            sheet(selection).save(file, kind)
        else:
            file.write_text(page(selection), encoding="utf-8")
    return bool(outputs.replaced)


def sheet(selection: Selection) -> Image.Image:
    """All images in rows of four, with captions and a title."""
    named = _are_named(selection.shown)
    cells = [_cell(one, WIDTH, TALLEST, named) for one in selection.shown]
    columns = min(COLUMNS, len(cells))
    rows = [cells[start : start + columns] for start in range(0, len(cells), columns)]
    heights = [max(cell.height for cell in row) for row in rows]
    width = columns * (WIDTH + _GAP) + _GAP
    legend = _legend(selection, width - 2 * _GAP)
    top = _TITLE + (legend.height if legend else 0)
    whole = Image.new("RGB", (width, top + sum(heights) + len(rows) * (_CAPTION + _GAP)), _PAPER)
    draw = ImageDraw.Draw(whole)
    title, small = ImageFont.load_default(20), ImageFont.load_default(14)
    draw.text((_GAP, 12), _fitting(draw, selection.title, title, width - 2 * _GAP), fill=_INK, font=title)
    if legend:
        whole.paste(legend, (_GAP, _TITLE))
    captions = iter(selection.shown)
    for row, height in zip(rows, heights, strict=True):
        for column, cell in enumerate(row):
            left = _GAP + column * (WIDTH + _GAP)
            whole.paste(cell, (left + (WIDTH - cell.width) // 2, top + height - cell.height))
            text = _fitting(draw, next(captions).caption, small, WIDTH)
            draw.text((left + WIDTH / 2, top + height + 4), text, fill=_FAINT, font=small, anchor="ma")
        top += height + _CAPTION + _GAP
    return whole


def page(selection: Selection) -> str:
    """An HTML page that needs no other file."""
    named = _are_named(selection.shown)
    figures = "\n".join(_figure(one, named) for one in selection.shown)
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
main {{ display: grid; gap: 1.2rem;
  grid-template-columns: repeat(auto-fill, minmax(min(26rem, 100%), 1fr)); }}
figure {{ margin: 0; }}
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


def _are_named(shown: Sequence[Shown]) -> bool:
    """Whether boxes have their class written on them: on all images or on none."""
    return max((len(one.marks) for one in shown), default=0) <= CROWDED


def _figure(one: Shown, named: bool) -> str:
    buffer = io.BytesIO()
    _cell(one, PAGE_WIDTH, PAGE_WIDTH, named).save(buffer, "JPEG", quality=88)
    encoded = base64.b64encode(buffer.getvalue()).decode("ascii")
    caption = _html(one.caption) + (f" · {counted(len(one.marks), 'box', 'boxes')}" if one.marks else "")
    return (
        f'<figure><img alt="{_html(one.caption)}" src="data:image/jpeg;base64,{encoded}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _cell(one: Shown, width: int, tallest: int, named: bool) -> Image.Image:
    """An image as large as it fits, its boxes drawn at that size, so that their labels can be read."""
    if one.image is None:
        return _blank(width)
    scale = min(width / one.image.width, tallest / one.image.height, LARGEST_ZOOM)
    size = max(1, round(one.image.width * scale)), max(1, round(one.image.height * scale))
    how = Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.BICUBIC
    marks = [
        Mark((x1 * scale, y1 * scale, x2 * scale, y2 * scale), text if named else "", label)
        for (x1, y1, x2, y2), text, label in one.marks
    ]
    return annotate(one.image.resize(size, how), marks)


def _blank(width: int) -> Image.Image:
    made = Image.new("RGB", (width, width // 2), (235, 236, 238))
    font = ImageFont.load_default(16)
    ImageDraw.Draw(made).text((width / 2, width / 4), "cannot be read", fill=_FAINT, font=font, anchor="mm")
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
    """The text, cut at its end until it fits."""
    if draw.textlength(text, font=font) <= room:
        return text
    while text and draw.textlength(text + "…", font=font) > room:
        text = text[:-1]
    return text + "…"
