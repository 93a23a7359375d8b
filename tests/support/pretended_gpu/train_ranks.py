"""Train on several ranks with pretended GPUs, and print what they did as one line of JSON per run.

    train_ranks.py '[[2, ["digits"], {"PRETENDED_GPU_CARDS": "2"}]]'

Each run is a number of ranks, a recipe with its changes, and variables of the ranks; with ``DIES``, that rank
ends after the first step. The line has one entry per rank: how it ended, its backend, its NCCL calls, and the
most memory that it has asked for.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rankless.engine.loop import train
from rankless.engine.setup import DryRun
from rankless.engine.state import TrainingState
from rankless.errors import UserError
from rankless.hardware.computing import computes_like
from rankless.hardware.precision import resolve
from rankless.launch import rank_job  # noqa: F401  # before the first fork, as all that is imported here
from rankless.recipe.load import load
from rankless.runs.directory import RunDirectory
from rankless.structures import Scores
from rankless.tasks import classify, detect  # noqa: F401
from rankless.world.process_group import is_lost_peer, join

STEPS = 2  # the second one has the gradients in the order in which they arrived


def train_as_rank(rank: int, size: int, words: list[str], folder: Path) -> dict[str, Any]:
    """Train as one of the ranks, and return how it ended."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ |= {name: str(value) for name, value in numbers.items()}
    recipe = load(words[0], ["workers=0", *words[1:]])
    try:
        with computes_like(recipe), join(folder / "meeting") as world:
            recipe = replace(recipe, precision=resolve(recipe.precision, world.device))
            run, dry_run = RunDirectory(folder / "run"), DryRun(STEPS, 0)
            (folder / "run").mkdir(exist_ok=True)
            sizes: list[int] = []
            observe = partial(_measure, sizes)
            finished = train(recipe, run, world, resume=True, dry_run=dry_run, observe=observe)
            return {
                "finished": finished,
                "backend": world.backend,
                "memory": torch.cuda.max_memory_allocated(),
                "weights": sizes[0],
            }
    except UserError as error:
        return {"problems": error.problems}
    except Exception as error:
        return {"error": traceback.format_exc(), "lost": is_lost_peer(error)}


def _measure(sizes: list[int], step: int, state: TrainingState, scores: Scores | None) -> None:
    if os.environ.get("DIES") == os.environ["RANK"]:
        os._exit(9)
    sizes.append(sum(parameter.nbytes for parameter in state.model.parameters()))


def run_ranks(size: int, words: list[str], more: dict[str, str]) -> list[dict[str, Any]]:
    """Fork the ranks, and return what each of them did."""
    with tempfile.TemporaryDirectory() as name:
        folder, children = Path(name), []
        for rank in range(size):
            if child := os.fork():
                children.append(child)
                continue
            os.environ |= {"PRETENDED_GPU_NCCL": str(folder / "nccl"), **more}
            answer = json.dumps(train_as_rank(rank, size, words, folder))
            (folder / f"ended.{rank}").write_text(answer)
            os._exit(0)
        for child in children:
            os.waitpid(child, 0)
        found = []
        for rank in range(size):
            calls = folder / f"nccl.{rank}"
            lines = calls.read_text().splitlines() if calls.exists() else []
            ended = folder / f"ended.{rank}"
            found.append({**(json.loads(ended.read_text()) if ended.exists() else {}), "calls": lines})
        return found


if __name__ == "__main__":
    for run in json.loads(sys.argv[1]):
        print(json.dumps(run_ranks(*run)), flush=True)
