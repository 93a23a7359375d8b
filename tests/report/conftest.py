"""Runs to report on: a real one on two ranks, and journals written line by line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rankless.engine import loop
from rankless.hardware.computing import computes_like
from rankless.recipe.load import dump, load
from rankless.runs.directory import RunDirectory
from rankless.world.process_group import World

WORDS = ["epochs=4", "batch.images=8", "batch.micro=2", "evaluate.every=4", "workers=0", "optim.lr=0.005"]


def train(world: World, words: list[str], folder: str) -> bool:
    """Train as one rank; the launcher writes the recipe first."""
    recipe, run = load(words[0], words[1:]), RunDirectory(Path(folder))
    if world.is_first:
        run.path.mkdir(parents=True)
        run.recipe.write_text(dump(recipe))
    world.barrier()
    with computes_like(recipe):
        return loop.train(recipe, run, world, resume=False)


@pytest.fixture(scope="session")
def trained(ranks: Any, small_recipe: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of eleven steps and three evaluations; not to be changed."""
    folder = tmp_path_factory.mktemp("reported") / "shapes"
    assert ranks(2, train, [small_recipe, *WORDS], str(folder)) == [True, True]
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of it, without weights, to be changed."""
    folder = tmp_path / "copied"
    shutil.copytree(trained, folder, ignore=shutil.ignore_patterns("checkpoints", "*.safetensors"))
    return folder
