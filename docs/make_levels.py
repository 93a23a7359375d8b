"""Draws the levels of the package in ``docs/images/levels.svg``: ``python docs/make_levels.py``.

The levels are those of the first import contract in ``pyproject.toml``. A test compares the drawing with it.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).parent / "images" / "levels.svg"
WIDTH, ROW, BOX, GAP, CHARACTER = 720, 52, 34, 10, 8.2
STYLE = """\
.levels{--ink:#1f2937;--line:#6b7280;--paper:#f3f4f6;font:14px ui-monospace,monospace}
@media(prefers-color-scheme:dark){.levels{--ink:#e5e7eb;--line:#9ca3af;--paper:#1f2937}}
.levels text{fill:var(--ink);text-anchor:middle}
.levels rect{fill:var(--paper);stroke:var(--line)}
.levels path{fill:none;stroke:var(--line);stroke-width:1.5}"""


def levels() -> list[list[str]]:
    """The packages and modules of each level, from the top."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    return [level.split(" | ") for level in layers]


def drawing() -> str:
    """One row of boxes a level; an arrow between two rows says that the upper one imports the lower one."""
    found = levels()
    height = ROW * len(found)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="levels" viewBox="0 0 {WIDTH} {height}"'
        f' width="{WIDTH}" height="{height}" role="img" aria-labelledby="levels-title">',
        '<title id="levels-title">The levels of the package: each imports only what is below it</title>',
        f"<style>\n{STYLE}\n</style>",
    ]
    for number, names in enumerate(found):
        y = ROW * number + (ROW - BOX) / 2
        widths = [CHARACTER * len(name) + 20 for name in names]
        x = (WIDTH - sum(widths) - GAP * (len(names) - 1)) / 2
        for name, width in zip(names, widths, strict=True):
            parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{BOX}" rx="5"/>')
            parts.append(f'<text x="{x + width / 2:g}" y="{y + 22:g}">{name}</text>')
            x += width + GAP
        if number:
            parts.append(f'<path d="M{WIDTH // 2} {y - ROW + BOX:g}v{ROW - BOX}m-4-6l4 6l4-6"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def page(_: str) -> str:
    """The file drawn again."""
    return drawing()


if __name__ == "__main__":
    PAGE.write_text(drawing(), encoding="utf-8")
