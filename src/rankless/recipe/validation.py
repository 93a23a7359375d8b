"""From what a user wrote to a :class:`~rankless.recipe.schema.Recipe`, or every fault in it at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from rankless.errors import UserError
from rankless.recipe.keys import (
    KeyPath,
    Kinds,
    adapter,
    instead_of,
    leaves,
    mistake,
    nearest,
    no_effect,
    sections,
    shown,
)
from rankless.recipe.kinds import Model, losses_of
from rankless.recipe.schema import Recipe

_MOST_KEYS = 1000
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


class OldRecipeError(UserError):
    """The recipe was recorded by a version whose recipes this one does not read."""


@dataclass(frozen=True)
class Place:
    """Where something was written: a file (and its line, from 1), or the command line."""

    name: str
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.name}:{self.line}" if self.line else self.name


@dataclass(frozen=True)
class Fault:
    """One sentence about one place."""

    place: Place
    sentence: str

    def __str__(self) -> str:
        return f"{self.place}: {self.sentence}"


@dataclass(frozen=True)
class Given:
    """The value given for one key, and where."""

    value: Any
    place: Place


def collect(
    tree: Any, place: Callable[[KeyPath], Place], at: KeyPath = ()
) -> tuple[dict[KeyPath, Given], list[Fault]]:
    """The values of a tree of keys, and what is wrong with its keys.

    Args:
        tree: what was read: mappings of mappings of values.
        place: where the value at a path was written.
        at: the path of ``tree`` itself.
    """
    if not at and _keys(tree) > _MOST_KEYS:  # each that is not known is compared with all that are
        what = f"this recipe has more than {_MOST_KEYS:,} keys"
        return {}, [Fault(place(at), f"{what}: expected some of the {len(leaves())} there are")]
    dotted = ".".join(at)
    if at in leaves():
        return {at: Given(tree, place(at))}, []
    if at not in sections():
        return {}, [Fault(place(at), f"key '{dotted}': no such key{instead_of(at)}")]
    if isinstance(tree, str) and "preset" in sections()[at]:
        tree = {"preset": tree}
    if not isinstance(tree, Mapping):
        what = f"'{dotted}' is" if at else "this recipe is"
        keys = ", ".join(sections()[at])
        return {}, [Fault(place(at), f"{what} {shown(tree)}: expected a section with keys among {keys}")]
    given: dict[KeyPath, Given] = {}
    faults: list[Fault] = []
    for name, value in tree.items():
        more, wrong = collect(value, place, (*at, str(name)))
        given |= more
        faults += wrong
    return given, faults


def _keys(tree: Any) -> int:
    """How many keys a tree has, or some more than is allowed: with anchors it may be endless."""
    count, waiting = 0, [tree]
    while waiting and count <= _MOST_KEYS:
        if isinstance(found := waiting.pop(), Mapping):
            count += len(found)
            waiting += found.values()
    return count


def build(given: Mapping[KeyPath, Given], faults: Iterable[Fault] = ()) -> Recipe:
    """The recipe of these values; what is not given has its default.

    Args:
        given: values by the path of their key.
        faults: what was found wrong before; reported together with what is wrong with the values.

    Raises:
        UserError: every fault, in the order of the lines, the command line's last.
    """
    values = {path: one.value for path, one in given.items()}
    name = values.get(("model", "name"), Model.name)
    model = {"name": name, "cfg": values.get(("model", "cfg"), "")}
    loss = values.get(("loss", "name"), "auto")
    kinds = Kinds.of(values.get(("task",), Recipe.task), model, {"name": loss})
    if given.keys() >= _OF_0_1 and kinds.model != "custom":
        raise OldRecipeError(f"{next(iter(given.values())).place.name}: {_RECORDED_BY_0_1}")
    bad: dict[KeyPath, str] = {}
    for path, value in values.items():
        if path not in leaves(kinds):
            bad[path] = no_effect(path, kinds, name)
        elif path == ("loss", "name") and value not in ("auto", kinds.loss):
            known = ["auto", *losses_of(model)]
            bad[path] = (
                f"'loss.name' is {shown(value)}: expected one of {', '.join(known)} for the model '{name}'"
            )
            bad[path] += nearest(str(value).lower(), known)
        elif not _is_plain(value):
            bad[path] = mistake(path, value, kinds)
    recipe, wrong, found = _validate(given, bad, kinds)
    if wrong:
        bad |= wrong
        # Once more without the wrong values: the keys of a section are compared only if each is right.
        recipe, _, found = _validate(given, bad, kinds)
    every = [*faults, *(Fault(given[path].place, sentence) for path, sentence in bad.items())]
    for sentence, keys in found:
        if not any(key in bad for key in keys):
            every.append(Fault(next(given[key].place for key in keys if key in given), sentence))
    if recipe is None or every:
        every.sort(key=lambda fault: (fault.place.line is None, fault.place.line or 0))
        raise UserError(str(fault) for fault in every)
    return recipe


def _validate(
    given: Mapping[KeyPath, Given], left_out: Mapping[KeyPath, str], kinds: Kinds
) -> tuple[Recipe | None, dict[KeyPath, str], list[tuple[str, tuple[KeyPath, ...]]]]:
    """The recipe without some values; the keys whose values are wrong; the values that do not go together."""
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
                for sentence, keys in detail["ctx"]["found"]:
                    clashes.append((sentence, tuple((*location, *key.split(".")) for key in keys)))
                continue
            # Behind the key's own path stand the branches of a union and the indices in a list.
            path = next(location[:n] for n in range(1, len(location) + 1) if location[:n] in leaves(kinds))
            if detail["type"] == "rising":
                wrong[path] = f"'{'.'.join(path)}' is {shown(given[path].value)}: {detail['msg']}"
            else:
                wrong[path] = mistake(path, given[path].value, kinds)
        return None, wrong, clashes


def _is_plain(value: Any, depth: int = 2) -> bool:
    """A scalar, or a list of scalars or of lists of scalars: all that any key takes.

    It looks no deeper: aliases can make lists of lists endless.
    """
    if isinstance(value, list):
        return depth > 0 and all(_is_plain(item, depth - 1) for item in value)
    if isinstance(value, str):
        return not any("\ud800" <= character <= "\udfff" for character in value)  # halves of pairs
    return value is None or isinstance(value, bool | int | float)
