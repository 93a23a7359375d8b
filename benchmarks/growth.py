"""Measure how CPU time and memory grow with images, boxes, classes, micro-batches, ranks and image size.

    python benchmarks/growth.py [--quick] [--json] [--out docs/images/growth.svg] [--only WORD]

One process, one thread; the seconds are CPU time, the least of some repeats, which other work on
the machine changes least. Ranks are processes of one thread, which train the same eight micro-batches; shown
is the CPU time of the slowest, times their number. Memory is the most bytes of tensors alive at once. A slope
is that of the logarithms over the last two sizes: 0 does not grow, 1 grows in proportion, 2 with the square.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

os.environ["KINETO_LOG_LEVEL"] = "99"  # the profiler that counts bytes tells of every start

import numpy as np
import torch

import loops
from rankless.data.order import micro_batch
from rankless.geometry.nms import nms
from rankless.metrics.coco import coco_scores
from rankless.models.zoo import build
from rankless.recipe.load import load, to_json
from rankless.recipe.schema import Batch
from rankless.structures import DetectionBatch, Detections
from rankless.world.exchange import Exchange
from turns import Contender

Work = Callable[[], object]


class Axis(NamedTuple):
    """One measurement.

    Attributes:
        what: the measured operation.
        of: the growing quantity.
        sizes: its values.
        measure: returns the result for a size and a number of repeats.
        unit: of the result.
    """

    what: str
    of: str
    sizes: tuple[int, ...]
    measure: Callable[[int, int], float]
    unit: str = "CPU seconds"


def scattered(count: int, side: float = 416.0) -> torch.Tensor:
    """Return boxes of some 40 pixels, xyxy, (count, 4)."""
    generator = torch.Generator().manual_seed(0)
    corner = torch.rand(count, 2, generator=generator) * (side - 50)
    return torch.cat((corner, corner + 20 + torch.rand(count, 2, generator=generator) * 30), 1)


def order(images: int) -> Work:
    """Return the images of 64 micro-batches."""
    batch = Batch(images=64, micro=8)
    return lambda: [micro_batch(images, 0, step, part, batch) for step in range(8) for part in range(8)]


def suppressed(boxes: int, classes: int) -> Work:
    """Run NMS on the candidates of an image."""
    where = scattered(boxes)
    scores = torch.rand(boxes, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(boxes) % classes
    return lambda: nms(where, scores, labels, kind="iou", threshold=0.6)


def loss(boxes: int, classes: int, name: str = "yolov4-tiny", images: int = 2) -> Work:
    """Compute the loss of a micro-batch and its gradient from a given network output."""
    recipe = load("digits", [f"model.name={name}", "model.image_size=416", "model.width=0.25"])
    model = build(recipe.model, classes, recipe.loss)
    with torch.no_grad():
        raw = [each.detach() for each in model(torch.zeros(images, 3, 416, 416))]
    where = scattered(boxes).expand(images, -1, -1)
    labels = (torch.arange(boxes) % classes).expand(images, -1)
    batch = DetectionBatch(
        torch.zeros(images, 3, 1, 1, dtype=torch.uint8).expand(-1, -1, 416, 416),
        where, labels, torch.ones(images, boxes, dtype=torch.bool), [*range(images)], [],
    )  # fmt: skip
    return lambda: model.loss([each.requires_grad_() for each in raw], batch).sum.backward()


def scored(images: int, classes: int, boxes: int = 8) -> Work:
    """Compute COCO's scores of ``size`` images, half of whose boxes are found."""
    where, labels = scattered(boxes), torch.arange(boxes)
    truths = [(where, (labels + number) % classes) for number in range(images)]
    found = [
        Detections(
            number, where + 2 * (number % 2), torch.linspace(0.9, 0.1, boxes), (labels + number) % classes
        )
        for number in range(images)
    ]
    names = [str(number) for number in range(classes)]
    return lambda: coco_scores(found, truths, names)


def folded(micro_batches: int) -> Work:
    """Add the gradients (4 MB) of ``size`` micro-batches along the tree."""
    leaf = torch.zeros(1 << 20)
    exchange = Exchange(micro_batches, 0, 1)
    return lambda: exchange.fold(leaf.clone() for _ in range(micro_batches))


def stepped(side: int) -> Work:
    """Run forward and backward passes of two images."""
    recipe = load("digits", ["model.name=yolov4-tiny", "model.width=0.25"])
    model = build(replace(recipe.model, image_size=side), 10, recipe.loss)
    images = torch.zeros(2, 3, side, side)
    return lambda: sum(each.sum() for each in model(images)).backward()


def trained(*changes: str) -> str:
    """Return the recipe of a small network: eight images a step, a micro-batch each."""
    fixed = ["epochs=1000000", "evaluate.every=0", "checkpoint.every=100000000", "precision=fp32"]
    small = ["model.name=yolov4-tiny", "model.image_size=64", "batch.images=8", "batch.micro=1"]
    return to_json(load("digits", [*fixed, *small, "data.train_images=64", *changes]))


def of_all_ranks(ranks: int, repeats: int) -> float:
    """Return the CPU seconds of a step: those of the slowest rank times the number of ranks."""
    with Contender(loops.rankless, trained("model.width=0.25"), size=ranks) as contender:
        contender.steps(3)
        return ranks * min(statistics.median(t.cpu for t in contender.steps(5)) for _ in range(repeats))


def peak(*changes: str) -> float:
    """Return the peak MiB of live tensors, weights included, in three steps of one process."""
    with Contender(loops.peak, loops.rankless, trained(*changes), 3) as contender:
        return max(contender.first) / 2**20


def timed(make: Callable[[int], Work]) -> Callable[[int, int], float]:
    """Return the CPU time of one call: the least of several, or of few if it takes long."""

    def seconds(size: int, repeats: int) -> float:
        work = make(size)
        work()
        best, spent = math.inf, 0.0
        for _ in range(repeats):
            began = time.process_time()
            work()
            taken = time.process_time() - began
            best, spent = min(best, taken), spent + taken
            if spent > 3:
                break
        return best

    return seconds


AXES = (
    Axis("order of 64 micro-batches", "images", (10**3, 10**4, 10**5, 10**6, 10**7), timed(order)),
    Axis("COCO scores", "images", (100, 1000, 5000), timed(lambda n: scored(n, 10))),
    Axis("COCO scores of 200 images", "classes", (1, 10, 100, 1000, 10_000), timed(lambda n: scored(200, n))),
    Axis("loss, 10 classes", "boxes per image", (1, 10, 100, 500), timed(lambda n: loss(n, 10))),
    Axis("loss, 8 boxes", "classes", (1, 10, 100, 1000, 10_000), timed(lambda n: loss(8, n))),
    Axis("NMS, 10 classes", "boxes", (100, 1000, 10_000), timed(lambda n: suppressed(n, 10))),
    Axis("NMS of 3,000 boxes", "classes", (1, 10, 100, 1000, 10_000), timed(lambda n: suppressed(3000, n))),
    Axis("tree of gradients", "micro-batches", (1, 4, 16, 64), timed(folded)),
    Axis("forward and backward", "side in pixels", (128, 256, 512, 1024, 2048), timed(stepped)),
    Axis("step of all ranks", "ranks", (1, 2, 4, 8), of_all_ranks),
    Axis("memory", "micro-batches", (1, 4, 16, 64), lambda n, _: peak(f"batch.images={n}"), "MiB"),
    Axis(
        "memory, batch 8",
        "side in pixels",
        (128, 256, 512, 1024),
        lambda n, _: peak(f"model.image_size={n}", "batch.micro=8", "model.width=0.25"),
        "MiB",
    ),
)


def slope(sizes: tuple[int, ...], times: list[float]) -> float:
    """Return the slope of the logarithms over the last two sizes."""
    return math.log(times[-1] / times[-2]) / math.log(sizes[len(times) - 1] / sizes[len(times) - 2])


def measured(quick: bool, only: str) -> Iterator[tuple[Axis, list[float]]]:
    """Return every axis with its results, size by size; ``quick`` leaves out the largest sizes."""
    for axis in AXES:
        if only in f"{axis.what}, {axis.of}":
            sizes = axis.sizes[: 2 if quick else None]
            print(f"… {axis.what}: {axis.of}", file=sys.stderr, flush=True)
            yield axis, [axis.measure(size, 2 if quick else 5) for size in sizes]


def draw(found: list[tuple[Axis, list[float]]], out: Path) -> None:
    """Draw a small plot for each axis, with logarithmic scales and a line of proportional growth."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), layout="constrained")
    for place, (axis, times) in zip(np.ravel(figure.subplots(3, 4)), found, strict=False):
        sizes = axis.sizes[: len(times)]
        place.loglog(sizes, times, "o-")
        place.loglog(
            sizes, [times[-1] * size / sizes[-1] for size in sizes], ":", color="gray", label="in proportion"
        )
        place.minorticks_off()
        place.set_xticks(sizes, [f"{size:,}".replace(",000,000", "M") for size in sizes], fontsize=8)
        place.set_title(axis.what, fontsize=10)
        place.set_xlabel(axis.of)
        place.set_ylabel(axis.unit)
    figure.axes[0].legend(fontsize=8)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "growth"}):
        figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two small sizes of each")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument("--out", type=Path, help="draw it: a .png or .svg")
    parser.add_argument("--only", default="", help="what has this in its name, as in ranks")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = list(measured(options.quick, options.only))
    if options.out:
        draw(found, options.out)
    if options.json:
        rows = [
            {"what": a.what, "of": a.of, "sizes": a.sizes[: len(t)], "unit": a.unit, "found": t}
            for a, t in found
        ]
        print(json.dumps(rows, indent=2))
        return 0
    for axis, times in found:
        factor, unit = (1, axis.unit) if axis.unit == "MiB" else (1000, "ms")
        pairs = zip(axis.sizes, times, strict=False)
        shown = "  ".join(f"{size:,}: {found * factor:.3g}" for size, found in pairs)
        print(f"{axis.what:28}{axis.of:18}slope {slope(axis.sizes, times):5.2f}   {unit} {shown}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
