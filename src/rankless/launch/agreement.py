"""Make the ranks that a cluster's launcher has started agree on errors and recipes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from rankless import __version__
from rankless.engine.environment import by_rank, rank_list
from rankless.errors import TaskError, UserError, printable
from rankless.recipe.load import differences, from_json, to_json
from rankless.recipe.schema import Recipe
from rankless.world.process_group import World

_MAY_DIFFER = "data.root"  # the data itself is compared later
_T = TypeVar("_T")


def on_all(world: World, work: Callable[[], _T]) -> _T:
    """Run ``work`` on every rank and return its result; if any rank fails, raise its error on all ranks."""
    done, error = _attempt(work)
    gathered = world.gather([error.exit_code, list(error.problems)] if error else None)
    _raise_everywhere(world, _merged(gathered) if gathered is not None else None)
    return cast(_T, done)


def on_first(world: World, work: Callable[[], _T]) -> _T | None:
    """Run ``work`` on rank 0 and return its result there; if it fails, raise its error on all ranks."""
    done, error = _attempt(work) if world.is_first else (None, None)
    _raise_everywhere(world, (error.exit_code, list(error.problems)) if error else None)
    return done


def _attempt(work: Callable[[], _T]) -> tuple[_T | None, UserError | None]:
    try:
        return work(), None
    except UserError as error:
        return None, error


def _raise_everywhere(world: World, error: tuple[int, list[str]] | None) -> None:
    if found := world.broadcast(error):
        code, problems = found
        raise (TaskError if code == TaskError.exit_code else UserError)(problems)


def _merged(errors: Sequence[tuple[int, list[str]] | None]) -> tuple[int, list[str]] | None:
    ranks: dict[str, list[int]] = {}
    for rank, error in enumerate(errors):
        for problem in error[1] if error else ():
            ranks.setdefault(problem, []).append(rank)
    if not ranks:
        return None
    everywhere = len(errors)
    problems = [
        text if len(who) == everywhere else f"{rank_list(who)}: {text}" for text, who in ranks.items()
    ]
    return max(error[0] for error in errors if error), problems


def refuse_other_recipes(world: World, recipe: Recipe) -> None:
    """Raise a UserError on every rank if the ranks have different recipes or versions of Rankless."""
    gathered = world.gather([__version__, to_json(recipe)])
    problems = _differing(gathered) if gathered is not None else []
    _raise_everywhere(world, (UserError.exit_code, problems) if problems else None)


def _differing(gathered: Sequence[tuple[str, str]]) -> list[str]:
    versions = [version for version, _ in gathered]
    if len(set(versions)) > 1:
        return [f"the ranks have different versions of rankless: {by_rank(versions)}; use the same version"]
    texts = [text for _, text in gathered]
    recipes = {text: from_json(text) for text in dict.fromkeys(texts)}
    first = recipes[texts[0]]
    found: dict[str, dict[str, object]] = {}  # key -> recipe -> value
    for text, other in recipes.items():
        for key, ours, theirs in differences(first, other):
            found.setdefault(key, dict.fromkeys(recipes, ours))[text] = theirs
    found.pop(_MAY_DIFFER, None)
    problems = []
    for key, by_recipe in found.items():
        values = [printable(json.dumps(by_recipe[text], ensure_ascii=False)) for text in texts]
        problems.append(
            f"{key}: differs between the ranks: {by_rank(values)}; use the same recipe on all ranks"
        )
    return problems
