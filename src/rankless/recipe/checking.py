"""Validate a recipe's values in one pass that reports all mistakes together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ArgsKwargs

from rankless.errors import UserError, nearest, one_of
from rankless.recipe.clashes import clashes
from rankless.recipe.fields import is_task, similar_task
from rankless.recipe.keys import MOST_KEYS, Flat, KeyPath, Kinds, at, flattened, leaves, nested, sections
from rankless.recipe.mistakes import not_a_section, shown, unknown_key, wrong_value
from rankless.recipe.model_kinds import ModelKeys, losses_of
from rankless.recipe.recorded import with_network
from rankless.task_kinds import BUILT_IN, DEFAULT, kind_of

Handler = Callable[[Any], Any]
"""A function that validates values with pydantic."""

NameCheck = Callable[[str, str], str | None]
"""A function that checks a task and a model's name, and returns the problem as a sentence, or None."""

_NAME = ("model", "name")


class Location(NamedTuple):
    """The file and line, or the position on the command line, where a value was written.

    Locations sort by line; those without a line come last.
    """

    line: float = math.inf
    order: int = 0
    name: str = "Recipe"

    def __str__(self) -> str:
        return self.name if self.line == math.inf else f"{self.name}:{self.line}"


@dataclass
class Source:
    """The source of a recipe's values."""

    name: str = "Recipe"
    places: dict[KeyPath, Location] = field(default_factory=dict)
    problems: list[tuple[Location, str]] = field(default_factory=list)
    check_name: NameCheck | None = None  # None skips this check

    def of(self, path: KeyPath) -> Location:
        """Return the location of a key, or of the enclosing key for a key inside a YAML alias."""
        known = (self.places[path[:n]] for n in range(len(path), -1, -1) if path[:n] in self.places)
        return next(known, Location(name=self.name))


def checked(recipe: type, given: Any, validate: Handler, source: Source | None) -> Any:
    """Return a validated instance of the class ``recipe``, with defaults for omitted keys.

    ``given`` is an instance, nested mappings of keys and values, or the arguments of the class.
    """
    if isinstance(given, recipe):
        return validate(given)
    source = source or Source()
    if isinstance(given, ArgsKwargs):
        names = (one.name for one in fields(recipe))
        given = {**dict(zip(names, given.args, strict=False)), **(given.kwargs or {})}
    if not isinstance(given, Mapping):
        raise UserError(f"{source.of(())}: {not_a_section(recipe, (), given)}")
    flat = flattened(given)
    if len(flat) > MOST_KEYS:  # each unknown key is compared with all known ones
        known = f"expected at most the {len(leaves(recipe))} known keys; remove the others"
        raise UserError(f"{source.of(())}: this recipe has more than {MOST_KEYS:,} keys; {known}")
    flat = with_network(flat)
    tree = nested(flat)
    kinds = Kinds.of(tree)
    bad = {**_wrong_task(tree), **_wrong_keys(recipe, flat, kinds, source), **_wrong_loss(tree)}
    good = {**_without(flat, bad), ("loss", "name"): kinds.loss}
    if ("task",) in bad:
        good["task",] = kinds.task  # for the checks that depend on it
    if good.get(("model", "cfg")) and kind_of(kinds.task).cfg:
        good.pop(_NAME, None)  # the cfg describes the network
    made = None
    try:
        made = validate(nested(good))
    except ValidationError:
        wrong = dict(_wrong_values(recipe, good, kinds))
        bad |= wrong
        with suppress(ValidationError):
            made = validate(nested(_without(good, wrong)))
    bad |= dict(_without_effect(recipe, flat, kinds, bad))
    problems = [*source.problems, *((source.of(path), text) for path, text in bad.items())]
    is_open = _NAME in bad or flat.get(("model", "cfg")) or (_NAME not in flat and ("task",) not in flat)
    check_name = source.check_name if not is_open else None
    if check_name and (text := check_name(kinds.task, flat.get(_NAME, ModelKeys.name))):
        problems.append((source.of(_NAME if _NAME in flat else ("task",)), text))
    for sentence, *keys in clashes(made) if made else ():
        paths = [(*key.split("."),) for key in keys]
        if not any(path in bad for path in paths):
            places = [source.of(path) for path in paths if path in flat] or [source.of(paths[0])]
            last = next((one for one in places if one.line == math.inf), places[0])  # from the command line
            problems.append((last, sentence))
    if problems:
        problems.sort(key=lambda one: one[0][:2])
        raise UserError(f"{where}: {text}" for where, text in problems)
    return made


def _without(flat: Flat, bad: Mapping[KeyPath, str]) -> Flat:
    return {
        path: value
        for path, value in flat.items()
        if not any(path[:n] in bad for n in range(1, len(path) + 1))
    }


def _wrong_keys(recipe: type, flat: Flat, kinds: Kinds, source: Source) -> dict[KeyPath, str]:
    """Return messages about unknown keys, values in place of sections, and sections in place of values."""
    any_task = kinds._replace(task="")  # keys of the other task are reported by _without_effect
    known, inner = leaves(recipe, any_task), sections(recipe, any_task)
    bad = {}
    for path, value in flat.items():
        parts = [path[:n] for n in range(1, len(path) + 1)]
        if path in inner:
            if value != {} and not (is_dataclass(value) and vars(value).keys() <= {*inner[path]}):
                bad[path] = not_a_section(recipe, path, value)
        elif key := next((part for part in parts if part in known), None):
            if key != path:
                bad[key] = wrong_value(known[key], {"": value})
        else:  # the user may have written only the outer part
            written = (part for part in parts if part in source.places and part not in sections(recipe))
            key = next(written, path)
            bad[key] = unknown_key(recipe, key, kinds, str(flat.get(_NAME, ModelKeys.name)))
    return bad


def _wrong_task(tree: Mapping[str, Any]) -> dict[KeyPath, str]:
    task = tree.get("task", DEFAULT)
    if not isinstance(task, str) or not task or is_task(task):
        return {}
    built_in = ", ".join(map(repr, BUILT_IN))
    hint = f"; did you mean '{near}'?" if (near := similar_task(task)) else ""
    expected = f"expected {built_in}, 'package.module:Class' or 'file.py:Class'{hint}"
    return {("task",): f"'task' is {shown(task)}: {expected}"}


def _wrong_loss(tree: Mapping[str, Any]) -> dict[KeyPath, str]:
    name, names = at(tree, ("loss", "name"), "auto"), ["auto", *losses_of(at(tree, ("model",), {}))]
    if name in names:
        return {}
    what = f"'loss.name' is {shown(name)}: expected {one_of(names)} for the model"
    return {("loss", "name"): f"{what} '{at(tree, _NAME, ModelKeys.name)}'{nearest(str(name), names)}"}


def _wrong_values(recipe: type, flat: Flat, kinds: Kinds) -> Iterator[tuple[KeyPath, str]]:
    """Yield the path of each value of a wrong type or out of range, with a message."""
    known = leaves(recipe, kinds._replace(task=""))
    for path, value in flat.items():
        try:
            if path in known:
                known[path].values.validate_python(value)
        except ValidationError as error:
            if (wrong := error.errors()[0])["type"] == "expected":
                yield path, f"'{'.'.join(path)}' is {shown(value)}: {wrong['msg']}"
            else:
                yield path, wrong_value(known[path], value, flat.get(("model", "image_size")))


def _without_effect(
    recipe: type, flat: Flat, kinds: Kinds, bad: Mapping[KeyPath, str]
) -> Iterator[tuple[KeyPath, str]]:
    """Yield the path of each given key that other keys make ineffective, with a message."""
    known = leaves(recipe, kinds._replace(task=""))
    for path, value in flat.items():
        for only in known[path].conditions if path in known else ():
            other = (*only.key.split("."),)
            if only.key == "task":
                if kinds.task in BUILT_IN and kinds.task not in only.values:
                    yield path, unknown_key(recipe, path, kinds, "")
            elif value not in (known[path].default, "auto") and path not in bad and other not in bad:
                actual = flat.get(other, known[other].default)
                if actual not in only.values:
                    needed = " or ".join(map(repr, only.values))
                    dotted = ".".join(path)
                    text = f"'{dotted}' is {shown(value)}, but '{only.key}' is {shown(actual)}"
                    yield path, f"{text}; '{dotted}' has an effect only with {needed}; remove it"
