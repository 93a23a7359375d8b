"""Print what one training step costs the host of a pretended GPU, as one line of JSON per recipe.

    step_costs.py '[["digits"], ["digits", "precision=fp16"]]'

Each recipe is trained for a few steps in a process of its own, which is forked, because importing PyTorch
takes longer than the steps. Host waits and copies of pageable memory are listed by the innermost line of
Rankless, with the line of another library than PyTorch that it called.
"""

from __future__ import annotations

import collections
import ctypes
import json
import os
import sys
import tempfile
import traceback
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from rankless.engine.loop import train
from rankless.engine.state import TrainingState
from rankless.hardware.computing import computes_like
from rankless.hardware.precision import resolve
from rankless.launch import rank_job  # noqa: F401  # before the first fork, as all that is imported here
from rankless.recipe.load import load
from rankless.recipe.schema import Recipe
from rankless.runs.directory import RunDirectory
from rankless.structures import Scores
from rankless.tasks import classify, detect  # noqa: F401
from rankless.world.process_group import join

ENDLESS = ("epochs=1000000", "evaluate.every=0", "checkpoint.every=100000000", "workers=0")
COUNTED = 3  # the step to count; the first ones allocate memory and order the gradients
NAMES = ("launches", "pinned", "pageable", "waits", "compiled")
RUNTIME = ctypes.CDLL(os.environ["LD_PRELOAD"])
Observe = ctypes.CFUNCTYPE(None, ctypes.c_int)


class Places:
    """Counts events by the line of code that caused them."""

    def __init__(self) -> None:
        self.found: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        self._observe = Observe(self._event)  # must be kept alive
        RUNTIME.pretended_observe(self._observe)

    def _event(self, number: int) -> None:
        self.found[NAMES[number]][_place(sys._getframe(1))] += 1


def _place(frame: FrameType | None) -> str:
    library = ""
    while frame:
        parts = Path(frame.f_code.co_filename).parts
        if "site-packages" in parts:
            inside = parts[parts.index("site-packages") + 1 :]
            if not library and inside[0] != "torch":
                library = f" <- {'/'.join(inside)}:{frame.f_lineno}"
        elif "rankless" in parts:
            inside = parts[len(parts) - parts[::-1].index("rankless") :]
            return f"{'/'.join(inside)}:{frame.f_code.co_name}{library}"
        frame = frame.f_back
    return f"elsewhere{library}"


def counts() -> dict[str, int]:
    """Return how often this process has done each thing."""
    values = (ctypes.c_long * len(NAMES))()
    RUNTIME.pretended_counts(values)
    return dict(zip(NAMES, values, strict=True))


class Observer:
    """Prints the counts of one step, and ends the process."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.places = recipe, Places()
        self.before = counts()

    def __call__(self, step: int, state: TrainingState, scores: Scores | None) -> None:
        done = {name: value - self.before[name] for name, value in counts().items()}
        if step == COUNTED:
            print(json.dumps(self._entry(state, done)), flush=True)
            os._exit(0)
        self.places.found.clear()
        torch.cuda.reset_peak_memory_stats()
        self.before = counts()

    def _entry(self, state: TrainingState, done: dict[str, int]) -> dict[str, Any]:
        return {
            "launches": done["launches"] / self.recipe.batch.micro_batches,
            "memory": torch.cuda.max_memory_allocated(),
            "weights": sum(p.nbytes for p in state.model.parameters()),
            **{name: dict(self.places.found[name]) for name in NAMES[2:]},
        }


def count(words: list[str]) -> None:
    """Train a few steps, print the counts of the last one, and end the process."""
    recipe = load(words[0], [*ENDLESS, *words[1:]])
    with ExitStack() as stack:
        stack.enter_context(computes_like(recipe))
        world = stack.enter_context(join(inline=True))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        recipe = replace(recipe, precision=resolve(recipe.precision, world.device))
        train(recipe, RunDirectory(Path(folder)), world, resume=False, observe=Observer(recipe))


if __name__ == "__main__":
    for words in json.loads(sys.argv[1]):
        if child := os.fork():
            os.waitpid(child, 0)
            continue
        try:
            count(words)
        except BaseException:
            print(json.dumps({"error": traceback.format_exc()}), flush=True)
        os._exit(1)
