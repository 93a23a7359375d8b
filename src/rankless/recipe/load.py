"""Read recipes from text, files and the command line, and write them.

recipe = load("digits", ["epochs=5", "model.image_size=[192, 320]"])
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from rankless.arguments import Overrides, several
from rankless.errors import UserError, nearest
from rankless.files import reading
from rankless.printing import warn
from rankless.recipe import data, kinds, loss_kinds, model_kinds, yaml12
from rankless.recipe import schema as classes
from rankless.recipe.familiar import key_of_file, line_of_file, other_yolo, without_key
from rankless.recipe.keys import KeyPath, Kinds, adapter, leaves, sections
from rankless.recipe.pretrained import with_network
from rankless.recipe.schema import BUILT_IN_TASKS, Recipe
from rankless.recipe.validation import (
    COMMAND_LINE,
    SHORTHANDS,
    Given,
    Location,
    NameCheck,
    Problem,
    applicable,
    build,
    collect,
)

_COMMAND_LINE = Location(COMMAND_LINE)
_NAME = ("model", "name")


def load(source: str | Path, overrides: Overrides = (), *, check_name: NameCheck | None = None) -> Recipe:
    """Load the recipe of a file and apply overrides.

    Args:
        source: the name of a shipped recipe, or a file: a path, anything that ends in .yaml or .yml, or
            the name of a file that exists.
        overrides: ``key=value`` with dotted keys and YAML values: ``optim.lr=0.02``,
            ``model.image_size=[192, 320]``. The last one for a key counts. A preset, as in
            ``data.augment=heavy``, replaces the file's values of its section. Where ``model.pretrained`` is
            given and no network, the weights bring theirs (:mod:`rankless.recipe.pretrained`). Keys of a
            shipped recipe that the network does not have are left out, with a warning.
        check_name: what is wrong with a model's name for a task (:func:`rankless.models.names.problem`);
            without it any name is accepted here.

    Raises:
        UserError: every problem of the file and of the overrides, with line and nearest valid key.
    """
    if key := key_of_file(str(source), ""):
        line = line_of_file(str(source), dict(one.partition("=")[::2] for one in several(overrides)))
        raise UserError(f"{source}: expected a recipe first; this is given as {key}={source}; {line}")
    is_shipped = isinstance(source, str) and source in shipped()
    return _parse(*_text(source, check_name), overrides, check_name, is_shipped=is_shipped)


def default(overrides: Overrides = (), *, check_name: NameCheck | None = None) -> Recipe:
    """Return the recipe of all defaults, with overrides applied as in :func:`load`.

    Raises:
        UserError: every problem of the overrides.
    """
    given, problems = _overridden(overrides)
    return build(with_network(given), problems, check_name)


def changed(recipe: Recipe, overrides: Overrides) -> Recipe:
    """Apply overrides to a recipe, as in :func:`load`.

    Raises:
        UserError: every problem of the overrides.
    """
    known = leaves(Kinds.of(recipe.task, recipe.model, recipe.loss))
    defaults = {path: one["default"] for path, one in known.items()}
    # Values that equal the default count as not given, so that another model may have other keys.
    defaults["loss", "name"] = kinds.losses_of(recipe.model)[0]
    given, _ = collect(_tree(recipe), lambda path: Location("recipe"))
    given = {path: one for path, one in given.items() if one.value != defaults[path]}
    return build(*_over(given, [], overrides))


def is_cut(path: Path) -> bool:
    """Check whether a file written by :func:`dump` lost its end; each line is a key, in a known order.

    Raises:
        UserError: the file cannot be read.
    """
    text, name = _text(path)
    _, lines = yaml12.read(text, name)
    _, wanted = yaml12.read(dump(Recipe()), "recipe")
    return not text.endswith("\n") or next(reversed(wanted)) not in lines


def is_recipe(path: Path) -> bool:
    """Check whether a YAML file has sections of a recipe, and does not describe data."""
    try:
        tree, _, _ = yaml12.read_in_part(*_text(path))
    except UserError:
        return False
    known = isinstance(tree, dict) and any(name in sections()[()] for name in tree)
    return known and not _describes_data(tree, str(path))


def dump(recipe: Recipe) -> str:
    """Write the whole recipe as YAML; reading it back gives an equal recipe."""
    return yaml12.write(_tree(recipe))


def to_json(recipe: Recipe) -> str:
    """Write the whole recipe as JSON on one line, for weights files and states."""
    return json.dumps(_tree(recipe), ensure_ascii=False, separators=(",", ":"))


def from_json(text: str, name: str = "recipe in JSON") -> Recipe:
    """Read the recipe that :func:`to_json` wrote.

    Args:
        text: the JSON.
        name: where it comes from, for messages: such as the name of a weights file.

    Raises:
        UserError: not JSON, or an invalid recipe (such as one with keys of a newer version).
    """
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name}: this is not JSON: {error}") from None
    return build(*collect(tree, lambda path: Location(name)))


def differences(old: Recipe, new: Recipe) -> list[tuple[str, Any, Any]]:
    """List the dotted keys whose values differ, in the recipe's order, with the old and the new value."""
    before, after = dict(_flat(old)), dict(_flat(new))
    keys = [key for key in dict.fromkeys((*before, *after)) if before.get(key) != after.get(key)]
    return [(key, before.get(key), after.get(key)) for key in keys]


# Nothing here changes a number that was computed already.
FREE = (
    "epochs",
    "workers",
    "data.cache",
    "data.max_bad",
    "find_unused_parameters",
    "evaluate.every",
    "checkpoint.every",
    "checkpoint.keep",
)


def deciding(old: Recipe, new: Recipe) -> list[tuple[str, Any, Any]]:
    """List the keys that decide past numbers and differ, with the old and the new value."""
    return [one for one in differences(old, new) if one[0] not in FREE]


def schema() -> dict[str, Any]:
    """Return the recipe's JSON Schema (draft 2020-12) for editors, with a description of every key.

    Descriptions are the ``Attributes:`` of the classes that the recipe is made of.
    """
    whole = adapter.json_schema()
    for definition in (whole, *whole["$defs"].values()):
        kind = {**vars(model_kinds), **vars(loss_kinds), **vars(data), **vars(classes)}[definition["title"]]
        described: dict[str, str] = {}
        for one in reversed(kind.__mro__):
            described |= _attributes(inspect.cleandoc(one.__doc__ or "").partition("Attributes:\n")[2])
        definition["description"] = inspect.cleandoc(kind.__doc__).partition("\n\nAttributes:\n")[0]
        for name, key in definition["properties"].items():
            key.pop("title", None)
            if name in described:  # a section's description stands with its class
                key["description"] = described[name]
        if issubclass(kind, model_kinds.Model) and kind.pattern:
            definition["properties"]["name"]["pattern"] = kind.pattern
            definition["required"] = [] if re.search(kind.pattern, model_kinds.Model.name) else ["name"]
    sections = whole["properties"]
    for name in kinds.KINDS:  # a loss without a name may be of any kind
        sections[name]["anyOf"] = sections[name].pop("oneOf")
    for (*_, name), key in SHORTHANDS.items():
        for definition in whole["$defs"].values():
            section = definition["properties"].get(name)
            if section and "$ref" in section:
                reference = section.pop("$ref")
                values = whole["$defs"][reference.rpartition("/")[2]]["properties"][key]["enum"]
                words = [False, True] if key == "dilation" else []
                section["anyOf"] = [{"$ref": reference}, {"enum": [*values, *words]}]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole}


def shipped() -> dict[str, str]:
    """Map the names of the recipes in the package to their descriptions (the first lines of the headers)."""
    folder = resources.files("rankless.recipe") / "shipped"
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".yaml"))
    return {
        name.removesuffix(".yaml"): (folder / name).read_text("utf-8").split("\n", 1)[0].lstrip("# ")
        for name in names
    }


def shipped_text(name: str) -> str:
    """Return the text of a shipped recipe, including the header.

    Raises:
        UserError: no shipped recipe has this name.
    """
    if name not in shipped():
        raise UserError(
            f"no shipped recipe '{name}': expected {', '.join(shipped())}{nearest(name, shipped())}"
        )
    return (resources.files("rankless.recipe") / "shipped" / f"{name}.yaml").read_text("utf-8")


def _parse(
    text: str, name: str, overrides: Overrides, check_name: NameCheck | None, *, is_shipped: bool
) -> Recipe:
    tree, lines, unread = yaml12.read_in_part(text, name)
    if not unread and (tree is None or tree == {}):
        raise UserError(f"{name}: the file is empty: expected at least one key, such as 'model:'")
    if _describes_data(tree, name):
        raise UserError(
            f"{name}: describes a data set, and is no recipe; name it as the data: "
            f"rankless train yolov4-tiny data.root={name}"
        )

    def locate(path: KeyPath) -> Location:
        # A key inside something that an anchor repeats has no line: take that of the enclosing key.
        known = (lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in lines)
        return Location(name, next(known, 1))

    given, problems = collect({} if tree is None else tree, locate)
    problems += [Problem(Location(name, line), sentence) for line, sentence in unread]
    given, problems = _over(given, problems, overrides)
    given = dict(with_network(given))
    if is_shipped:
        given, left_out = applicable(given, name)
        if left_out:
            network = given[_NAME].value if _NAME in given else "this network"
            warn(f"{name}: {network} does not have {', '.join(left_out)}, so the recipe's value is left out")
    return build(given, problems, check_name)


def _describes_data(tree: Any, name: str) -> bool:
    """Check for Darknet's ``.data`` file and Ultralytics's ``data.yaml``, which people give as a recipe."""
    is_yaml = (
        isinstance(tree, dict) and "train" in tree and not tree.keys().isdisjoint(("names", "nc", "val"))
    )
    return is_yaml or name.endswith(".data")


def _over(
    given: dict[KeyPath, Given], problems: list[Problem], overrides: Overrides
) -> tuple[dict[KeyPath, Given], list[Problem]]:
    changed, more = _overridden(overrides)
    # A preset on the command line replaces the file's values of its section.
    others = {path: one for path, one in given.items() if (*path[:-1], "preset") not in changed}
    return others | changed, problems + more


def _overridden(overrides: Overrides) -> tuple[dict[KeyPath, Given], list[Problem]]:
    if isinstance(overrides, Mapping):
        raise UserError(f"overrides is {overrides!r}: expected a list of texts, as in ['epochs=1']")
    given, problems = dict[KeyPath, Given](), list[Problem]()
    for override in several(overrides):
        key, equals, text = override.partition("=")
        if not equals or not key:
            problems.append(Problem(_COMMAND_LINE, f"'{override}': {without_key(override)}"))
            continue
        try:
            value, _ = yaml12.read(text, f"'{override}'", lines=False)
        except UserError as error:
            problems += [Problem(_COMMAND_LINE, sentence) for sentence in error.problems]
            continue
        more, wrong = collect(value, lambda path: _COMMAND_LINE, tuple(key.split(".")))
        given |= more
        problems += wrong
    return given, problems


def _text(source: str | Path, check_name: NameCheck | None = None) -> tuple[str, str]:
    """Return the text of a recipe, and its name for messages.

    Args:
        source, check_name: see :func:`load`.
    """
    path, name = Path(source), str(source)
    if isinstance(source, str) and name in shipped():
        return shipped_text(name), f"{name}.yaml"
    is_path = isinstance(source, Path) or bool(re.search(r"[/\\]|\.ya?ml$", name))
    if not is_path and not path.exists():
        raise UserError(
            f"no recipe '{name}': neither a file nor one of the shipped {', '.join(shipped())}"
            f"{_instead_of(name, check_name)}"
        )
    try:
        return reading.read_text(path, reading.YAML), name
    except FileNotFoundError:
        beside = [str(file) for pattern in ("*.yaml", "*.yml") for file in path.parent.glob(pattern)]
        near = nearest(name, beside) or (f"; {other}" if (other := other_yolo(path.stem)) else "")
        near = near or nearest(path.stem, shipped())
        raise UserError(
            f"{name}: no such file, nor one of the shipped recipes {', '.join(shipped())}{near}"
        ) from None
    except IsADirectoryError:
        if (path / "recipe.yaml").is_file():
            expected = f"a recipe file, such as {path}/recipe.yaml"
        else:
            expected = f"a recipe; if it holds data, add data.root={name} to one"
        raise UserError(f"{name}: this is a folder: expected {expected}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: not UTF-8 text (byte {error.start}): expected a YAML file") from None
    except OSError as error:
        raise UserError(f"{name}: cannot be read: {error.strerror}") from None


def _instead_of(name: str, check_name: NameCheck | None) -> str:
    """Say what to write for a name that is no recipe's: a recipe nearby, or the model of this name."""
    if other := other_yolo(name):
        return f"; {other}"
    near = nearest(name, shipped())
    if check_name is None:
        return f"{near or ';'} the name of a model is given as model.name=NAME"
    task = next((task for task in BUILT_IN_TASKS if check_name(task, name) is None), "")
    if not task:
        return near or "; see: rankless recipes, and for model.name: rankless models"
    keys = f"{f'task={task} ' if task != Recipe.task else ''}model.name={name}"
    return f"{near or ';'} the model of this name is given as {keys}"


def _tree(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as a JSON tree, without keys that have no effect on it."""
    known = leaves(Kinds.of(recipe.task, recipe.model, recipe.loss))

    def filtered(tree: dict[str, Any], at: KeyPath) -> dict[str, Any]:
        return {
            name: filtered(value, (*at, name)) if isinstance(value, dict) else value
            for name, value in tree.items()
            if isinstance(value, dict) or (*at, name) in known
        }

    tree = filtered(adapter.dump_python(recipe, mode="json"), ())
    if tree["model"].get("cfg") and recipe.model.name == model_kinds.Model.name:
        del tree["model"]["name"]  # the cfg is the network, and not what the default names
    return tree


def _flat(recipe: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(recipe):
        value = getattr(recipe, field.name)
        if dataclasses.is_dataclass(value):
            yield from _flat(value, f"{before}{field.name}.")
        else:
            yield f"{before}{field.name}", value


def _attributes(section: str) -> dict[str, str]:
    """Parse the entries of a docstring's ``Attributes:``; ``a, b: text`` describes both."""
    entries: dict[str, str] = {}
    for entry in re.split(r"\n(?! {8})", section):
        names, _, text = entry.strip().partition(": ")
        entries |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return entries
