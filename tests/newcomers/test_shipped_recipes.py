"""Every shipped recipe runs with a data set and nothing else: a real step of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rankless.engine import loop
from rankless.engine.schedule import StepSchedule
from rankless.engine.setup import DryRun
from rankless.hardware.computing import computes_like
from rankless.models.weights_files import weights
from rankless.recipe.installed import shipped
from rankless.recipe.load import load
from rankless.runs import journal
from rankless.runs.directory import RunDirectory
from rankless.tasks import open_task, resolve_recipe
from rankless.world.process_group import World

pytestmark = pytest.mark.processes

# What a CPU takes a step of in a second, and the least that published multi-scale has another size for; batch
# norm needs two values of each channel.
SMALL = ["batch.images=2", "batch.micro=2", "model.image_size=96", "precision=fp32", "workers=0"]
NARROW = ["model.width=0.1"]
QUERIES = {"rtdetr": "model.image_size=160", "dfine": "model.image_size=256"}  # with cells for 300 queries


@pytest.fixture(scope="module")
def roots(
    tmp_path_factory: pytest.TempPathFactory, boxes: Callable[..., Path], folders: Callable[..., Path]
) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("data")
    return {"detect": boxes(folder / "boxes", 6, 2), "classify": folders(folder / "classes", 12)}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of a small detector of other classes."""
    recipe = load("digits", ["model.width=0.1", "model.image_size=64"])
    path = tmp_path_factory.mktemp("weights") / "w.safetensors"
    task = open_task(recipe)
    weights.save(path, task.model().state_dict(), recipe=recipe, class_names=task.class_names)
    return path


def step(world: World, name: str, given: list[str], folder: str) -> list[float]:
    recipe, run = load(name, given), RunDirectory(Path(folder))
    with computes_like(recipe):
        loop.train(recipe, run, world, resume=False, dry_run=DryRun(steps=1, images=2))
    return [entry["loss"] for entry in journal.numbers(run.journal) if "step" in entry]


@pytest.mark.parametrize(
    ("name", "has_data"),
    [*((name, True) for name in sorted(shipped())), ("digits", False), ("digits-classify", False)],
)
def test_it_runs_with_a_data_set_and_nothing_else(ranks, name, has_data, roots, pretrained, tmp_path):
    """Recipes of the built-in data need not even that."""
    if name in QUERIES:
        pytest.importorskip("transformers")
    given = [f"data.root={roots[load(name).task]}"] * has_data
    if name == "fine-tune":
        given.append(f"model.pretrained={pretrained}")
    recipe = resolve_recipe(load(name, given))  # at its full size: what the launcher checks
    assert has_data or recipe == load(name)
    data = open_task(recipe).training_data()
    assert StepSchedule(recipe, len(data)).steps >= 1
    assert data.item(0, 0).image.shape[0] == 3
    narrow = NARROW if recipe.task == "detect" and name != "fine-tune" else []
    narrow = [QUERIES[name]] if name in QUERIES else narrow
    ((loss,),) = ranks(1, step, name, [*given, *SMALL, *narrow], str(tmp_path / "run"))
    assert 0 < loss < 1000
