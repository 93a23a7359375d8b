"""Compare the training step of Rankless with a plain PyTorch loop, and measure its parts.

    python benchmarks/step.py [--json] [--quick] [--part floor|core|micro|processes|memory …] [--case NAME …]

``floor`` compares two processes of one thread, with micro-batches, and the plain loop with two threads and
the whole batch in one pass. In the other parts a process has one thread; ``core`` compares with the whole
batch, too, the rest with the same micro-batches on both sides. The script needs two quiet cores and more
than a quarter of an hour (``--quick``: a few minutes, for a look). Every ratio is of contenders that take
turns in one run, so that other load on the machine hits all; times of different runs are not comparable. The
exit code is 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

os.environ["RANKLESS_CPU"] = "1"  # the contenders' processes inherit it
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["KINETO_LOG_LEVEL"] = "99"  # the profiler that counts bytes tells of every start

import torch

import loops
from loops import Subject
from rankless.engine import checkpoint
from rankless.engine.evaluate import evaluate
from rankless.hardware.precision import resolve
from rankless.recipe import load
from table import Report, machine
from turns import Contender, Seconds, rounds

LEAST = 0.90  # of the speed of the bare loop with the same micro-batches
FLOOR = 0.95  # of the speed of the bare loop at the full batch
OF_FAST = 0.97  # of the speed of reduce: fast
# Runs that never end of themselves, evaluate or save.
ENDLESS = ("epochs=1000000", "evaluate.every=0", "checkpoint.every=100000000")
DIGITS = ("data.root=digits", "ema.decay=0.999")
SCENES = (*DIGITS, "data.train_images=2048", "data.val_images=64")
# yolov3-tiny's recipe falls in steps that lie beyond any benchmark.
YOLOV3_TINY = (
    "model.image_size=320",
    "data.multi_scale=0",
    "batch.images=16",
    "batch.micro=4",
    "schedule.warmup=200",
)


@dataclass(frozen=True)
class Case:
    """A recipe to measure: its name in the table, the shipped recipe, what is changed in it, its data."""

    name: str
    recipe: str
    changes: tuple[str, ...]
    data: tuple[str, ...] = SCENES

    def json(self, *more: str) -> str:
        """Return the recipe for a contender."""
        loaded = load.load(self.recipe, [*ENDLESS, *self.data, *self.changes, *more])
        return load.to_json(loaded)


YOLOV4_TINY = ("model.name=yolov4-tiny", "batch.images=32", "batch.micro=8")
DIGITS_BF16 = Case("yolov4-tiny ×0.5, 256 px, 32/8, bf16", "digits", (*YOLOV4_TINY, "precision=bf16"))
CASES = (
    (DIGITS_BF16, 12),
    (Case("yolov4-tiny ×0.5, 256 px, 32/8, fp32", "digits", (*YOLOV4_TINY, "precision=fp32")), 8),
    (Case("yolov3-tiny, 320 px, 16/4, bf16", "yolov3-tiny", (*YOLOV3_TINY, "precision=bf16")), 6),
    (Case("yolov3-tiny, 320 px, 16/4, fp32", "yolov3-tiny", (*YOLOV3_TINY, "precision=fp32")), 5),
)
# bf16 if the CPU supports it, else fp32.
PRECISION = resolve("auto", torch.device("cpu"))
SIXTEEN = (f"precision={PRECISION}", "batch.images=16", "schedule.warmup=200")
OF_DETECTOR = (*SIXTEEN, "batch.micro=4", "data.multi_scale=0")
OF_CLASSIFIER = (*SIXTEEN, "batch.micro=8")
FLOORS = [
    Case("YOLOv3-tiny, 320 px, 16/4", "yolov3-tiny", (*OF_DETECTOR, "model.image_size=320")),
    Case("YOLOv4-tiny, 416 px, 16/4", "yolov4-tiny", (*OF_DETECTOR, "model.image_size=416")),
    Case("YOLOv3, 320 px, 16/4", "yolov3", (*OF_DETECTOR, "model.image_size=320")),
    Case("ResNet-18, 224 px, 16/8", "resnet18", OF_CLASSIFIER, DIGITS),
    Case("DenseNet-121, 224 px, 16/8", "densenet121", OF_CLASSIFIER, DIGITS),
]
# The gradients are large and the images tiny, so that the peak is that of the gradients.
MEMORY = Case(
    "memory", "yolov4-tiny", ("model.image_size=64", "batch.images=8", "batch.micro=1", "precision=fp32")
)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument("--quick", action="store_true", help="few rounds and the first case only")
    parser.add_argument(
        "--part", action="append", choices=list(PARTS), help="this part alone; may be repeated"
    )
    parser.add_argument("--case", action="append", help="floor and core: networks with this in their names")
    options = parser.parse_args()
    names = [name.lower() for name in options.case or [""]]
    FLOORS[:] = [case for case in FLOORS if any(name in case.name.lower() for name in names)]
    began = time.monotonic()
    report = Report(machine())
    for name in options.part or PARTS:
        PARTS[name](report, options.quick)
    report.note("seconds", round(time.monotonic() - began), f"took {time.monotonic() - began:.0f} s")
    if options.json:
        print(json.dumps(report.as_json(), indent=2, ensure_ascii=False))
    else:
        report.show()
    return 0 if report.is_met else 1


def against_the_full_batch(report: Report, quick: bool) -> None:
    """Compare two processes with micro-batches and the plain loop with two threads and the whole batch."""
    for case in FLOORS[:1] if quick else FLOORS:
        say(f"{case.name}: two processes / plain loop at the full batch")
        images = load.from_json(case.json()).batch.images
        with (
            Contender(loops.rankless, case.json(), size=2) as exact,
            Contender(loops.rankless, case.json("reduce=fast"), size=2) as fast,
            Contender(loops.plain, case.json(f"batch.micro={images}", "threads=2")) as bare,
        ):
            tree, ring, whole = rounds([exact, fast, bare], 4 if quick else 8)
        # Of each core, as on the other side, where the time is that of one process.
        whole = [Seconds(one.wall, one.cpu / 2) for one in whole]
        report.compare(f"{case.name}: two processes / plain loop, full batch", tree, whole, FLOOR)
        report.compare(f"{case.name}: reduce exact / fast", tree, ring, OF_FAST)


def on_one_core(report: Report, quick: bool) -> None:
    """Compare one process of one thread and the plain loop, with the whole batch and in micro-batches.

    A busy machine hardly changes the ratios of CPU time.
    """
    for case in FLOORS[:1] if quick else FLOORS:
        say(f"{case.name}: one core")
        images = load.from_json(case.json()).batch.images
        with (
            Contender(loops.rankless, case.json()) as ours,
            Contender(loops.plain, case.json(f"batch.micro={images}")) as whole,
            Contender(loops.plain, case.json()) as micro,
        ):
            mine, full, parts = rounds([ours, whole, micro], 4 if quick else 8)
        report.compare(f"{case.name}: one core, Rankless / plain loop, full batch", mine, full)
        report.compare(f"{case.name}: one core, Rankless / plain loop, micro-batches", mine, parts)
        report.compare(f"{case.name}: one core, plain loop, micro-batches / full batch", parts, full)


def against_bare(report: Report, quick: bool) -> None:
    """Compare the whole step, with its journal, and the plain loop with the same input."""
    for case, count in CASES[:1] if quick else CASES:
        count = 4 if quick else count
        say(f"{case.name}: Rankless / bare loop")
        with Contender(loops.rankless, case.json()) as ours, Contender(loops.plain, case.json()) as bare:
            report.compare(f"{case.name}: Rankless / bare loop", *rounds([ours, bare], count), LEAST)
    case, name = DIGITS_BF16, f"{DIGITS_BF16.name}: the same, scenes drawn while training"
    say(name)
    with (
        Contender(loops.rankless, case.json(), True) as ours,
        Contender(loops.plain, case.json(), True) as bare,
    ):
        report.compare(name, *rounds([ours, bare], 4 if quick else 8))


def several_processes(report: Report, quick: bool) -> None:
    """Compare two processes with one and with two threads, and the fixed tree with an all-reduce."""
    case, count = DIGITS_BF16, 4 if quick else 10
    say(f"{case.name}: one and two processes, and two threads")
    with (
        Contender(loops.rankless, case.json()) as one,
        Contender(loops.rankless, case.json(), size=2) as exact,
        Contender(loops.rankless, case.json("reduce=fast"), size=2) as fast,
        Contender(loops.threads, case.json(), 2) as threads,
    ):
        alone, tree, ring, threaded = rounds([one, exact, fast, threads], count)
        (times,) = one.ask(evaluate_and_save)
    report.compare("2 processes: reduce exact / fast", tree, ring)
    report.compare("2 processes / 1 process (2 would be perfect)", tree, alone)
    report.compare("2 threads of one process / 2 processes", threaded, tree)
    images = load.from_json(case.json()).batch.images
    speeds = [images / statistics.median(t.wall for t in found) for found in (alone, tree)]
    step = statistics.median(t.wall for t in alone)
    report.note(
        "images_per_second",
        [round(speed, 2) for speed in speeds],
        f"speed: {speeds[0]:.1f} img/s with one process, {speeds[1]:.1f} with two",
    )
    report.note(
        "evaluate_ms_per_image",
        round(times["evaluate"] * 1000, 2),
        f"evaluation: {times['evaluate'] * 1000:.1f} ms an image, drawing and scoring included "
        f"(a training step takes {step / images * 1000:.1f} ms an image)",
    )
    report.note(
        "save_ms",
        round(times["save"] * 1000, 1),
        f"checkpoint: {times['save'] * 1000:.0f} ms, that is {times['save'] / step:.2f} training steps",
    )


def evaluate_and_save(step: int, subject: Subject) -> dict[str, float]:
    """Measure the seconds of an evaluation per image and of a checkpoint; the better of two each."""
    samples = subject.recipe.data.val_images
    evaluations, saves = [], []
    for _ in range(2):
        began = time.perf_counter()
        evaluate(subject.task, subject.state.scored, subject.recipe, subject.world)
        evaluations.append((time.perf_counter() - began) / samples)
        began = time.perf_counter()
        checkpoint.save(subject.run, subject.state.snapshot(step), subject.recipe, subject.task.class_names)
        saves.append(time.perf_counter() - began)
    subject.state.training_mode()
    return {"evaluate": min(evaluations), "save": min(saves)}


def memory(report: Report, quick: bool) -> None:
    """Measure the peak bytes of tensors beyond plain accumulation, in sets of gradients."""
    say("memory at 8 micro-batches")
    peaks: dict[str, int] = {}
    for name, body, size in (
        ("bare", loops.plain, 1),
        ("1 process", loops.rankless, 1),
        ("2 processes", loops.rankless, 2),
    ):
        with Contender(loops.peak, body, MEMORY.json(), 3, size=size) as contender:
            peaks[name] = max(contender.first)
    gradients = gradient_bytes()
    for name, peak in peaks.items():
        if name == "bare":
            continue
        more = peak - peaks["bare"]
        report.note(
            f"extra_bytes_{name.replace(' ', '_')}",
            {"bytes": more, "gradient_sets": round(more / gradients, 2)},
            f"memory: {name}, 8 micro-batches: {more / 2**20:.1f} MiB more than plain accumulation, "
            f"that is {more / gradients:.2f} sets of gradients of {gradients / 2**20:.1f} MiB",
        )


def gradient_bytes() -> int:
    """Return the bytes of one set of gradients of the model whose memory is measured."""
    from rankless.models.zoo import build

    model = build(load.from_json(MEMORY.json()).model, 10)
    return sum(p.numel() * p.element_size() for p in model.parameters())


def say(what: Any) -> None:
    """Print progress."""
    print(f"… {what}", file=sys.stderr, flush=True)


PARTS = {
    "floor": against_the_full_batch,
    "core": on_one_core,
    "micro": against_bare,
    "processes": several_processes,
    "memory": memory,
}


if __name__ == "__main__":
    raise SystemExit(main())
