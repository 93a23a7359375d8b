"""The number of loader processes per rank. It does not affect any results."""

from __future__ import annotations

from rankless.data.builtin import is_built_in
from rankless.hardware.cores import usable_cores
from rankless.recipe.schema import Recipe
from rankless.task_kinds import BUILT_IN
from rankless.world.process_group import World

_MOST = 8  # per rank, because more processes rarely help and each uses memory
_SMALL = 8  # cores


def of_rank(recipe: Recipe, world: World) -> int:
    """Return a rank's number of loader processes. With ``auto``, a rank in the caller's process has none."""
    if world.inline and recipe.workers == "auto":
        return 0
    return loader_processes(recipe, world.local_size, world.device.type)


def loader_processes(recipe: Recipe, ranks: int, kind: str, cores: int | None = None) -> int:
    """Return the recipe's ``workers`` or, for ``auto``, a number that depends on the cores of this machine.

    The ``ranks`` on this machine share its ``cores``, by default those that this process may use. A rank with
    a GPU (``kind`` is ``cuda``) gets at least one loader process. A rank on the CPU keeps ``threads`` cores
    for itself.
    """
    if recipe.workers != "auto":
        return recipe.workers
    cores = usable_cores() if cores is None else cores
    if kind != "cpu":
        return min(max((cores - ranks) // ranks, 1), _MOST)
    # A custom task has its own data, although its recipe still names the built-in data set.
    if recipe.task in BUILT_IN and is_built_in(recipe.data.root) and cores <= _SMALL:
        return 0
    return min(max((cores - ranks * recipe.threads) // ranks, 0), _MOST)
