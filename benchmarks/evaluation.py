"""Compare an evaluation with its forward passes, and COCO's scores with those of pycocotools.

    python benchmarks/evaluation.py [--part scoring] [--part passes] [--images N]

One thread; seconds are CPU time, which other work on the machine changes least. ``scoring`` scores the same
random detections, 100 an image, by each program in a process of its own: CPU time and the growth of its peak
memory. ``passes`` evaluates images from memory, with a network of random weights whose biases leave 1,000
candidates and 100 detections an image.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import resource
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankless.data.datasets.annotated import GroundTruth
from rankless.engine.evaluate import evaluate
from rankless.hardware.computing import forward_pass
from rankless.hardware.heap import hold_freed_memory
from rankless.hardware.precision import resolve
from rankless.metrics.coco import Truth, coco_scores
from rankless.recipe.load import load
from rankless.structures import DetectionBatch, DetectionItem, Detections, Letterbox, network_input
from rankless.tasks.detect import Detect
from rankless.world.process_group import World
from turns import Seconds, timed

CPU = torch.device("cpu")


def random_data(
    images: int, classes: int, objects: int, detections: int
) -> tuple[list[Detections], list[Truth]]:
    """Return objects of all sizes, and detections near them, half of which have the right class."""
    rng = np.random.default_rng(0)
    found, truths = [], []
    for index in range(images):
        corner = rng.uniform(0, 400, (objects, 2))
        side = np.exp(rng.uniform(np.log(8), np.log(200), (objects, 2)))
        boxes, labels = np.concatenate([corner, corner + side], 1), rng.integers(0, classes, objects)
        truths.append(Truth(torch.tensor(boxes).float(), torch.tensor(labels)))
        near = rng.integers(0, objects, detections)
        moved = boxes[near] + rng.normal(0, 0.08, (detections, 4)) * np.tile(side[near], 2)
        moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
        named = np.where(rng.random(detections) < 0.5, labels[near], rng.integers(0, classes, detections))
        scores = torch.tensor(np.sort(rng.random(detections))[::-1].copy()).float()
        found.append(Detections(index, torch.tensor(moved).float(), scores, torch.tensor(named)))
    return found, truths


def ours(found: list[Detections], truths: list[Truth], classes: int) -> float:
    """Score with Rankless."""
    return float(coco_scores(found, truths, [str(label) for label in range(classes)])["AP"])


def theirs(found: list[Detections], truths: list[Truth], classes: int) -> float:
    """Score the same tensors with pycocotools."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def rows(image: int, boxes: Tensor, labels: Tensor) -> Iterator[dict[str, Any]]:
        for (x1, y1, x2, y2), label in zip(boxes.tolist(), labels.tolist(), strict=True):
            box, area = [x1, y1, x2 - x1, y2 - y1], (x2 - x1) * (y2 - y1)
            yield {"image_id": image, "category_id": label + 1, "bbox": box, "area": area, "iscrowd": 0}

    api = COCO()
    objects = [row for image, one in enumerate(truths, 1) for row in rows(image, one.boxes, one.labels)]
    api.dataset = {
        "images": [{"id": image} for image in range(1, len(truths) + 1)],
        "categories": [{"id": label} for label in range(1, classes + 1)],
        "annotations": [{**row, "id": number} for number, row in enumerate(objects, 1)],
    }
    api.createIndex()
    results = [
        {**row, "score": score}
        for image, one in enumerate(found, 1)
        for row, score in zip(rows(image, one.boxes, one.labels), one.scores.tolist(), strict=True)
    ]
    made = COCOeval(api, api.loadRes(results), "bbox")
    made.evaluate()
    made.accumulate()
    made.summarize()
    return float(made.stats[0])


PROGRAMS = {"Rankless": ours, "pycocotools": theirs}


def scored(name: str, images: int, classes: int, objects: int, detections: int) -> tuple[float, float, float]:
    """Return AP, CPU milliseconds and megabytes an image, measured in a process of its own."""
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):
        PROGRAMS[name](*random_data(10, 3, 2, 5), 3)  # imports
        found, truths = random_data(images, classes, objects, detections)
        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.process_time()
        score = PROGRAMS[name](found, truths, classes)
    taken = time.process_time() - began
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held) / 1024
    return score, taken * 1000 / images, grown / images


def scoring(options: argparse.Namespace) -> None:
    """Print the cost of many detections for each program, and of many classes for Rankless."""
    many, few = (options.images, 80, 7, 100), (min(options.images, 200), 10_000, 8, 8)
    for name, case in (*((program, many) for program in PROGRAMS), ("Rankless", few)):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            score, milliseconds, megabytes = pool.apply(scored, (name, *case))
        title = f"{case[0]:,} images with {case[3]} detections each, {case[1]:,} classes"
        print(f"{title:58} {name:12} AP {score:.6f} {milliseconds:8.3f} ms {megabytes:6.3f} MB an image")


@dataclass
class Ready:
    """Images (N, 3, H, W) uint8 in memory, which are shown again and again, as a task's evaluation data."""

    images: Tensor
    truths: list[Truth]

    def __len__(self) -> int:
        return len(self.truths)

    def item(self, index: int, epoch: int) -> DetectionItem:
        """Return an image as it is."""
        (height, width), truth = self.images.shape[-2:], self.truths[index]
        where = Letterbox(1, 0, 0, height, width)
        return DetectionItem(self.images[index % len(self.images)], truth.boxes, truth.labels, index, where)

    def ground_truth(self, index: int) -> GroundTruth:
        """Return its boxes."""
        height, width = self.images.shape[-2:]
        return GroundTruth(self.truths[index].boxes, self.truths[index].labels, height, width)


class Prepared(Detect):
    """The task ``detect`` on images that are ready."""

    ready: Ready

    def evaluation_data(self) -> Any:
        """Return the images."""
        return self.ready


def calibrate(task: Detect, model: Any, images: Tensor, candidates: int) -> None:
    """Shift the biases of objectness so that ``candidates`` scores of an image exceed the confidence."""
    biases = [
        one.bias.data
        for one in model.modules()
        if getattr(one, "bias", None) is not None and one.weight.ndim > 1
    ]
    low, high, start = -20.0, 20.0, [bias.clone() for bias in biases]
    for _ in range(20):
        middle = (low + high) / 2
        for bias, first in zip(biases, start, strict=True):
            moved = first.clone().view(-1, 5 + len(task.class_names))
            moved[:, 4] += middle
            bias.copy_(moved.flatten())
        _, scores = model.decode(model(network_input(images)))
        many = (scores > task.recipe.evaluate.confidence).sum() / len(images) > candidates
        low, high = (low, middle) if many else (middle, high)


def passes(options: argparse.Namespace) -> None:
    """Print the cost of an evaluation and of its forward passes, for two widths."""
    for width in (1.0, 0.5):
        forward, whole = one_width(options, width)
        ratios = [b.cpu / a.cpu for a, b in zip(forward, whole, strict=True)]
        mine, theirs = (1000 * min(one.cpu for one in times) for times in (whole, forward))
        count = max(options.images // 20, 8)
        print(
            f"YOLOv4-tiny, width {width:g}: forward {theirs / count:.2f} ms, evaluation {mine / count:.2f} "
            f"ms an image: {mine / theirs:.3f} times, median of pairs {statistics.median(ratios):.3f}"
        )


def one_width(options: argparse.Namespace, width: float) -> list[list[Seconds]]:
    """Return the times of the forward passes and of the evaluation."""
    side, images = 64 if options.tiny else 416, max(options.images // 20, 8)
    words = ["model.name=yolov4-tiny", f"model.width={width}", f"model.image_size={side}"]
    recipe = load("digits", [*words, "workers=0", "batch.images=8", "batch.micro=8"])
    recipe = replace(recipe, precision=resolve(recipe.precision, CPU))
    torch.manual_seed(0)
    task = Prepared(recipe, [str(label) for label in range(80)])
    pixels = torch.randint(0, 256, (8, 3, side, side), dtype=torch.uint8)
    task.ready = Ready(pixels, random_data(images, 80, 7, 1)[1])
    model = task.model().eval().to(memory_format=torch.channels_last)
    with torch.no_grad():
        for head in model.modules():
            if isinstance(head, torch.nn.Conv2d) and head.bias is not None:
                head.weight.normal_(0, 0.02)
        calibrate(task, model, pixels[:4], 1000)
    world = World(0, 1, CPU)
    batch: DetectionBatch = task.collate([task.ready.item(index, 0) for index in range(8)])

    def forward() -> None:
        with torch.no_grad(), forward_pass(recipe.precision, world.device, training=True):
            for _ in range(0, images, 8):
                model(network_input(batch.images))

    return timed([forward, lambda: evaluate(task, model, recipe, world)], options.rounds)


PARTS = {"scoring": scoring, "passes": passes}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--part", action="append", choices=list(PARTS), help="only this one; may be repeated")
    parser.add_argument("--images", type=int, default=5000, help="to score; a twentieth is evaluated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="few small images, to see that the script works")
    options = parser.parse_args()
    if options.tiny:
        options.images, options.rounds = 16, 1
    torch.set_num_threads(1)
    hold_freed_memory()  # as every rank of an evaluation does
    for name in options.part or PARTS:
        PARTS[name](options)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
