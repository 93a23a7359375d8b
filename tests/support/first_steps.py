"""The digests of the first steps of a training, for tests that compare them between ranks."""

from __future__ import annotations

from pathlib import Path

from rankless.engine import loop
from rankless.engine.evaluate import fingerprint
from rankless.engine.setup import DryRun
from rankless.engine.state import TrainingState
from rankless.hardware.computing import computes_like
from rankless.recipe.schema import Recipe
from rankless.runs.directory import RunDirectory
from rankless.structures import Scores
from rankless.world.process_group import World


def digests_of_steps(recipe: Recipe, folder: str, world: World, steps: int) -> list[str]:
    """Train some steps; the digest of every tensor after each of them."""
    found: list[str] = []

    def observe(step: int, state: TrainingState, scores: Scores | None) -> None:
        found.append(fingerprint(dict(state.tensors())))

    with computes_like(recipe):
        run, dry_run = RunDirectory(Path(folder)), DryRun(steps, images=2)
        loop.train(recipe, run, world, resume=False, dry_run=dry_run, observe=observe)
        world.barrier()
    return found
