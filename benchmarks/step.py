"""Compare the training step of Rankless with a plain PyTorch loop, and measure its parts.

    python benchmarks/step.py [--part floor|core|processes|check|save …] [--case NAME …] [--quick]

``floor`` compares two processes of one thread, with micro-batches, and the plain loop with two threads and
the whole batch in one pass. In the other parts a process has one thread. ``core`` compares with the plain
loop's whole batch and with the same micro-batches, and ``processes`` one process and two. ``check`` is the
cost of ``check.recompute``, ``save`` how long training stops for a checkpoint. The script needs two quiet
cores and more than a quarter of an hour (``--quick``: a few minutes, for a look). Every ratio is of
contenders that take turns in one run, so that other load on the machine hits all; times of different runs are
not comparable. The exit code is 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from dataclasses import dataclass

os.environ["RANKLESS_CPU"] = "1"  # the contenders' processes inherit it
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch

import loops
from loops import Subject
from rankless.engine import checkpoint
from rankless.hardware.precision import resolve
from rankless.recipe import load
from rankless.recipe.schema import Recipe
from table import Report, machine
from turns import Contender, Seconds, rounds

LEAST = 0.90  # of the speed of the plain loop with the same micro-batches
FLOOR = 0.95  # of the speed of the plain loop at the full batch
OF_FAST = 0.97  # of the speed of reduce: fast
# Runs that never end of themselves, evaluate or save.
ENDLESS = ("epochs=1000000", "evaluate.every=0", "checkpoint.every=100000000")
DIGITS = ("data.root=digits", "ema.decay=0.999")
SCENES = (*DIGITS, "data.train_images=2048", "data.val_images=64")


# For --tiny.
SMALL = ("model.width=0.125", "model.image_size=64", "batch.images=4", "batch.micro=2", "precision=fp32")
CHANGES: list[str] = []  # of all recipes


@dataclass(frozen=True)
class Case:
    """A recipe to measure: its name in the table, the shipped recipe, what is changed in it, its data."""

    name: str
    recipe: str
    changes: tuple[str, ...]
    data: tuple[str, ...] = SCENES

    def json(self, *more: str) -> str:
        """Return the recipe for a contender."""
        return load.to_json(self.loaded(*more))

    def loaded(self, *more: str) -> Recipe:
        """Return the recipe."""
        return load.load(self.recipe, [*ENDLESS, *self.data, *self.changes, *CHANGES, *more])


# bf16 if the CPU supports it, else fp32.
PRECISION = f"precision={resolve('auto', torch.device('cpu'))}"
SIXTEEN = (PRECISION, "batch.images=16", "schedule.warmup=200")
OF_DETECTOR = (*SIXTEEN, "batch.micro=4", "data.multi_scale=0")
OF_CLASSIFIER = (*SIXTEEN, "batch.micro=8")
FLOORS = [
    Case("YOLOv3-tiny, 320 px, 16/4", "yolov3-tiny", (*OF_DETECTOR, "model.image_size=320")),
    Case("YOLOv4-tiny, 416 px, 16/4", "yolov4-tiny", (*OF_DETECTOR, "model.image_size=416")),
    Case("YOLOv3, 320 px, 16/4", "yolov3", (*OF_DETECTOR, "model.image_size=320")),
    Case("ResNet-18, 224 px, 16/8", "resnet18", OF_CLASSIFIER, DIGITS),
    Case("DenseNet-121, 224 px, 16/8", "densenet121", OF_CLASSIFIER, DIGITS),
]
ADAMW = ("optim.name=adamw", "optim.lr=1e-3")
TINY_V4 = ("model.name=yolov4-tiny", "model.width=0.5", "model.image_size=256", *ADAMW, PRECISION)
TWO = Case("YOLOv4-tiny ×0.5, 256 px, 32/8", "digits", (*TINY_V4, "batch.images=32", "batch.micro=8"))
CHECKED = ("model.width=0.25", "model.image_size=128", "batch.images=12", "batch.micro=3")
CHECK = Case("YOLOv4-tiny ×0.25, 128 px", "digits", (*TINY_V4, *CHECKED))
SAVED = ("model.name=yolov4", "model.width=1", "model.image_size=416", "batch.images=8", "batch.micro=4")
SAVE = Case("YOLOv4, 416 px, 8/4", "digits", (*TINY_V4, *SAVED))


def against_the_full_batch(report: Report, count: int) -> None:
    """Compare two processes with micro-batches and the plain loop with two threads and the whole batch."""
    for case in FLOORS:
        say(f"{case.name}: two processes / plain loop at the full batch")
        whole = f"batch.micro={case.loaded().batch.images}"
        with (
            Contender(loops.rankless, case.json(), size=2) as exact,
            Contender(loops.rankless, case.json("reduce=fast"), size=2) as fast,
            Contender(loops.plain, case.json(whole, "threads=2")) as bare,
        ):
            tree, ring, full = rounds([exact, fast, bare], count)
        # Of each core, as on the other side, where the time is that of one process.
        full = [Seconds(one.wall, one.cpu / 2) for one in full]
        report.compare(f"{case.name}: two processes / plain loop, full batch", tree, full, demand=FLOOR)
        report.compare(f"{case.name}: reduce exact / fast", tree, ring, demand=OF_FAST)


def on_one_core(report: Report, count: int) -> None:
    """Compare one process of one thread and the plain loop, with the whole batch and in micro-batches.

    A busy machine hardly changes the ratios of CPU time.
    """
    for case in FLOORS:
        say(f"{case.name}: one core")
        with (
            Contender(loops.rankless, case.json()) as ours,
            Contender(loops.plain, case.json(f"batch.micro={case.loaded().batch.images}")) as whole,
            Contender(loops.plain, case.json()) as micro,
        ):
            mine, full, parts = rounds([ours, whole, micro], count)
        report.compare(f"{case.name}: one core, Rankless / plain loop, full batch", mine, full)
        report.compare(
            f"{case.name}: one core, Rankless / plain loop, micro-batches", mine, parts, demand=LEAST
        )
        report.compare(f"{case.name}: one core, plain loop, micro-batches / full batch", parts, full)


def several_processes(report: Report, count: int) -> None:
    """Compare two processes with one, and the fixed tree with an all-reduce."""
    case = TWO
    say(f"{case.name}: one and two processes")
    with (
        Contender(loops.rankless, case.json()) as one,
        Contender(loops.rankless, case.json(), size=2) as exact,
        Contender(loops.rankless, case.json("reduce=fast"), size=2) as fast,
    ):
        alone, tree, ring = rounds([one, exact, fast], count)
    report.compare("2 processes: reduce exact / fast", tree, ring)
    report.compare("2 processes / 1 process (2 would be perfect)", tree, alone)


def checked_steps(report: Report, count: int) -> None:
    """Measure what ``check.recompute`` costs: every second step is checked, so both have the same load.

    One more micro-batch is computed on every rank, which costs most if each rank has only one.
    """
    for ranks, micro in ((1, CHECK.loaded().batch.micro), (2, CHECK.loaded().batch.images // 2)):
        say(f"silent errors, {ranks} ranks")
        recipe = CHECK.json(f"batch.micro={micro}", "check.recompute=2")
        with Contender(loops.rankless, recipe, size=ranks) as contender:
            contender.steps(2)  # step 1 has warmed up, and these two do as well
            seconds = contender.steps(4 * count)
        name = f"{CHECK.name}, {ranks} ranks, micro-batches of {micro}: a checked step / another"
        report.compare(name, seconds[::2], seconds[1::2])  # step 4 is the first of them


def saves(report: Report, count: int) -> None:
    """Measure how long training stops for a checkpoint, if it waits for the disk and if a thread writes."""
    say(f"{SAVE.name}: checkpoints")
    with Contender(loops.rankless, SAVE.json()) as contender:
        step = statistics.median(one.wall for one in contender.steps(3))
        (found,) = contender.ask(stopped, count)
    size = found.pop("bytes")
    for way, seconds in found.items():
        report.note(
            f"save_{way}",
            {"seconds": seconds, "of_a_step": seconds / step},
            f"a checkpoint of {size / 2**20:.0f} MiB, {way}: {seconds:.2f} s, {seconds / step:.1%} of a step",
        )


def stopped(step: int, subject: Subject, times: int) -> dict[str, float]:
    """Return the bytes of a checkpoint, and the median seconds of a save and of the copy for a thread."""
    written, copied, copies = [], [], checkpoint.Copies()
    for _ in range(times + 1):
        began = time.perf_counter()
        checkpoint.save(subject.run, subject.state.snapshot(step), subject.recipe, subject.task.class_names)
        written.append(time.perf_counter() - began)
        began = time.perf_counter()
        copies.copy(subject.state.snapshot(step))
        copied.append(time.perf_counter() - began)
    size = sum(file.stat().st_size for file in subject.run.step_directory(step).iterdir())
    waits = {"training waits": statistics.median(written), "in a thread": statistics.median(copied[1:])}
    return {"bytes": size, **waits}


def say(what: str) -> None:
    """Print progress."""
    print(f"… {what}", file=sys.stderr, flush=True)


PARTS = {
    "floor": against_the_full_batch,
    "core": on_one_core,
    "processes": several_processes,
    "check": checked_steps,
    "save": saves,
}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--part", action="append", choices=list(PARTS), help="only this one; may be repeated")
    parser.add_argument("--case", action="append", help="floor and core: networks with this in their names")
    parser.add_argument("--quick", action="store_true", help="few rounds and the first network only")
    parser.add_argument(
        "--tiny", action="store_true", help="one part of a tiny network, to see that the script works"
    )
    options = parser.parse_args()
    names = [name.lower() for name in options.case or [""]]
    found = [case for case in FLOORS if any(name in case.name.lower() for name in names)]
    FLOORS[:] = found[:1] if options.quick or options.tiny else found
    CHANGES[:] = SMALL if options.tiny else ()
    report = Report(machine())
    for name in options.part or (["check"] if options.tiny else PARTS):
        PARTS[name](report, 1 if options.tiny else 4 if options.quick else 8)
    report.show()
    return 0 if report.is_met or options.tiny else 1


if __name__ == "__main__":
    raise SystemExit(main())
