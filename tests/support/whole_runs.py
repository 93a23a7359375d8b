"""Whole runs on ranks: how each ended, and what it leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankless.engine import loop
from rankless.engine.evaluate import fingerprint
from rankless.engine.state import TrainingState
from rankless.errors import UserError
from rankless.hardware.computing import computes_like
from rankless.models.weights_files.weights import digest_file
from rankless.recipe.load import load
from rankless.runs import journal
from rankless.runs.directory import RunDirectory
from rankless.structures import Scores
from rankless.world.process_group import World


def work(world: World, words: list[str], folder: str, resume: bool = False, stop_after: int = 0) -> list[str]:
    """Train; the last rank is asked to stop after a step.

    Returns:
        "True" and the digest of every tensor on this rank, "False" after a request to stop, or "refused" and
        the problems.
    """
    recipe = load(words[0], words[1:])
    stop = loop.StopRequest()
    states: list[TrainingState] = []

    def observe(step: int, state: TrainingState, scores: Scores | None) -> None:
        states[:] = [state]
        if step == stop_after and world.rank == world.size - 1:
            stop.signal = 15

    with computes_like(recipe):
        try:
            run = RunDirectory(Path(folder))
            finished = loop.train(recipe, run, world, resume=resume, stop=stop, observe=observe)
        except UserError as error:
            return ["refused", *error.problems]
        world.barrier()
    return [str(finished), *(fingerprint(dict(state.tensors())) for state in states if finished)]


def outcome(run: RunDirectory) -> tuple[int | None, list[str], list[dict[str, Any]]]:
    """The step of the last checkpoint, the SHA-256 of each of its files, and the journal's numbers."""
    last = run.pointed("last")
    place = run.step_directory(last or 0)
    digests = [digest_file(place / f"{name}.safetensors") for name in ("model", "ema", "training")]
    return last, digests, journal.numbers(run.journal)
