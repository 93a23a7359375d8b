"""How many loader processes ``workers: auto`` is: by rules, and in real runs, whose numbers stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rankless.engine import workers
from rankless.engine.sinks import terminal
from rankless.engine.workers import loader_processes, of_rank
from rankless.models.checkpoints.weights import digest_file
from rankless.recipe.load import default, load
from rankless.runs.directory import RunDirectory
from rankless.world.process_group import World
from small_task import train


@pytest.mark.parametrize(
    ("cores", "ranks", "kind", "words", "count"),
    [
        (2, 2, "cpu", [], 0),  # the ranks take all cores
        (2, 1, "cpu", [], 1),
        (16, 1, "cpu", [], 8),
        (16, 4, "cpu", [], 3),
        (16, 4, "cpu", ["threads=4"], 0),
        (4, 1, "cpu", ["data.root=digits"], 0),  # small scenes on a small machine
        (32, 1, "cpu", ["data.root=digits"], 8),
        (16, 1, "cuda", [], 8),
        (16, 4, "cuda", [], 3),
        (4, 8, "cuda", [], 1),  # a GPU always has someone to load for it
        (1, 1, "cuda", ["data.root=digits"], 1),
        (4, 1, "cpu", ["data.root=digits", "task=mine:Task"], 3),  # whose data is its own
        (64, 1, "cuda", ["workers=0"], 0),  # what the recipe says is what happens
        (1, 8, "cpu", ["workers=3"], 3),
    ],
)
def test_it_follows_from_cores_and_ranks(
    cores: int, ranks: int, kind: str, words: list[str], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "usable_cores", lambda: cores)
    assert loader_processes(default(["data.root=mine", *words]), ranks, kind) == count


def test_in_a_process_of_the_callers_there_are_none_unless_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "usable_cores", lambda: 64)
    world = World(0, 1, torch.device("cpu"), inline=True)
    assert of_rank(default(["data.root=mine"]), world) == 0
    assert of_rank(default(["data.root=mine", "workers=2"]), world) == 2


def trained(world: World, words: list[str], cores: int, folder: str) -> list[Any]:
    said: list[str] = []
    terminal.Terminal._print = lambda self, sentence: said.append(sentence)  # type: ignore[method-assign]
    workers.usable_cores = lambda: cores  # type: ignore[assignment]
    train(world, None, load(words[0], words[1:]), folder)
    run = RunDirectory(Path(folder))
    return [said[0], digest_file(run.step_directory(run.pointed("last") or 0) / "model.safetensors")]


@pytest.mark.processes
def test_no_number_depends_on_it_and_the_first_line_says_it(
    ranks: Any, small_recipe: str, tmp_path: Path
) -> None:
    words = [small_recipe, "batch.images=12", "batch.micro=4", "epochs=1"]
    (alone,) = ranks(1, trained, words, 1, str(tmp_path / "one"))
    (helped,) = ranks(1, trained, words, 3, str(tmp_path / "three"))
    assert alone[0].endswith("on 1 process, fp32, workers: 0 (auto)")
    assert helped[0].endswith("on 1 process, fp32, workers: 2 (auto)")
    assert alone[1] == helped[1]
    (named,) = ranks(1, trained, [*words, "workers=1"], 1, str(tmp_path / "named"))
    assert named == [named[0], alone[1]] and named[0].endswith("fp32, workers: 1")
