"""What the ranks of a cluster's launcher must agree on before they train: each was started by itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from rankless import __version__
from rankless.errors import TaskError, UserError, printable
from rankless.recipe.load import differences, from_json, to_json
from rankless.recipe.schema import Recipe
from rankless.world.process_group import World

_OWN = "data.root"  # may lie elsewhere on each machine; the data itself is compared later
_T = TypeVar("_T")


def together(world: World, work: Callable[[], _T]) -> _T:
    """Do something on every rank; an error of one is an error of all.

    Args:
        world: the ranks; all call this.
        work: for this rank.

    Returns:
        What it returned.

    Raises:
        UserError: on every rank the same one, naming the ranks where only some met it.
    """
    done, error = _tried(work)
    gathered = world.gather([error.exit_code, list(error.problems)] if error else None)
    _raise_everywhere(world, _merged(gathered) if gathered is not None else None)
    return cast(_T, done)


def on_first(world: World, work: Callable[[], _T]) -> _T | None:
    """Do something on rank 0, whose error is an error of all.

    Args:
        world: the ranks; all call this.
        work: for rank 0.

    Returns:
        On rank 0 what it returned, None on the others.

    Raises:
        UserError: on every rank the same one.
    """
    done, error = _tried(work) if world.is_first else (None, None)
    _raise_everywhere(world, (error.exit_code, list(error.problems)) if error else None)
    return done


def _tried(work: Callable[[], _T]) -> tuple[_T | None, UserError | None]:
    try:
        return work(), None
    except UserError as error:
        return None, error


def _raise_everywhere(world: World, error: tuple[int, list[str]] | None) -> None:
    """Raise rank 0's error, if it has one, on every rank."""
    if found := world.broadcast(error):
        code, problems = found
        raise (TaskError if code == TaskError.exit_code else UserError)(problems)


def _merged(errors: Sequence[tuple[int, list[str]] | None]) -> tuple[int, list[str]] | None:
    """The problems of all ranks, each once; None without one."""
    ranks: dict[str, list[int]] = {}
    for rank, error in enumerate(errors):
        for problem in error[1] if error else ():
            ranks.setdefault(problem, []).append(rank)
    if not ranks:
        return None
    everywhere = len(errors)
    problems = [text if len(who) == everywhere else f"{_named(who)}: {text}" for text, who in ranks.items()]
    return max(error[0] for error in errors if error), problems


def refuse_other_recipes(world: World, recipe: Recipe) -> None:
    """Compare the ranks' recipes, which every rank has read by itself.

    Args:
        world: the ranks; all call this.
        recipe: this rank's, resolved.

    Raises:
        UserError: on every rank, where they differ: every key with its values.
    """
    gathered = world.gather([__version__, to_json(recipe)])
    problems = _differing(gathered) if gathered is not None else []
    _raise_everywhere(world, (UserError.exit_code, problems) if problems else None)


def _differing(gathered: Sequence[tuple[str, str]]) -> list[str]:
    versions = [version for version, _ in gathered]
    if len(set(versions)) > 1:
        return [f"the ranks differ in the version of rankless: {_by_value(versions)}; install the same one"]
    texts = [text for _, text in gathered]
    recipes = {text: from_json(text) for text in dict.fromkeys(texts)}
    first = recipes[texts[0]]
    keys: dict[str, None] = {}
    for other in recipes.values():
        keys |= {key: None for key, _, _ in differences(first, other) if key != _OWN}
    problems = []
    for key in keys:
        shown = {text: _value(other, key) for text, other in recipes.items()}
        values = [printable(shown[text]) for text in texts]
        problems.append(f"{key}: differs between the ranks: {_by_value(values)}; give all of them one recipe")
    return problems


def _value(recipe: Recipe, key: str) -> str:
    """The value of a key, as JSON."""
    found: object = json.loads(to_json(recipe))
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return json.dumps(found, ensure_ascii=False)


def _by_value(values: Sequence[str]) -> str:
    """``0.1 on rank 0, 0.2 on ranks 1, 2 and 3 more``."""
    return ", ".join(
        f"{value} on {_named([rank for rank, other in enumerate(values) if other == value])}"
        for value in dict.fromkeys(values)
    )


def _named(ranks: Sequence[int]) -> str:
    """``rank 1``, or ``ranks 1, 2, 3 and 5 more``."""
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:4]))}{more}"
