"""Compare the training speed with other trainers, each with its own loop and data loading.

    python benchmarks/peers.py [--python [NAME=]PATH …] [--rounds 8] [--quick] [--part detector|classifier]

A step reads 16 images from JPEG files, decodes, augments and trains them, as each program does by default
on this machine's CPU; ``peers_contenders.py`` has the details. The programs take turns of one
step, and all processes of the others are stopped meanwhile; CPU time is that of all processes of a program.
A peer that is not installed is named and left out; ``--python`` (or ``PEERS_PYTHON``) is the Python that has
it, for one (``ultralytics=…``, ``libreyolo=…``, ``torchvision=…``, ``timm=…``) or for all. The exit
code is 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np

from foreign import PYTHON, Foreign, python_of
from input import draw
from input_contenders import boxes_of
from peers_contenders import BATCH, CLASSES
from table import Report, machine
from turns import Seconds, rounds

DRAWN, IMAGES = 64, 2048  # files that differ, and names that they have: an epoch outlasts the measurement


class Part(NamedTuple):
    """One comparison.

    Attributes:
        title: what is trained.
        ours: Rankless by default, and in fp32.
        demands: the goal for each peer, how many times as fast Rankless has to be; None for information.
    """

    title: str
    ours: tuple[str, str]
    demands: dict[str, float | None]


PARTS = {
    "detector": Part(
        "yolov3-tiny, 320 px, batch 16",
        ("rankless-detector", "rankless-detector-fp32"),
        {"ultralytics": 4.0, "ultralytics-all-cores": None, "libreyolo": 5.0},
    ),
    "classifier": Part(
        "ResNet-18, 224 px, batch 16",
        ("rankless-classifier", "rankless-classifier-fp32"),
        {"torchvision": 1.0, "timm": 1.0},
    ),
}


def detection_data(drawn: Sequence[Path], folder: Path, count: int) -> Path:
    """Write a data.yaml, images and labels in Ultralytics' layout; ten boxes of ten classes an image."""
    for split, number in (("train", count), ("val", BATCH)):
        for kind in ("images", "labels"):
            (folder / kind / split).mkdir(parents=True)
        for index in range(number):
            (folder / "images" / split / f"{index:05}.jpg").hardlink_to(drawn[index % len(drawn)])
            low, high = np.split(boxes_of(index, 1, 1), 2, 1)  # (10, 2) each
            rows = np.concatenate((np.arange(len(low))[:, None] % CLASSES, (low + high) / 2, high - low), 1)
            np.savetxt(folder / "labels" / split / f"{index:05}.txt", rows, "%d %.6f %.6f %.6f %.6f")
    names = "".join(f"  {number}: class-{number}\n" for number in range(CLASSES))
    (folder / "data.yaml").write_text(
        f"path: {folder}\ntrain: images/train\nval: images/val\nnc: {CLASSES}\nnames:\n{names}"
    )
    return folder / "data.yaml"


def classification_data(drawn: Sequence[Path], folder: Path, count: int) -> Path:
    """Write a folder per class in train/ and val/."""
    for split, number in (("train", count), ("val", BATCH)):
        for index in range(number):
            home = folder / split / f"class-{index % CLASSES}"
            home.mkdir(parents=True, exist_ok=True)
            (home / f"{index:05}.jpg").hardlink_to(drawn[index % len(drawn)])
    return folder


DATA = {"detector": detection_data, "classifier": classification_data}


def measure(
    part: Part, data: Path, work: Path, python: Sequence[str], count: int
) -> dict[str, list[Seconds]]:
    """Return the seconds a step of every installed contender, by round."""
    script = str(Path(__file__).with_name("peers_contenders.py"))
    with ExitStack() as stack:
        there = []
        for name in (*part.ours, *part.demands):
            say(f"{part.title}: {name}")
            home = work / name
            home.mkdir(parents=True)
            path = sys.executable if name in part.ours else python_of(name.partition("-")[0], python)
            command = [script, name, str(data), str(home)]
            each = stack.enter_context(Foreign(name, path, command, {"TMPDIR": str(home)}))
            if each.problem:
                say(f"  {name} is left out: {each.problem}")
            else:
                there.append(each)
        say(f"{part.title}: {count} rounds")
        found = rounds(there, count)
    return {each.name: times for each, times in zip(there, found, strict=True)}


def tell(report: Report, part: Part, found: dict[str, list[Seconds]]) -> None:
    """Add the rows of one part."""
    usual, fp32 = part.ours
    for name, demand in part.demands.items():
        if name in found and usual in found:
            report.compare(f"{part.title}: Rankless / {name}", found[usual], found[name], demand)
        if name in found and fp32 in found:
            report.compare(f"{part.title}: Rankless in fp32 / {name}", found[fp32], found[name])
    for name, times in found.items():
        best = BATCH / min(time.wall for time in times)
        median = BATCH / statistics.median(time.wall for time in times)
        cpu = 1000 * statistics.median(time.cpu for time in times) / BATCH
        report.note(
            name,
            {"best_images_per_second": best, "median_images_per_second": median, "cpu_ms_per_image": cpu},
            f"{name}: {best:.1f} images/s at best, median {median:.1f}; {cpu:.1f} ms of CPU time an image",
        )


def say(what: str) -> None:
    """Print progress."""
    print(f"… {what}", file=sys.stderr, flush=True)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", **PYTHON)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--quick", action="store_true", help="two rounds, for a look")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="this alone; may be repeated")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    options = parser.parse_args()
    os.environ.update(RANKLESS_CPU="1", CUDA_VISIBLE_DEVICES="")  # the contenders inherit it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # nobody is left behind stopped
    report = Report(machine())
    with tempfile.TemporaryDirectory(prefix="peers-") as made:
        home = Path(made)
        (home / "drawn").mkdir()
        draw(home / "drawn", DRAWN)
        drawn = sorted((home / "drawn").iterdir())
        for name in options.part or PARTS:
            data = DATA[name](drawn, home / name, IMAGES)
            count = 2 if options.quick else options.rounds
            tell(report, PARTS[name], measure(PARTS[name], data, home / "work", options.python, count))
    if options.json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        report.show()
    return 0 if report.is_met else 1


if __name__ == "__main__":
    raise SystemExit(main())
