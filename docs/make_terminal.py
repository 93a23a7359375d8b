"""Draws ``docs/pictures/terminal.svg``: runs commands and draws what they print, line by line.

    python docs/make_terminal.py "rankless verify digits --worlds 1,2,3 --steps 4"

Nothing in it is made up, so it shows the speed of the machine that drew it. The lines appear one by one; where
less motion is wanted, and at the end, all of them are there.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.sax.saxutils import escape

PICTURE = Path(__file__).parent / "pictures" / "terminal.svg"
WIDTH, LINE, LEFT, TOP = 92, 21, 20, 58  # characters of a line; pixels
PAUSE = 0.7  # seconds from line to line
DOTS = ("#f87171", "#fbbf24", "#34d399")
STYLE = """
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; fill: #d1d5db;
  white-space: pre }
.typed { fill: #fff; font-weight: 600 }
.line { animation: appear .15s both }
@keyframes appear { from { opacity: 0 } }
@media (prefers-reduced-motion: reduce) { .line { animation: none } }
"""


def transcript(commands: list[str]) -> list[tuple[str, bool]]:
    """Every line of the commands and of what they print, and whether it was typed.

    Raises:
        SystemExit: a command failed.
    """
    lines = []
    for command in commands:
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{command}: ended with {done.returncode}:\n{done.stderr}")
        lines += [(f"$ {command}", True), *((line, False) for line in done.stdout.rstrip().splitlines())]
    if long := [line for line, _ in lines if len(line) > WIDTH]:
        raise SystemExit(f"a line has more than {WIDTH} characters: {long[0]}")
    return lines


def picture(lines: list[tuple[str, bool]]) -> str:
    """The SVG of the lines."""
    width, height = 2 * LEFT + int(WIDTH * 8.45), TOP + LINE * len(lines)
    title = escape("; ".join(line.removeprefix("$ ") for line, typed in lines if typed))
    dots = [f'<circle cx="{22 + 20 * n}" cy="20" r="6" fill="{color}"/>' for n, color in enumerate(DOTS)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" aria-label="A terminal: {title}">',
            f"<style>{STYLE}</style>",
            f'<rect width="{width}" height="{height}" rx="10" fill="#111827"/>',
            *dots,
            *(_line(number, line, typed) for number, (line, typed) in enumerate(lines)),
            "</svg>\n",
        ]
    )


def _line(number: int, text: str, typed: bool) -> str:
    kind, y = "line typed" if typed else "line", TOP + LINE * number
    delay = f"animation-delay:{PAUSE * number:g}s"
    return (
        f'<text class="{kind}" style="{delay}" x="{LEFT}" y="{y}" xml:space="preserve">{escape(text)}</text>'
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(transcript(sys.argv[1:])), encoding="utf-8")
