"""Measure how long training stops for a checkpoint, if it waits for the save and if a thread writes it.

    python benchmarks/saving.py [--model NAME] [--rounds N] [KEY=VALUE …]

One process of one thread trains and saves after every second step, in turn in both ways, so the ratios count
even if other work shares the machine. Two steps run during each save in a thread; the script also prints how
much slower they are.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import ClassVar

os.environ["RANKLESS_CPU"] = "1"

from loops import Ready
from rankless.engine import loop
from rankless.engine.saver import Saver
from rankless.hardware.computing import computes_like
from rankless.recipe.load import load
from rankless.runs import journal
from rankless.runs.directory import RunDirectory
from rankless.tasks import open_task
from rankless.world.process_group import join

WAITED, THREAD = "waited for", "in a thread"
KEYS = ("data.val_images=8", "ema.decay=0.999", "evaluate.every=0", "checkpoint.every=2", "checkpoint.keep=1")
SIZES = ("model.width=1", "model.image_size=416", "batch.images=8", "batch.micro=4", "precision=bf16")


def kind(step: int) -> str:
    """Return how the checkpoint after ``step`` is saved."""
    return WAITED if step % 4 else THREAD


class Measured(Saver):
    """Measures how long each kind of save stops the training.

    Attributes:
        stood: seconds by kind.
    """

    stood: ClassVar[dict[str, list[float]]] = defaultdict(list)

    def save(self, step: int, *, required: bool) -> None:
        """See :meth:`Saver.save`."""
        began = time.perf_counter()
        super().save(step, required=kind(step) == WAITED)
        self.stood[kind(step)].append(time.perf_counter() - began)


def main() -> None:
    """Train, and print the cost of the saves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="yolov4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("changes", nargs="*")
    options = parser.parse_args()
    words = [f"model.name={options.model}", *KEYS, *SIZES, *options.changes]
    images = load("digits", words).batch.images * 4 * options.rounds
    recipe = load("digits", [*words, f"data.train_images={images}", "epochs=1"])
    loop.Saver = Measured  # type: ignore[misc, attr-defined]
    with tempfile.TemporaryDirectory(prefix="rankless-saving-", dir=".") as scratch:
        run = RunDirectory(Path(scratch) / "run")
        with computes_like(recipe), join() as world:
            loop.train(recipe, run, world, resume=False, task=Ready(open_task(recipe), recipe))
        seconds = {e["step"]: e["timing"]["seconds"] for e in journal.read(run.journal) if "step" in e}
        weight = sum(file.stat().st_size for file in next(run.checkpoints.glob("step-*")).iterdir())
    free = statistics.median([took for step, took in seconds.items() if step > 2 and step % 4 in (3, 0)])
    busy = statistics.median([took for step, took in seconds.items() if step > 4 and step % 4 in (1, 2)])
    print(
        f"a checkpoint of {weight / 2**20:.0f} MiB; a step of {recipe.batch.images} images takes {free:.2f} s"
    )
    for way, stood in Measured.stood.items():
        took = statistics.median(stood)
        print(f"{way:<12} {took:6.2f} s, {took / free:6.1%} of a step")
    print(f"a step beside a save {busy / free:.2f} of a step without one")


if __name__ == "__main__":
    main()
