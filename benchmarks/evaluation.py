"""Compare an evaluation with its forward passes, and COCO's scores with those of other programs.

    python benchmarks/evaluation.py [--quick] [--images N] [--part scoring] [--part passes]

One thread; seconds are CPU time, which other work on the machine changes least. ``scoring`` scores the same
random detections, 100 an image, by each program in a process of its own: CPU time and the growth of its peak
memory. Programs that are not installed are left out. ``passes`` evaluates images from memory, with
a network of random weights whose biases leave 1,000 candidates and 100 detections an image.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import multiprocessing
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from rankless.data.datasets.annotated import GroundTruth
from rankless.engine.evaluate import evaluate
from rankless.hardware.computing import forward_pass
from rankless.hardware.heap import hold_freed_memory
from rankless.hardware.precision import resolve
from rankless.metrics.coco import coco_scores
from rankless.recipe.load import load
from rankless.structures import DetectionBatch, DetectionItem, Detections, Letterbox, network_input
from rankless.tasks.detect import Detect
from rankless.world.objects import pack, unpack
from rankless.world.process_group import World

Truths = list[tuple[torch.Tensor, torch.Tensor]]


def random_data(images: int, classes: int, objects: int, detections: int) -> tuple[list[Detections], Truths]:
    """Return objects of all sizes, and detections near them, half of which have the right class."""
    rng = np.random.default_rng(0)
    found, truths = [], []
    for index in range(images):
        corner = rng.uniform(0, 400, (objects, 2))
        side = np.exp(rng.uniform(np.log(8), np.log(200), (objects, 2)))
        boxes, labels = np.concatenate([corner, corner + side], 1), rng.integers(0, classes, objects)
        truths.append((torch.tensor(boxes).float(), torch.tensor(labels)))
        near = rng.integers(0, objects, detections)
        moved = boxes[near] + rng.normal(0, 0.08, (detections, 4)) * np.tile(side[near], 2)
        moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
        named = np.where(rng.random(detections) < 0.5, labels[near], rng.integers(0, classes, detections))
        scores = np.sort(rng.random(detections))[::-1].copy()
        found.append(
            Detections(index, torch.tensor(moved).float(), torch.tensor(scores).float(), torch.tensor(named))
        )
    return found, truths


def ours(found: list[Detections], truths: Truths, classes: int) -> float:
    """Score with Rankless."""
    return float(coco_scores(found, truths, [str(label) for label in range(classes)])["AP"])


def theirs(package: str, evaluator: str) -> Callable[[list[Detections], Truths, int], float]:
    """Score the same tensors with a package that has cocoapi's interface."""

    def score(found: list[Detections], truths: Truths, classes: int) -> float:
        def rows(image: int, boxes: torch.Tensor, labels: torch.Tensor) -> Iterator[dict[str, Any]]:
            for (x1, y1, x2, y2), label in zip(boxes.tolist(), labels.tolist(), strict=True):
                box, area = [x1, y1, x2 - x1, y2 - y1], (x2 - x1) * (y2 - y1)
                yield {"image_id": image, "category_id": label + 1, "bbox": box, "area": area, "iscrowd": 0}

        core = "core." if package == "faster_coco_eval" else ""
        api = importlib.import_module(f"{package}.{core}coco").COCO()
        objects = [row for image, truth in enumerate(truths, 1) for row in rows(image, *truth)]
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
        module, name = evaluator.rsplit(".", 1)
        made = getattr(importlib.import_module(f"{package}.{module}"), name)(
            api, api.loadRes(results), "bbox"
        )
        made.evaluate()
        made.accumulate()
        made.summarize()
        return float(made.stats[0])

    return score


PROGRAMS = {
    "rankless": ours,
    "pycocotools": theirs("pycocotools", "cocoeval.COCOeval"),
    "faster_coco_eval": theirs("faster_coco_eval", "core.COCOeval_faster"),
}


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


def scoring(images: int) -> None:
    """Print the cost of many detections for each program, and of many classes for Rankless."""
    cases = [("80 classes", (images, 80, 7, 100)), ("10,000 classes", (200, 10_000, 8, 8))]
    for title, case in cases:
        print(f"scores of {case[0]:,} images with {case[3]} detections each, {title}")
        for name in PROGRAMS if case[1] < 1000 else ["rankless"]:
            if not importlib.util.find_spec(name):
                continue
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                score, milliseconds, megabytes = pool.apply(scored, (name, *case))
            print(
                f"  {name:18}AP {score:.6f}  {milliseconds:8.3f} ms  {megabytes:6.3f} MB an image", flush=True
            )


@dataclass
class Ready:
    """Images in memory, as the evaluation data of a task.

    Attributes:
        images: uint8, (N, 3, H, W); shown again and again.
        truths: of each image.
    """

    images: torch.Tensor
    truths: Truths

    def __len__(self) -> int:
        return len(self.truths)

    def item(self, index: int, epoch: int) -> DetectionItem:
        height, width = self.images.shape[-2:]
        where = Letterbox(1, 0, 0, height, width)
        return DetectionItem(self.images[index % len(self.images)], *self.truths[index], index, where)

    def ground_truth(self, index: int) -> GroundTruth:
        height, width = self.images.shape[-2:]
        return GroundTruth(*self.truths[index], height, width)


class Prepared(Detect):
    """The task ``detect`` on images that are ready."""

    ready: Ready

    def evaluation_data(self) -> Any:
        return self.ready


def calibrated(task: Detect, model: Any, images: torch.Tensor, candidates: int) -> None:
    """Shift the biases of objectness so that ``count`` scores of an image exceed ``evaluate.confidence``."""
    biases = [head for head in model.modules() if isinstance(head, torch.nn.Conv2d) and head.bias is not None]
    low, high = -20.0, 20.0
    start = [head.bias.detach().clone() for head in biases]
    for _ in range(20):
        middle = (low + high) / 2
        for head, bias in zip(biases, start, strict=True):
            moved = bias.clone().view(-1, 5 + len(task.class_names))
            moved[:, 4] += middle
            head.bias.data.copy_(moved.flatten())
        _, scores = model.decode(model(network_input(images)))
        many = (scores > task.recipe.evaluate.confidence).sum() / len(images) > candidates
        low, high = (low, middle) if many else (middle, high)


def passes(images: int, rounds: int, name: str, width: float) -> None:
    """Print the parts of an evaluation and its forward passes."""
    words = [f"model.name={name}", f"model.width={width}", "model.image_size=416"]
    recipe = load("digits", [*words, "workers=0", "batch.images=8", "batch.micro=8"])
    recipe = replace(recipe, precision=resolve(recipe.precision, torch.device("cpu")))
    torch.manual_seed(0)
    task = Prepared(recipe, [str(label) for label in range(80)])
    pixels = torch.randint(0, 256, (8, 3, 416, 416), dtype=torch.uint8)
    task.ready = Ready(pixels, random_data(images, 80, 7, 1)[1])
    model = task.model().eval().to(memory_format=torch.channels_last)
    with torch.no_grad():
        for head in model.modules():
            if isinstance(head, torch.nn.Conv2d) and head.bias is not None:
                head.weight.normal_(0, 0.02)
        calibrated(task, model, pixels[:4], 1000)
    world = World(0, 1, torch.device("cpu"))
    kept: list[Detections] = []

    def forward() -> None:
        with torch.no_grad(), forward_pass(recipe.precision, world.device, training=True):
            for at in range(0, images, 8):
                model(network_input(batches[at // 8 % len(batches)].images))

    def whole() -> None:
        kept.clear()
        evaluate(task, model, recipe, world, keep=kept.extend)

    batches: list[DetectionBatch] = [task.collate([task.ready.item(index, 0) for index in range(8)])]
    times = {work.__name__: [] for work in (forward, whole)}
    for number in range(rounds + 1):
        for work in (forward, whole) if number % 2 else (whole, forward):
            began = time.process_time()
            work()
            if number:
                times[work.__name__].append(time.process_time() - began)
    forwards, wholes = (np.array(times[each]) * 1000 / images for each in ("forward", "whole"))
    each = np.mean([len(one.scores) for one in kept])
    print(f"{name}, width {width:g}, {recipe.precision}: {images:,} images, {each:.0f} detections each")
    print(
        f"  forward {forwards.min():.2f} ms, evaluation {wholes.min():.2f} ms an image: "
        f"{wholes.min() / forwards.min():.3f} times, median of pairs {np.median(wholes / forwards):.3f}"
    )
    began = time.process_time()
    sent = pack(kept)
    unpack(sent)
    taken = (time.process_time() - began) * 1000 / images
    print(f"  from rank to rank {taken:.3f} ms and {sent.numel() / images / 1000:.2f} kB an image")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few images, once")
    parser.add_argument("--images", type=int, default=5000, help="to score; a twentieth is predicted")
    parser.add_argument("--part", action="append", choices=["scoring", "passes"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    hold_freed_memory()  # as every rank of an evaluation does
    images, rounds = (200, 1) if options.quick else (options.images, 5)
    if "scoring" in (options.part or ["scoring"]):
        scoring(images)
    if "passes" in (options.part or ["passes"]):
        for width in (1.0, 0.5):
            passes(max(images // 20, 64), rounds, "yolov4-tiny", width)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
