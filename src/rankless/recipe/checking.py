"""Validate a recipe's values in one pass that reports all mistakes together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ArgsKwargs

from rankless.errors import UserError, nearest, one_of
from rankless.recipe.fields import BUILT_IN_TASKS
from rankless.recipe.fields import given as given_by
from rankless.recipe.keys import KINDS, SHORTHANDS, KeyPath, Kinds, at, leaves, sections
from rankless.recipe.loss_kinds import AutoLoss, loss_kind
from rankless.recipe.mistakes import not_a_section, shown, unknown_key, wrong_value
from rankless.recipe.model_kinds import ModelKeys, losses_of
from rankless.recipe.recorded import with_network

Handler = Callable[[Any], Any]
"""A function that validates values with pydantic."""

NameCheck = Callable[[str, str], str | None]
"""A function that takes a task and a model's name, and returns the problem as a sentence, or None."""

_Clash = tuple[str, list[KeyPath]]
"""A message about values that contradict each other, and their keys, the wrong one first."""

MOST_KEYS = 1000


@dataclass(frozen=True)
class Location:
    """The file and line, or the command line, where a value was written.

    Attributes:
        name: the file, or "command line".
        line: the line in the file, from 1; None on the command line.
        order: the position on the command line.
    """

    name: str
    line: int | None = None
    order: int = 0

    def __str__(self) -> str:
        return f"{self.name}:{self.line}" if self.line else self.name

    @property
    def in_order(self) -> tuple[bool, int]:
        """A sort key that puts problems with a known line first."""
        return self.line is None, self.line or self.order


@dataclass(frozen=True)
class Problem:
    """A mistake in a recipe and its location."""

    location: Location
    sentence: str

    def __str__(self) -> str:
        return f"{self.location}: {self.sentence}"


@dataclass(frozen=True)
class Source:
    """The source of a recipe's values.

    Attributes:
        name: name of the source, for messages about values without a known location.
        places: the locations of keys and sections.
        problems: problems found before validation, which are reported together with those that validation
            finds.
        check_name: checks the model's name; None skips this check.
    """

    name: str = "Recipe"
    places: Mapping[KeyPath, Location] = field(default_factory=dict)
    problems: Sequence[Problem] = ()
    check_name: NameCheck | None = None

    def of(self, path: KeyPath) -> Location:
        """Return the location of a key, or of the enclosing key for a key inside a YAML alias."""
        known = (self.places[path[:n]] for n in range(len(path), -1, -1) if path[:n] in self.places)
        return next(known, Location(self.name))

    def written(self, path: KeyPath, *, is_section: bool) -> list[KeyPath]:
        """Return the paths to report for an unknown path, as the user wrote them.

        For a section, these are the paths of its values; otherwise, the outermost paths at or below it.
        """
        below = [one for one in self.places if one[: len(path)] == path] or [path]
        if is_section:
            return [one for one in below if not any(other[: len(one)] == one != other for other in below)]
        return [one for one in below if not any(one[: len(other)] == other != one for other in below)]


def checked(recipe: type, given: Any, validate: Handler, source: Source | None) -> Any:
    """Return a validated recipe, with defaults for omitted keys.

    Args:
        recipe: the class ``Recipe``.
        given: a recipe, nested mappings of keys and values, or the arguments of the class.
        validate: pydantic's validation.
        source: the origin of the values; by default a call of ``Recipe`` in Python.
    """
    if isinstance(given, recipe):
        return validate(given)
    source = source or Source()
    if isinstance(given, ArgsKwargs):
        names = (one.name for one in fields(recipe))
        given = {**dict(zip(names, given.args, strict=False)), **(given.kwargs or {})}
    if not isinstance(given, Mapping):
        raise UserError(f"{source.of(())}: {not_a_section(recipe, (), given)}")
    if count_keys(given) > MOST_KEYS:  # each unknown key is compared with all known ones
        what = f"this recipe has more than {MOST_KEYS:,} keys"
        raise UserError(f"{source.of(())}: {what}: expected some of the {len(leaves(recipe))} known keys")
    tree, bad = _completed(with_network(_expand_all(given)))
    kinds = Kinds.of(tree.get("task", recipe.task), tree["model"], tree["loss"])  # type: ignore[attr-defined]
    made, clashes = None, list[_Clash]()
    try:
        made = validate(tree)
    except ValidationError as error:
        wrong, clashes = _in_sentences(error, recipe, tree, kinds, source)
        bad |= wrong
    bad |= dict(_without_effect(recipe, tree, kinds, bad))
    problems = [*source.problems, *(Problem(source.of(path), text) for path, text in bad.items())]
    problems += _unknown_name(tree, kinds, bad, source)
    for sentence, keys in clashes:
        if not any(key in bad for key in keys):
            places = [source.of(key) for key in keys if at(tree, key) is not None] or [source.of(keys[0])]
            last = next((one for one in places if one.line is None), places[0])  # from the command line
            problems.append(Problem(last, sentence))
    if problems:
        problems.sort(key=lambda one: one.location.in_order)
        raise UserError(map(str, problems)) from None
    return made


def _in_sentences(
    error: ValidationError, recipe: type, tree: Mapping[str, Any], kinds: Kinds, source: Source
) -> tuple[dict[KeyPath, str], list[_Clash]]:
    """Convert pydantic's errors to messages by key path, and to a list of contradictions."""
    bad: dict[KeyPath, str] = {}
    clashes: list[_Clash] = []
    known = leaves(recipe, kinds._replace(task=""))  # keys of the other task are reported elsewhere
    for one in error.errors(include_url=False):
        if one["type"] == "clash":
            clashes.append((one["ctx"]["sentence"], [(*key.split("."),) for key in one["ctx"]["keys"]]))
            continue
        path = tuple(str(part) for part in one["loc"])
        path = (path[0], *path[2:]) if path[:1] and path[0] in KINDS else path  # without the kind's tag
        # A key's path is followed by the branches of a union and the indices in a list.
        key = next((path[:n] for n in range(len(path) + 1) if path[:n] in known), None)
        if one["type"] == "unexpected_keyword_argument":
            name = str(at(tree, ("model", "name"), ModelKeys.name))
            given_as = source.written(path, is_section=path in sections(recipe))
            bad |= {one: unknown_key(recipe, one, kinds, name) for one in given_as}
        elif key is None:
            bad[path] = not_a_section(recipe, path, at(tree, path))
        elif one["type"] == "expected":
            bad[key] = f"'{'.'.join(key)}' is {shown(at(tree, key))}: {one['msg']}"
        else:
            bad[key] = wrong_value(known[key], at(tree, key))
    return bad, clashes


def _unknown_name(
    tree: Mapping[str, Any], kinds: Kinds, bad: Mapping[KeyPath, str], source: Source
) -> Iterator[Problem]:
    """Yield a problem if the model is unknown; it is located at the task if no model is named."""
    path = ("model", "name")
    name = at(tree, path)
    is_open = path in bad or at(tree, ("model", "cfg")) or (name is None and "task" not in tree)
    if not source.check_name or is_open:
        return
    if sentence := source.check_name(kinds.task, ModelKeys.name if name is None else name):
        yield Problem(source.of(("task",) if name is None else path), sentence)


def expand(section: Any, path: KeyPath) -> Any:
    """Expand a section given as a single value: ``heavy`` becomes ``{"preset": "heavy"}``."""
    key = SHORTHANDS.get(path)
    if not key or section is None or isinstance(section, Mapping | list) or is_dataclass(section):
        return section
    return {key: int(section) if key == "dilation" and isinstance(section, bool) else section}


def count_keys(tree: Any) -> int:
    """Count a tree's keys, and stop above ``MOST_KEYS``, because YAML anchors can make a tree endless."""
    count, waiting = 0, [tree]
    while waiting and count <= MOST_KEYS:
        if isinstance(section := waiting.pop(), Mapping):
            count += len(section)
            waiting += section.values()
    return count


def _expand_all(tree: Any, path: KeyPath = ()) -> Any:
    tree = expand(tree, path)
    if not isinstance(tree, Mapping):
        return tree
    return {_text(name): _expand_all(value, (*path, _text(name))) for name, value in tree.items()}


def _text(name: Any) -> str:
    return str(name).encode("utf-8", "backslashreplace").decode()  # escapes lone surrogates


def _completed(tree: dict[str, Any]) -> tuple[dict[str, Any], dict[KeyPath, str]]:
    """Return the tree with the model's default loss, and problems with the name of the given loss."""
    model, loss, bad = tree.get("model", {}), tree.get("loss", {}), dict[KeyPath, str]()
    known, name = losses_of(model), loss_kind(loss)
    if name not in ("auto", *known):
        names = ["auto", *known]
        bad["loss", "name"] = (
            f"'loss.name' is {shown(at(loss, ('name',)))}: expected {one_of(names)} for the model "
            f"'{at(model, ('name',), ModelKeys.name)}'{nearest(str(name), names)}"
        )
    if isinstance(loss, AutoLoss):
        loss = given_by(loss)
    if isinstance(loss, Mapping):
        loss = {**loss, "name": name if name in known else known[0]}
    if isinstance(model, Mapping) and model.get("cfg") and tree.get("task", "detect") == "detect":
        model = {key: value for key, value in model.items() if key != "name"}  # the cfg describes the network
    return {**tree, "model": model, "loss": loss}, bad


def _without_effect(
    recipe: type, tree: Mapping[str, Any], kinds: Kinds, bad: Mapping[KeyPath, str]
) -> Iterator[tuple[KeyPath, str]]:
    """Yield the path of each given key that has no effect because of other keys, and a message."""
    for path, key in leaves(recipe, kinds._replace(task="")).items():
        if not key.conditions:
            continue
        section = at(tree, path[:-1], {})
        value = at(section, path[-1:], key.default)
        is_given = path[-1] in given_by(section)
        for only in key.conditions if is_given else ():
            other = (*only.key.split("."),)
            if only.key == "task" and kinds.task in BUILT_IN_TASKS and kinds.task not in only.values:
                yield path, unknown_key(recipe, path, kinds, "")
            elif (
                only.key != "task"
                and value not in (key.default, "auto")
                and path not in bad
                and other not in bad
            ):
                actual = at(tree, other, leaves(recipe, kinds)[other].default)
                if actual not in only.values:
                    needed = " or ".join(map(repr, only.values))
                    yield (
                        path,
                        f"'{'.'.join(path)}' is {shown(value)}, but '{only.key}' is {shown(actual)}: it has "
                        f"an effect only with {needed}; remove '{'.'.join(path)}'",
                    )
