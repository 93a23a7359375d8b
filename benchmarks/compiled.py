"""Compare the CPU times of compiled and eager training steps, and measure that of the compilation.

    python benchmarks/compiled.py                  # digits, yolov4-tiny and resnet18; 10 to 20 minutes of CPU
    python benchmarks/compiled.py digits precision=fp32

One process with one thread trains the same micro-batches in both ways, in turns. CPU times, unlike durations,
barely depend on other programs. They include the C++ compiler.
"""

from __future__ import annotations

import argparse
import resource
import statistics
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from rankless.data.loader import MicroBatches
from rankless.engine.loop import update
from rankless.engine.schedule import StepSchedule, set_rate
from rankless.engine.state import TrainingState
from rankless.engine.totals import Flags
from rankless.hardware.computing import computes_like
from rankless.hardware.precision import resolve
from rankless.recipe.load import load
from rankless.recipe.schema import Recipe
from rankless.tasks import open_task, resolve_recipe
from rankless.world.process_group import World

COMMON = ["data.root=digits", "data.format=auto", "data.train=train", "data.val=val", "batch.images=16",
          "batch.micro=8", "workers=0"]  # fmt: skip
DETECTOR = ["data.train_images=64", "data.val_images=4", "data.multi_scale=0", "model.image_size=224"]
CASES = {"digits": DETECTOR, "yolov4-tiny": DETECTOR, "resnet18": ["model.image_size=64"]}
STEPS = 10


def seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(one.ru_utime + one.ru_stime for one in map(resource.getrusage, who))


class Steps:
    """Training steps that compute all micro-batches of a step in this process."""

    def __init__(self, recipe: Recipe) -> None:
        task = open_task(recipe)
        data: Any = task.training_data()
        self.state = TrainingState(task, recipe, World(0, 1, torch.device("cpu"), 0), len(data))
        set_rate(self.state.optimizer, 0.0)
        lines = StepSchedule(recipe, len(data)).lines(0, range(recipe.batch.micro_batches))
        self.batches: Iterator[Any] = iter(MicroBatches(data, task.collate, lines, workers=0))
        self.done = 0

    def run(self) -> float:
        """Return the CPU time of a step, without reading its images."""
        drawn = [next(self.batches) for _ in range(self.state.recipe.batch.micro_batches)]
        began = seconds()
        self.state.begin(self.done)
        update(self.state, self.done, self.state.compute(self.done, iter(drawn), Flags()))
        self.done += 1
        return seconds() - began


def main() -> None:
    """Print a line per recipe."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="names of recipes (default: three), and KEY=VALUE for each")
    words = parser.parse_args().words
    changes = [word for word in words if "=" in word]
    names = [word for word in words if word not in changes] or list(CASES)
    print(f"{'CPU seconds':14}{'precision':>10}{'compiling':>10}{'compiled':>10}{'eager':>8}{'ratio':>7}")
    for name in names:
        recipe = resolve_recipe(load(name, [*COMMON, *CASES.get(name, []), *changes]))
        recipe = replace(recipe, precision=resolve(recipe.precision, torch.device("cpu")))
        with computes_like(recipe):
            eager, compiled = (Steps(replace(recipe, compute=how)) for how in ("eager", "compiled"))
            eager.run()
            first = compiled.run()
            pairs = [(compiled.run(), eager.run()) for _ in range(STEPS)]
        fast, slow = (statistics.median(one) for one in zip(*pairs, strict=True))
        print(
            f"{name:14}{recipe.precision:>10}{first - fast:10.0f}{fast:10.3f}{slow:8.3f}{slow / fast:7.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
