"""Measure reading and opening a million annotated images, and their memory.

    python benchmarks/million.py --images 1000000 --boxes 5

The script makes the data in a temporary folder: Darknet's label files, and images that are hard links to a
few small JPEGs; then the same boxes in one file. Every figure is of a fresh process. The files are still in
memory, so no disk is measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rankless.data.order import Line

LINKS = 30_000  # hard links to one file; ext4 allows 65,000
WORKERS = 4
EPOCHS = 5
LOOKUPS = 20_000  # images an epoch, drawn from all


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--images", type=int, default=1_000_000)
    asked.add_argument("--boxes", type=int, default=5, help="of each image")
    asked.add_argument(
        "--folder", type=int, default=10_000, help="images in each folder; 0 is one folder of all"
    )
    asked.add_argument("--where", default=None, help="a folder for the temporary one")
    asked.add_argument("--phase", nargs=3, metavar=("NAME", "ROOT", "FORMAT"), help=argparse.SUPPRESS)
    options = asked.parse_args()
    if options.phase:
        name, root, format = options.phase
        print(json.dumps({"first": opened, "open": opened, "workers": workers}[name](root, format)))
        return
    with tempfile.TemporaryDirectory(prefix="million-", dir=options.where) as made:
        os.environ["RANKLESS_CACHE"] = f"{made}/cache"
        folder = options.folder or options.images
        roots = {"darknet": Path(made) / "darknet"}
        started = time.perf_counter()
        paths = darknet(roots["darknet"], options.images, options.boxes, folder)
        roots["lines"] = Path(made) / "lines"
        lines(roots["lines"], paths, options.boxes)
        print(f"made {options.images} images in {time.perf_counter() - started:.0f} s", flush=True)
        for format, root in roots.items():
            report(format, root, options.images)


def report(format: str, root: Path, images: int) -> None:
    """Measure and print one format's row."""
    first = phase("first", root, format)
    again = [phase("open", root, format) for _ in range(3)]
    seconds = sorted(one["seconds"] for one in again)
    print(f"{format}: {first['images']} images, {first['boxes']} boxes")
    print(f"  first reading: {first['seconds']:.1f} s, {images / first['seconds']:.0f} images/s", flush=True)
    print(f"  from the cache, best and worst of three: {seconds[0]:.2f} s, {seconds[-1]:.2f} s")
    private = phase("workers", root, format)
    print("  private MiB of each loader process")
    for when, sizes in [("without data", private["bare"]), *enumerate(private["mib"], 1)]:
        print(f"    {when}: {' '.join(f'{size:.1f}' for size in sizes)}", flush=True)


def phase(name: str, root: Path, format: str) -> Any:
    """Return the measurements of a fresh process."""
    command = [sys.executable, __file__, "--phase", name, str(root), format]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)


def opened(root: str, format: str) -> dict[str, float]:
    """Open the data after the libraries were imported."""
    import torch  # noqa: F401

    from rankless.data.datasets.open_split import open_annotations

    started = time.perf_counter()
    found = open_annotations(root, "train", format)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "images": len(found), "boxes": len(found.boxes)}


class Nothing:
    """Examples without data."""

    def __len__(self) -> int:
        return 1

    def item(self, index: int, epoch: int) -> int:
        return index


def workers(root: str, format: str) -> dict[str, list[Any]]:
    """Return the private memory of loader processes, epoch by epoch."""
    from rankless.data.datasets.annotated import BoxedImages
    from rankless.data.datasets.detection import DetectionExamples, collate
    from rankless.data.datasets.open_split import open_annotations
    from rankless.data.loader import MicroBatches

    examples = DetectionExamples(BoxedImages(open_annotations(root, "train", format)), (64, 64), 0, None)
    warnings.filterwarnings("ignore", "This DataLoader will create")
    bare, found = [], []
    with MicroBatches(examples, collate, lookups(len(examples)), workers=WORKERS) as batches:
        for number, _ in enumerate(batches, 1):
            if number % (LOOKUPS // 50) == LOOKUPS // 50 - 10:  # at the very end they leave
                found.append(private())
    # Afterwards: the server that they are forked from imports what the first ones need.
    with MicroBatches(Nothing(), list, lookups(1000), workers=WORKERS) as batches:
        for _ in itertools.islice(batches, 100):
            bare = private()
    return {"mib": found, "bare": bare}


def lookups(count: int) -> Iterator[Line]:
    """Return a plan of random images."""
    chance = np.random.default_rng(0)
    for epoch in range(EPOCHS):
        for _ in range(LOOKUPS // 50):
            yield Line(0, [(epoch, index) for index in chance.integers(count, size=50).tolist()])


def private() -> list[float]:
    """Return the private MiB of each loader process."""
    found = []
    for process in multiprocessing.active_children():
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii")
        sizes = {words[0]: int(words[1]) for words in map(str.split, text.splitlines()[1:])}
        found.append((sizes["Private_Clean:"] + sizes["Private_Dirty:"]) / 1024)
    return found


def darknet(root: Path, images: int, boxes: int, folder: int) -> list[str]:
    """Make label files and images, and return the images' paths."""
    from PIL import Image

    chance = np.random.default_rng(0)
    made, jpeg = [], root / "none"
    for number in range(images):
        name = f"{number // folder:03}"
        if number % folder == 0:
            for kind in ("images", "labels"):
                (root / kind / "train" / name).mkdir(parents=True)
        path = f"{root}/images/train/{name}/{number:08}.jpg"
        if number % LINKS == 0:
            jpeg = Path(path)
            Image.fromarray(chance.integers(0, 255, (48, 64, 3), dtype=np.uint8)).save(jpeg)
        else:
            os.link(jpeg, path)
        made.append(path)
        rows = (f"{k} {x:.6f} {y:.6f} 0.2 0.3" for k, x, y in draw(chance, boxes))
        Path(f"{root}/labels/train/{name}/{number:08}.txt").write_text(
            "\n".join(rows) + "\n", encoding="ascii"
        )
    text = f"path: {root}\ntrain: images/train\nval: images/train\nnames: [a, b, c]\n"
    (root / "data.yaml").write_text(text, encoding="utf-8")
    return made


def lines(root: Path, paths: list[str], boxes: int) -> None:
    """Write the same images as one file of annotation lines."""
    chance = np.random.default_rng(0)
    root.mkdir()
    with (root / "train.txt").open("w", encoding="utf-8") as file:
        for path in paths:
            rows = ((int(64 * x), int(48 * y), k) for k, x, y in draw(chance, boxes))
            file.write(" ".join([path, *(f"{x},{y},{x + 10},{y + 8},{k}" for x, y, k in rows)]) + "\n")
    (root / "classes.txt").write_text("a\nb\nc\n", encoding="utf-8")


def draw(chance: np.random.Generator, boxes: int) -> list[tuple[int, float, float]]:
    """Return class and center of some boxes."""
    return [(int(3 * k), 0.2 + 0.6 * x, 0.2 + 0.6 * y) for k, x, y in chance.random((boxes, 3)).tolist()]


if __name__ == "__main__":
    main()
