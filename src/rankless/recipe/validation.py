"""Turn what a user wrote into a :class:`~rankless.recipe.schema.Recipe`, or report all problems at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from rankless.errors import UserError, nearest, one_of
from rankless.recipe.familiar import BATCH, SECTIONS, imported, key_of_file
from rankless.recipe.keys import (
    KeyPath,
    Kinds,
    adapter,
    instead_of,
    leaves,
    mistake,
    no_effect,
    sections,
    shown,
)
from rankless.recipe.kinds import losses_of
from rankless.recipe.model_kinds import Model
from rankless.recipe.schema import Recipe

COMMAND_LINE = "command line"
"""The name of the location of what the command line gives."""

NameCheck = Callable[[str, str], str | None]
"""What is wrong with a model's name for a task, as a sentence; None if nothing is."""

_NAME, _CFG = ("model", "name"), ("model", "cfg")
_MOST_KEYS = 1000
SHORTHANDS = {
    ("data", "augment"): "preset",
    ("model", "involution"): "kernel",
    ("model", "densenet", "separable"): "dilation",
}
"""Sections that may be given as the value of one of their keys."""
# Rankless 0.1 wrote the keys of all kinds into every recipe; no later version writes these into one.
_OF_0_1 = {
    ("model", "anchors"),
    ("model", "dfl"),
    ("loss", "assign"),
    ("loss", "class_weights"),
    ("threads",),
}
_RECORDED_BY_0_1 = (
    "this recipe was recorded by rankless 0.1, whose runs and weights this version does not read; "
    "expected a recipe of this version; train again, or use rankless 0.1"
)
# Before durations had units, a recipe was recorded with bare numbers in all of these; the last three meant
# epochs.
_DURATIONS: tuple[KeyPath, ...] = (
    ("schedule", "warmup"),
    ("evaluate", "every"),
    ("model", "freeze"),
    ("data", "augment", "close_mosaic"),
)
# Before the second of these was a key, mosaics dropped boxes with less than a quarter of their area.
_MOSAIC, _MIN_AREA = ("data", "augment", "mosaic"), ("data", "augment", "mosaic_min_area")
_FORMER_MIN_AREA = 0.25
# What was recorded has all of these; nobody writes them all.
_RECORDED = {("threads",), ("reduce",), ("seed",), ("checkpoint", "keep"), ("ema", "decay"), *_DURATIONS}


class OldRecipeError(UserError):
    """The recipe was recorded by a version whose recipes this version does not read."""


@dataclass(frozen=True)
class Location:
    """Where something was written: a file (and its line, from 1), or the command line."""

    name: str
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.name}:{self.line}" if self.line else self.name


@dataclass(frozen=True)
class Problem:
    """What is wrong at one location, in a sentence."""

    location: Location
    sentence: str

    def __str__(self) -> str:
        return f"{self.location}: {self.sentence}"


@dataclass(frozen=True)
class Given:
    """The value given for one key, and where."""

    value: Any
    location: Location


def collect(
    tree: Any, locate: Callable[[KeyPath], Location], at: KeyPath = ()
) -> tuple[dict[KeyPath, Given], list[Problem]]:
    """Collect the values of a tree of keys, and the problems with its keys.

    Args:
        tree: nested mappings of values, as read.
        locate: returns where the value at a path was written.
        at: the path of ``tree`` itself.
    """
    if not at and _keys(tree) > _MOST_KEYS:  # each unknown key is compared with all known ones
        what = f"this recipe has more than {_MOST_KEYS:,} keys"
        return {}, [Problem(locate(at), f"{what}: expected some of the {len(leaves())} there are")]
    dotted = ".".join(at)
    if at in leaves():
        return {at: Given(tree, locate(at))}, []
    if at not in sections():
        return {}, [Problem(locate(at), f"key '{dotted}': no such key{instead_of(at)}")]
    if not isinstance(tree, Mapping | list | None) and (key := SHORTHANDS.get(at)):
        tree = {key: int(tree) if key == "dilation" and isinstance(tree, bool) else tree}
    if not isinstance(tree, Mapping):
        what = f"'{dotted}' is" if at else "this recipe is"
        what = f"{what} {shown(tree)}: expected a section with keys among {', '.join(sections()[at])}"
        if dotted in SECTIONS and isinstance(tree, str | int | float):
            key = f"{dotted}.{SECTIONS[dotted]}"
            key, note = (
                (key_of_file(str(tree), key), imported(str(tree))[1]) if dotted == "model" else (key, "")
            )
            counts = f", {BATCH}" if dotted == "batch" else ""
            what += f"; did you mean '{key}'{counts}?{f' {note}' if note else ''}"
        return {}, [Problem(locate(at), what)]
    given: dict[KeyPath, Given] = {}
    problems: list[Problem] = []
    for name, value in tree.items():
        more, wrong = collect(value, locate, (*at, str(name)))
        given |= more
        problems += wrong
    return given, problems


def _keys(tree: Any) -> int:
    """Count the keys of a tree up to the limit: anchors can make a tree endless."""
    count, waiting = 0, [tree]
    while waiting and count <= _MOST_KEYS:
        if isinstance(section := waiting.pop(), Mapping):
            count += len(section)
            waiting += section.values()
    return count


def _named_twice(given: Mapping[KeyPath, Given]) -> dict[KeyPath, str]:
    """Refuse a name beside a cfg, which takes its place.

    A cfg on the command line replaces the name that a file gives, and the default's name stands in every
    recipe that a run records.
    """
    name, cfg = given.get(_NAME), given.get(_CFG)
    if not name or not cfg or not cfg.value:
        return {}
    is_late = name.location.name == COMMAND_LINE
    is_written = name.location.line is not None and cfg.location.name != COMMAND_LINE
    if not is_late and (not is_written or name.value == Model.name):
        return {}
    text = f"'model.name' is {shown(name.value)}, but 'model.cfg' describes the network in its place"
    return {_NAME: f"{text}; leave one of them out (model.cfg='' removes a file's)"}


def applicable(given: Mapping[KeyPath, Given], source: str) -> tuple[dict[KeyPath, Given], list[str]]:
    """Leave out what ``source`` gives for another network than the one that is named elsewhere.

    Args:
        given: values by the path of their key.
        source: a shipped recipe's file; keys of other places stay, and are refused by :func:`build`.

    Returns:
        The values that stay, and the keys that are left out.
    """
    kinds = _kinds({path: one.value for path, one in given.items()})
    name, known = ("loss", "name"), leaves(kinds)
    out = {
        path
        for path, one in given.items()
        if one.location.name == source
        and (path not in known or (path == name and one.value not in ("auto", kinds.loss)))
    }
    left = {path: one for path, one in given.items() if path not in out}
    return left, [".".join(path) for path in given if path in out]


def _kinds(values: Mapping[KeyPath, Any]) -> Kinds:
    model = {"name": values.get(_NAME, Model.name), "cfg": values.get(_CFG, "")}
    return Kinds.of(values.get(("task",), Recipe.task), model, {"name": values.get(("loss", "name"), "auto")})


def build(
    given: Mapping[KeyPath, Given], problems: Iterable[Problem] = (), check_name: NameCheck | None = None
) -> Recipe:
    """Build the recipe of these values, with defaults for the keys that are not given.

    Args:
        given: values by the path of their key.
        problems: problems found before; they are reported together with those of the values.
        check_name: applied to the model's name.

    Raises:
        UserError: every problem, in the order of the lines; those of the command line come last.
    """
    given = _with_former_area(_of_bare_numbers(given))
    values = {path: one.value for path, one in given.items()}
    name = values.get(("model", "name"), Model.name)
    model = {"name": name, "cfg": values.get(("model", "cfg"), "")}
    kinds = _kinds(values)
    if given.keys() >= _OF_0_1 and kinds.model != "custom":
        raise OldRecipeError(f"{next(iter(given.values())).location.name}: {_RECORDED_BY_0_1}")
    bad = _named_twice(given) if kinds.task == "detect" else {}
    if values.get(_CFG) and kinds.task == "detect" and not bad:
        values.pop(_NAME, None)
        given = {path: one for path, one in given.items() if path != _NAME}
    for path, value in values.items():
        if path not in leaves(kinds):
            bad[path] = no_effect(path, kinds, name)
        elif path == ("loss", "name") and value not in ("auto", kinds.loss):
            known = ["auto", *losses_of(model)]
            bad[path] = f"'loss.name' is {shown(value)}: expected {one_of(known)} for the model '{name}'"
            bad[path] += nearest(str(value), known)
        elif not _is_plain(value):
            bad[path] = mistake(path, value, kinds)
    recipe, wrong, conflicts = _validate(given, bad, kinds)
    if wrong:
        bad |= wrong
        # Again without the wrong values: the keys of a section are compared only if each of them is valid.
        recipe, _, conflicts = _validate(given, bad, kinds)
    every = [*problems, *(Problem(given[path].location, sentence) for path, sentence in bad.items())]
    if check_name and not values.get(_CFG) and _NAME not in bad:
        every += _unknown_name(given, kinds.task, check_name)
    for sentence, keys in conflicts:
        if not any(key in bad for key in keys):
            places = [given[key].location for key in keys if key in given]
            last = next((one for one in places if one.name == COMMAND_LINE), places[0])
            every.append(Problem(last, sentence))
    if recipe is None or every:
        every.sort(key=lambda one: (one.location.line is None, one.location.line or 0))
        raise UserError(map(str, every))
    return recipe


def _of_bare_numbers(given: Mapping[KeyPath, Given]) -> Mapping[KeyPath, Given]:
    """Give the numbers that meant epochs when the recipe was recorded their unit."""
    if not given.keys() >= _RECORDED:
        return given
    recorded = {path: given[path] for path in _DURATIONS if given[path].location.name != COMMAND_LINE}
    if not all(type(one.value) is int for one in recorded.values()):
        return given
    in_epochs = {
        path: Given(f"{one.value} epochs", one.location)
        for path, one in recorded.items()
        if path != _DURATIONS[0] and one.value > 0
    }
    return {**given, **in_epochs}


def _with_former_area(given: Mapping[KeyPath, Given]) -> Mapping[KeyPath, Given]:
    """Give a recipe with mosaics that was recorded before ``mosaic_min_area`` the value that held then."""
    mosaic = given.get(_MOSAIC)
    if not given.keys() >= _RECORDED or _MIN_AREA in given or not mosaic or not mosaic.value:
        return given
    return {**given, _MIN_AREA: Given(_FORMER_MIN_AREA, mosaic.location)}


def _unknown_name(given: Mapping[KeyPath, Given], task: str, check_name: NameCheck) -> Iterator[Problem]:
    """Find that there is no such model, where it was named, or where the task was that has no default one."""
    name = given.get(_NAME)
    where = name or given.get(("task",))
    if where and (sentence := check_name(task, name.value if name else Model.name)):
        yield Problem(where.location, sentence)


def _validate(
    given: Mapping[KeyPath, Given], left_out: Mapping[KeyPath, str], kinds: Kinds
) -> tuple[Recipe | None, dict[KeyPath, str], list[tuple[str, tuple[KeyPath, ...]]]]:
    """Return the recipe without some values; the wrong values by key; the values that do not go together."""
    tree: dict[str, Any] = {}
    for path, one in given.items():
        if path not in left_out:
            section = tree
            for name in path[:-1]:
                section = section.setdefault(name, {})
            section[path[-1]] = one.value
    try:
        # As JSON, because strict types then take a list for a tuple and a mapping for a section.
        return adapter.validate_json(json.dumps(tree)), {}, []
    except ValidationError as error:
        wrong: dict[KeyPath, str] = {}
        clashes = []
        for detail in error.errors(include_url=False):
            location = tuple(str(part) for part in detail["loc"])
            if location[:1] in (("model",), ("loss",)):
                location = (location[0], *location[2:])  # without the tag of the kind
            if detail["type"] == "clash":
                for sentence, keys in detail["ctx"]["clashes"]:
                    clashes.append((sentence, tuple((*location, *key.split(".")) for key in keys)))
                continue
            # The key's path is followed by the branches of a union and the indices in a list.
            path = next(location[:n] for n in range(1, len(location) + 1) if location[:n] in leaves(kinds))
            if detail["type"] == "rising":
                wrong[path] = f"'{'.'.join(path)}' is {shown(given[path].value)}: {detail['msg']}"
            else:
                wrong[path] = mistake(path, given[path].value, kinds)
        return None, wrong, clashes


def _is_plain(value: Any, depth: int = 2) -> bool:
    """Check that a value is a scalar, or a list of scalars or of lists of scalars, as every key takes.

    Deeper levels are not examined: aliases can make lists endless.
    """
    if isinstance(value, list):
        return depth > 0 and all(_is_plain(item, depth - 1) for item in value)
    if isinstance(value, str):
        return not any("\ud800" <= character <= "\udfff" for character in value)  # surrogates
    return value is None or isinstance(value, bool | int | float)
