"""How many loader processes ``workers: auto`` is."""

from __future__ import annotations

import pytest
import torch

from rankless.engine.loader_count import loader_processes, of_rank
from rankless.recipe.load import default
from rankless.world.process_group import World


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
    cores: int, ranks: int, kind: str, words: list[str], count: int
) -> None:
    assert loader_processes(default(["data.root=mine", *words]), ranks, kind, cores) == count


def test_in_a_process_of_the_callers_there_are_none_unless_named() -> None:
    here, elsewhere = (World(0, 1, torch.device("cuda"), inline=inline) for inline in (True, False))
    assert of_rank(default(["data.root=mine"]), here) == 0 < of_rank(default(["data.root=mine"]), elsewhere)
    assert of_rank(default(["data.root=mine", "workers=2"]), here) == 2
