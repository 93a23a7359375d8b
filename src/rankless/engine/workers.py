"""The number of loader processes per rank if the recipe leaves it open; no result depends on it."""

from __future__ import annotations

from rankless.hardware.cores import usable_cores
from rankless.recipe.schema import Recipe
from rankless.tasks.custom import BUILT_IN
from rankless.world.process_group import World

_MOST = 8  # of a rank: more seldom bring more, and each takes memory
_SMALL = 8  # cores
_BUILT_IN = "digits"


def of_rank(recipe: Recipe, world: World) -> int:
    """Return how many a rank starts; in a process of the caller's only those that the recipe names."""
    if world.inline and recipe.workers == "auto":
        return 0
    return loader_processes(recipe, world.local_size, world.device.type)


def loader_processes(recipe: Recipe, ranks: int, kind: str) -> int:
    """Return the recipe's ``workers``, or the number that the free cores allow.

    Args:
        recipe: the recipe.
        ranks: of this machine, which share its cores.
        kind: of their devices, ``cpu`` or ``cuda``. A GPU always has someone to load for it; on a CPU the
            ranks themselves take ``threads`` cores each.
    """
    if recipe.workers != "auto":
        return recipe.workers
    cores = usable_cores()
    if kind != "cpu":
        return min(max((cores - ranks) // ranks, 1), _MOST)
    # A task of the user's has data of its own; its recipe still names the built-in ones.
    if recipe.task in BUILT_IN and recipe.data.root == _BUILT_IN and cores <= _SMALL:
        return 0
    return min(max((cores - ranks * recipe.threads) // ranks, 0), _MOST)
