"""Compare the speed of making training images with other libraries, in one process with one thread.

    python benchmarks/input.py [FOLDER] [--python [NAME=]PATH …] [--turns 15]

All contenders take turns in one run, a few batches at a time; the seconds are the process's CPU time, which
other work on the machine changes least. ``input_contenders.py`` defines the work. Libraries that are not
installed are named and left out; ``--python`` (or ``PEERS_PYTHON``) is the Python that has them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from PIL import Image

from foreign import PYTHON, Foreign, python_of
from turns import rounds

BATCH = 16
PEERS = ("torchvision", "albumentations", "ultralytics")
OURS = ("decode", "rankless", "rankless-batch", "rankless-ram")
RATIOS = ("rankless", "rankless-batch")


def draw(folder: Path, count: int = 256) -> None:
    """Write photo-like JPEGs of 640 × 480: noise of every scale, coarse more than fine, about 60 kB each."""
    chance = np.random.default_rng(0)
    for number in range(count):
        total = np.full((480, 640, 3), 127.0)
        for level in range(1, 8):
            cells = chance.normal(0, 64 / level, (3 * 2**level, 4 * 2**level, 3)).clip(-127, 127) + 128
            layer = Image.fromarray(cells.astype(np.uint8)).resize((640, 480), Image.Resampling.BICUBIC)
            total += (np.asarray(layer, np.float64) - 128) / level
        Image.fromarray(total.clip(0, 255).astype(np.uint8)).save(folder / f"{number:04}.jpg", quality=90)


def measure(
    folder: Path, mosaic: bool, python: Sequence[str], turns: int, batches: int
) -> dict[str, list[float]]:
    """Return the CPU seconds per image of every installed contender, by turn."""
    script = str(Path(__file__).with_name("input_contenders.py"))
    more = [str(folder), *(["mosaic"] if mosaic else [])]
    one = {f"{kind}_NUM_THREADS": "1" for kind in ("OMP", "MKL", "OPENBLAS")}
    with ExitStack() as stack:
        one["TMPDIR"] = stack.enter_context(tempfile.TemporaryDirectory(prefix="input-"))
        there = []
        for name in (*OURS, *PEERS):
            path = sys.executable if name in OURS else python_of(name, python)
            each = stack.enter_context(Foreign(name, path, [script, name, *more], one))
            if each.problem:
                print(f"  {name} is left out: {each.problem}")
            else:
                there.append(each)
        found = rounds(there, turns, batches)
    return {each.name: [step.cpu / BATCH for step in times] for each, times in zip(there, found, strict=True)}


def tell(title: str, found: dict[str, list[float]]) -> None:
    """Print a table of images per second and of how many times as fast Rankless is."""
    heads = "".join(f"{ours + ' is … times as fast: best, median':>52}" for ours in RATIOS)
    print(f"\n{title}\n{'':16}{'best/s':>9}{'median/s':>10}{heads}")
    for name, seconds in found.items():
        ratios = ""
        for ours in RATIOS:
            paired = statistics.median(b / a for a, b in zip(found[ours], seconds, strict=True))
            ratios += f"{min(seconds) / min(found[ours]):45.2f}{paired:7.2f}"
        print(f"{name:16}{1 / min(seconds):9.0f}{1 / statistics.median(seconds):10.0f}{ratios}")


def main() -> int:
    """Measure both parts and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, help="JPEGs; made if not given")
    parser.add_argument("--python", **PYTHON)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--batches", type=int, default=2, help="of 16 images, in a turn")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = options.folder or Path(made)
        if options.folder is None:
            draw(folder)
        parts = {}
        for title, mosaic in (("plain", False), ("mosaic", True)):
            parts[title] = measure(folder, mosaic, options.python, options.turns, options.batches)
            if not options.json:
                tell(title, parts[title])
    if options.json:
        print(json.dumps(parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
