"""Recipes as text: shipped ones, files, what the command line changes, and the way back.

recipe = load("digits", ["epochs=5", "model.image_size=[192, 320]"])
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from rankless.errors import UserError
from rankless.files import reading
from rankless.recipe import kinds, yaml12
from rankless.recipe import schema as classes
from rankless.recipe.keys import KeyPath, Kinds, adapter, leaves, nearest
from rankless.recipe.schema import Recipe
from rankless.recipe.validation import Fault, Given, Place, build, collect

_COMMAND_LINE = Place("command line")


def load(source: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a file, changed by overrides.

    Args:
        source: the name of a shipped recipe, or a file: a path, anything that ends in .yaml or .yml, or
            the name of a file that exists.
        overrides: ``key=value`` with dotted keys and YAML values: ``optim.lr=0.02``,
            ``model.image_size=[192, 320]``. The last one for a key counts. A preset, as in
            ``data.augment=heavy``, replaces what the file says of its section.

    Raises:
        UserError: every fault of the file and of the overrides, with line and nearest right key.
    """
    text, name = _text(source)
    return _parse(text, name, overrides)


def default(overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of no file: every key's default, changed by overrides as in :func:`load`.

    Raises:
        UserError: every fault of the overrides.
    """
    return build(*_overridden(overrides))


def changed(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """A recipe changed by overrides, as in :func:`load`.

    Raises:
        UserError: every fault of the overrides.
    """
    known = leaves(Kinds.of(recipe.task, recipe.model, recipe.loss))
    defaults = {path: one["default"] for path, one in known.items()}
    # What is as by default is not given, so that another model may have other keys.
    defaults["loss", "name"] = kinds.losses_of(recipe.model)[0]
    given, _ = collect(_tree(recipe), lambda path: Place("recipe"))
    said = {path: one for path, one in given.items() if one.value != defaults[path]}
    return _over(said, [], overrides)


def is_cut(path: Path) -> bool:
    """Whether a file written by :func:`dump` has lost its end: every line of it is a key, in a known order.

    Raises:
        UserError: the file cannot be read.
    """
    text, name = _text(path)
    _, there = yaml12.read(text, name)
    _, wanted = yaml12.read(dump(Recipe()), "recipe")
    return not text.endswith("\n") or next(reversed(wanted)) not in there


def dump(recipe: Recipe) -> str:
    """The whole recipe as YAML; reading it back gives an equal recipe."""
    return yaml12.write(_tree(recipe))


def to_json(recipe: Recipe) -> str:
    """The whole recipe as JSON on one line, for weights files and states."""
    return json.dumps(_tree(recipe), ensure_ascii=False, separators=(",", ":"))


def from_json(text: str, place: str = "recipe in JSON") -> Recipe:
    """The recipe of :func:`to_json`.

    Args:
        text: the JSON.
        place: its name in faults, such as the weights file's.

    Raises:
        UserError: no JSON, or a recipe with faults (such as the keys of a newer version).
    """
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: this is not JSON: {error}") from None
    return build(*collect(tree, lambda path: Place(place)))


def differences(old: Recipe, new: Recipe) -> list[tuple[str, Any, Any]]:
    """The dotted keys whose values differ, in the recipe's order, with the old and the new value."""
    before, after = dict(_flat(old)), dict(_flat(new))
    keys = dict.fromkeys((*before, *after))
    return [(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)]


def schema() -> dict[str, Any]:
    """The recipe's JSON Schema (draft 2020-12), for editors; every key with its description.

    Descriptions are the ``Attributes:`` of the classes in ``schema.py`` and ``kinds.py``.
    """
    whole = adapter.json_schema()
    for definition in (whole, *whole["$defs"].values()):
        kind = {**vars(kinds), **vars(classes)}[definition["title"]]
        described: dict[str, str] = {}
        for one in reversed(kind.__mro__):
            described |= _attributes(inspect.cleandoc(one.__doc__ or "").partition("Attributes:\n")[2])
        definition["description"] = inspect.cleandoc(kind.__doc__).partition("\n\nAttributes:\n")[0]
        for name, key in definition["properties"].items():
            key.pop("title", None)
            if name in described:  # a section's description stands with its class
                key["description"] = described[name]
        if issubclass(kind, kinds.Model) and kind.pattern:
            definition["properties"]["name"]["pattern"] = kind.pattern
            definition["required"] = [] if re.search(kind.pattern, kinds.Model.name) else ["name"]
    sections = whole["properties"]
    for name in kinds.KINDS:  # a loss without a name may be of any kind
        sections[name]["anyOf"] = sections[name].pop("oneOf")
    augment = whole["$defs"]["Data"]["properties"]["augment"]  # may be a preset's name alone
    presets = whole["$defs"]["Augment"]["properties"]["preset"]["enum"]
    augment["anyOf"] = [{"$ref": augment.pop("$ref")}, {"enum": presets}]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole}


def shipped() -> dict[str, str]:
    """The recipes that come with the package: name to what it is (the first line of its header)."""
    folder = resources.files("rankless.recipe") / "shipped"
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".yaml"))
    return {
        name.removesuffix(".yaml"): (folder / name).read_text("utf-8").split("\n", 1)[0].lstrip("# ")
        for name in names
    }


def shipped_text(name: str) -> str:
    """The text of a shipped recipe, header and all.

    Raises:
        UserError: no shipped recipe has this name.
    """
    if name not in shipped():
        raise UserError(
            f"no shipped recipe '{name}': expected {', '.join(shipped())}{nearest(name, shipped())}"
        )
    return (resources.files("rankless.recipe") / "shipped" / f"{name}.yaml").read_text("utf-8")


def _parse(text: str, name: str, overrides: Sequence[str]) -> Recipe:
    tree, lines = yaml12.read(text, name)
    if tree is None or tree == {}:
        raise UserError(f"{name}: the file is empty: expected at least one key, such as 'model:'")

    def place(path: KeyPath) -> Place:
        # A key inside something that an anchor repeats has no line of its own: the line of what holds it.
        known = (lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in lines)
        return Place(name, next(known, 1))

    return _over(*collect(tree, place), overrides)


def _over(given: dict[KeyPath, Given], faults: list[Fault], overrides: Sequence[str]) -> Recipe:
    changed, more = _overridden(overrides)
    # A preset on the command line is meant instead of what the file says of its section, key by key.
    kept = {path: one for path, one in given.items() if (*path[:-1], "preset") not in changed}
    return build(kept | changed, faults + more)


def _overridden(overrides: Sequence[str]) -> tuple[dict[KeyPath, Given], list[Fault]]:
    given: dict[KeyPath, Given] = {}
    faults: list[Fault] = []
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            faults.append(Fault(_COMMAND_LINE, f"'{override}': expected key=value, as in optim.lr=0.02"))
            continue
        try:
            value, _ = yaml12.read(text, f"'{override}'", lines=False)
        except UserError as error:
            faults += [Fault(_COMMAND_LINE, sentence) for sentence in error.problems]
            continue
        more, wrong = collect(value, lambda path: _COMMAND_LINE, tuple(key.split(".")))
        given |= more
        faults += wrong
    return given, faults


def _text(source: str | Path) -> tuple[str, str]:
    """The text of a recipe, and its name in faults."""
    path, name = Path(source), str(source)
    if isinstance(source, str) and name in shipped():
        return shipped_text(name), f"{name}.yaml"
    is_path = isinstance(source, Path) or bool(re.search(r"[/\\]|\.ya?ml$", name))
    if not is_path and not path.is_file():
        raise UserError(
            f"no recipe '{name}': neither a file nor one of the shipped {', '.join(shipped())}"
            f"{nearest(name, shipped())}"
        )
    try:
        return reading.read_text(path, reading.YAML), name
    except FileNotFoundError:
        beside = [str(file) for pattern in ("*.yaml", "*.yml") for file in path.parent.glob(pattern)]
        near = nearest(name, beside) or nearest(path.stem, shipped())
        raise UserError(
            f"{name}: no such file, nor one of the shipped recipes {', '.join(shipped())}{near}"
        ) from None
    except IsADirectoryError:
        raise UserError(
            f"{name}: this is a folder: expected a recipe file, such as {path}/recipe.yaml"
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name}: this is no text in UTF-8 (byte {error.start}): expected a YAML file"
        ) from None
    except OSError as error:
        raise UserError(f"{name}: cannot be read: {error.strerror}") from None


def _tree(recipe: Recipe) -> dict[str, Any]:
    """The recipe as JSON has it, without the keys that only another task reads."""
    known = leaves(Kinds.of(recipe.task, recipe.model, recipe.loss))

    def kept(tree: dict[str, Any], at: KeyPath) -> dict[str, Any]:
        return {
            name: kept(value, (*at, name)) if isinstance(value, dict) else value
            for name, value in tree.items()
            if isinstance(value, dict) or (*at, name) in known
        }

    return kept(adapter.dump_python(recipe, mode="json"), ())


def _flat(recipe: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        if dataclasses.is_dataclass(value):
            yield from _flat(value, f"{before}{field.name}.")
        else:
            yield f"{before}{field.name}", value


def _attributes(section: str) -> dict[str, str]:
    """The entries of a docstring's ``Attributes:``; ``a, b: text`` describes both."""
    entries: dict[str, str] = {}
    for entry in re.split(r"\n(?! {8})", section):
        names, _, text = entry.strip().partition(": ")
        entries |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return entries
