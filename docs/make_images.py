"""Makes the images of the documentation from a run of the recipe digits.

    python docs/make_images.py runs/digits

Nothing in them is made up. ``found.jpg`` has eight scenes that the run has never seen, with what it finds in
them; ``report.png`` is the top of the run's report, as Chromium shows it, and ``report-evaluation.png`` what
it says about the best evaluation; ``terminal.svg`` is what a command prints here and now, line by line, with
the speed of this machine: let nothing else run on it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.sax.saxutils import escape

from PIL import Image

IMAGES = Path(__file__).parent / "images"
COMMANDS = ["rankless verify digits --worlds 1,2,3 --steps 4"]
BROWSER = ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=4000"]
REPORT, EVALUATION = (1280, 578), (1280, 1584)  # pixels
BEFORE_EVALUATION = re.compile(r"<header>.*(?=<h2>Best evaluation)", re.DOTALL)
WIDTH = 92  # characters of a line at most
CHARACTER, LINE, LEFT, TOP = 8.43, 21, 20, 58  # pixels
PAUSE = 0.7  # seconds from line to line
DOTS = ("#f87171", "#fbbf24", "#34d399")
STYLE = """
.terminal text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace;
  fill: #d1d5db; white-space: pre }
.terminal .typed { fill: #fff; font-weight: 600 }
@media screen and (prefers-reduced-motion: no-preference) { .terminal .line { animation: appear .15s both } }
@keyframes appear { from { opacity: 0 } }
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


def drawing(lines: list[tuple[str, bool]]) -> str:
    """The SVG of the lines."""
    longest = max(len(line) for line, _ in lines)
    width, height = 2 * LEFT + round(longest * CHARACTER), TOP + LINE * len(lines)
    title = escape("; ".join(line.removeprefix("$ ") for line, typed in lines if typed))
    dots = [f'<circle cx="{22 + 20 * n}" cy="20" r="6" fill="{color}"/>' for n, color in enumerate(DOTS)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="terminal" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-label="A terminal: {title}">',
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


def found(run: Path) -> Image.Image:
    """Eight scenes in two rows."""
    gap, columns = 8, 4
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "found")
        words = ["predict", str(run), "digits:val:1000-1007", "--out", str(out)]
        subprocess.run([sys.executable, "-m", "rankless", *words], check=True)
        scenes = [Image.open(path).convert("RGB") for path in sorted(out.glob("*.png"))]
    width, height = scenes[0].size
    rows = -(-len(scenes) // columns)
    whole = Image.new("RGB", (columns * (width + gap) - gap, rows * (height + gap) - gap), "white")
    for number, scene in enumerate(scenes):
        whole.paste(scene, (number % columns * (width + gap), number // columns * (height + gap)))
    return whole


def report(run: Path) -> list[Image.Image]:
    """The top of the run's report, and its best evaluation."""
    shots = []
    with tempfile.TemporaryDirectory() as folder:
        page, shot = Path(folder, "report.html"), Path(folder, "report.png")
        subprocess.run([sys.executable, "-m", "rankless", "report", str(run), "--out", str(page)], check=True)
        for wide, high in (REPORT, EVALUATION):
            size = f"--window-size={wide},{high}"
            subprocess.run([*BROWSER, size, f"--screenshot={shot}", page.as_uri()], check=True)
            shots.append(Image.open(shot).convert("RGB").quantize(128, dither=Image.Dither.NONE))
            page.write_text(BEFORE_EVALUATION.sub("<main>", page.read_text()))
    return shots


def main() -> None:
    run = Path(sys.argv[1])
    found(run).save(IMAGES / "found.jpg", quality=88, optimize=True)
    for name, shot in zip(("report.png", "report-evaluation.png"), report(run), strict=True):
        shot.save(IMAGES / name, optimize=True)
    (IMAGES / "terminal.svg").write_text(drawing(transcript(COMMANDS)), encoding="utf-8")


if __name__ == "__main__":
    main()
