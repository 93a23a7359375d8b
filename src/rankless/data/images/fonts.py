"""Find fonts for labels: Pillow's built-in font for Latin letters, and system fonts for other letters.

Text with other letters, for example Chinese, uses the first font that has all of its letters. The fonts are
tried in this order: the file in ``RANKLESS_FONT``, known Chinese, Japanese and Korean system fonts,
Matplotlib's DejaVu, and other system fonts.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from PIL import ImageFont

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

VARIABLE = "RANKLESS_FONT"
_KNOWN = (
    "notosanscjk", "notosanssc", "sourcehansans", "wqy-microhei", "wqy-zenhei", "droidsansfallback",
    "pingfang", "msyh", "simhei", "arplumingcn", "uming", "ukai", "unifont", "notosans-regular",
    "dejavusans.",
)  # fmt: skip
_ENDINGS = frozenset({".ttf", ".otf", ".ttc", ".otc", ".pcf", ".pfb"})
_MOST_FONTS = 300  # maximum number of fonts to search for a letter
_NO_LETTER = "\U0010fffe"  # a noncharacter, which fonts draw as their glyph for missing letters
_TRIED_AT = 16  # size in pixels for testing fonts


def font_for(text: str, size: int) -> Font | None:
    """Return a font of ``size`` pixels with all letters of the text, or None if there is none."""
    letters = frozenset(letter for letter in text if not letter.isspace())
    if (path := _path_for(letters)) is None:
        return None
    return _opened(path, size)


def unwritable(texts: Iterable[str]) -> list[str]:
    """Return the texts that no available font can draw."""
    return [text for text in texts if font_for(text, _TRIED_AT) is None]


@lru_cache(maxsize=4096)
def _path_for(letters: frozenset[str]) -> str | None:
    """Return a font file with all letters ("" for Pillow's built-in font), or None if there is none."""
    if _has("", letters):
        return ""
    return next((path for path in _files(os.environ.get(VARIABLE, "")) if _has(path, letters)), None)


def _has(path: str, letters: frozenset[str]) -> bool:
    return all(_draws(path, letter) for letter in letters)


@lru_cache(maxsize=1 << 16)
def _draws(path: str, letter: str) -> bool:
    """Return whether a font has a letter. Missing letters are all drawn as the same glyph."""
    try:
        font = _opened(path, _TRIED_AT)
        return bytes(font.getmask(letter)) != _missing(path)
    except (OSError, ValueError):
        return False


@lru_cache(maxsize=512)
def _missing(path: str) -> bytes:
    return bytes(_opened(path, _TRIED_AT).getmask(_NO_LETTER))


@lru_cache(maxsize=128)
def _opened(path: str, size: int) -> Font:
    return ImageFont.truetype(path, size) if path else ImageFont.load_default(size)


@lru_cache(maxsize=8)
def _files(chosen: str) -> tuple[str, ...]:
    shared = os.environ.get("XDG_DATA_DIRS", "") or "/usr/local/share:/usr/share"
    own = os.environ.get("XDG_DATA_HOME", "") or "~/.local/share"
    folders = [f"{folder}/fonts" for folder in dict.fromkeys([own, *shared.split(":")]) if folder]
    walked = (each for folder in (*folders, "~/.fonts") for each in os.walk(Path(folder).expanduser()))
    files = (f"{top}/{name}" for top, _, names in walked for name in sorted(names))
    found = [file for file in files if Path(file).suffix.lower() in _ENDINGS]
    matplotlib = importlib.util.find_spec("matplotlib")
    if matplotlib is not None and matplotlib.origin:
        found.append(str(Path(matplotlib.origin).parent / "mpl-data/fonts/ttf/DejaVuSans.ttf"))

    def rank(path: str) -> int:
        name = Path(path).name.lower().replace("_", "").replace(" ", "")
        return next((number for number, known in enumerate(_KNOWN) if name.startswith(known)), len(_KNOWN))

    return tuple(([chosen] if chosen else []) + sorted(found, key=rank)[:_MOST_FONTS])
