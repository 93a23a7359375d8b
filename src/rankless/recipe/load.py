"""Read and write recipes as text and files, with overrides from the command line.

Example:
    recipe = load("digits", ["epochs=5", "model.image_size=[192, 320]"])
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from rankless.arguments import Overrides, several
from rankless.errors import UserError, nearest, shell_word
from rankless.files import reading, yaml12
from rankless.printing import warn
from rankless.recipe.checking import Location, NameCheck, Source
from rankless.recipe.familiar import key_of_file, line_of_file, other_yolo, without_key
from rankless.recipe.fields import FREE
from rankless.recipe.installed import shipped, shipped_text
from rankless.recipe.keys import (
    MOST_KEYS,
    OPEN,
    Flat,
    KeyPath,
    Kinds,
    at,
    flattened,
    leaves,
    nested,
    sections,
)
from rankless.recipe.mistakes import shown
from rankless.recipe.model_kinds import ModelKeys, losses_of
from rankless.recipe.recorded import upgrade, with_network
from rankless.recipe.schema import Recipe
from rankless.task_kinds import BUILT_IN, kind_of

COMMAND_LINE = "command line"
"""Name that messages give to the location of command-line values."""

_RECIPE = TypeAdapter(Recipe)
_NAME, _CFG, _LOSS_NAME = ("model", "name"), ("model", "cfg"), ("loss", "name")


def load(source: str | Path, overrides: Overrides = (), *, check_name: NameCheck | None = None) -> Recipe:
    """Load a recipe and apply overrides.

    Args:
        source: the name of a shipped recipe, or a file: a path, any name with the extension .yaml or .yml, or
            the name of a file that exists.
        overrides: ``key=value`` with dotted keys and YAML values: ``optim.lr=0.02``,
            ``model.image_size=[192, 320]``. If a key is given several times, the last value is used. A
            preset, as in ``data.augment=heavy``, replaces the file's values in its section. If
            ``model.pretrained`` is given without a network, the network of the weights is used
            (:func:`.recorded.with_network`). Keys of a shipped recipe that the network does not have are
            dropped, with a warning.
        check_name: a function that returns the problem with a model's name for a task, such as
            :func:`rankless.task_kinds.wrong_model`; without it, any name is accepted here.

    Raises:
        UserError: lists all problems of the file and the overrides, with lines and nearest valid keys.
    """
    if key := key_of_file(str(source), ""):
        line = line_of_file(str(source), dict(one.partition("=")[::2] for one in several(overrides)))
        raise UserError(
            f"{source}: expected a recipe as the first argument; pass it as {key}={source}; {line}"
        )
    is_shipped = isinstance(source, str) and source in shipped()
    text, name = _text(source, check_name)
    return parsed(text, name, overrides, check_name=check_name, is_shipped=is_shipped)


def default(overrides: Overrides = (), *, check_name: NameCheck | None = None) -> Recipe:
    """Return the default recipe with overrides applied, as in :func:`load`."""
    return _built({}, Source(COMMAND_LINE, check_name=check_name), overrides)


def changed(recipe: Recipe, overrides: Overrides) -> Recipe:
    """Return a copy of a recipe with overrides applied, as in :func:`load`."""
    # Values that equal the defaults count as not given, because another model may have other keys.
    usual: Flat = {_NAME: ModelKeys.name, _LOSS_NAME: losses_of(recipe.model)[0]}
    flat = {
        path: value
        for path, value in flattened(recipe).items()
        if not is_dataclass(value) and value != usual.get(path)
    }
    return _built(flat, Source("recipe"), overrides)


def is_cut(path: Path) -> bool:
    """Check whether a file written by :func:`dump` is cut off, judging by its last character and key."""
    text, name = _text(path)
    _, lines = yaml12.read(text, name)
    last = next(reversed(_tree(Recipe())))
    return not text.endswith("\n") or (last,) not in lines


def data_root(path: Path) -> str:
    """Return ``data.root`` of a recipe that may have errors, or "" if it is missing or the task is custom."""
    tree = _readable_part(path)
    root, task = at(tree, ("data", "root"), ""), at(tree, ("task",), Recipe.task)
    return root if isinstance(root, str) and task in BUILT_IN else ""


def is_recipe(path: Path) -> bool:
    """Check whether a YAML file is a recipe and not a description of a data set."""
    tree = _readable_part(path)
    known = isinstance(tree, dict) and any(name in sections(Recipe)[()] for name in tree)
    return known and not _describes_data(tree, str(path))


def _readable_part(path: Path) -> Any:
    with suppress(UserError):
        return yaml12.read_in_part(*_text(path))[0]
    return None


def dump(recipe: Recipe) -> str:
    """Return the complete recipe as YAML; reading it back gives an equal recipe."""
    return yaml12.write(_tree(recipe))


def to_json(recipe: Recipe) -> str:
    """Return the complete recipe as one line of JSON, for weights files and states."""
    return json.dumps(_tree(recipe), ensure_ascii=False, separators=(",", ":"))


def from_json(text: str, name: str = "recipe in JSON") -> Recipe:
    """Read a recipe written by :func:`to_json`. Messages refer to the text as ``name``."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name}: invalid JSON: {error}") from None
    return _RECIPE.validate_python(nested(upgrade(flattened(tree))), context=Source(name))


def differences(old: Recipe, new: Recipe) -> list[tuple[str, Any, Any]]:
    """List the dotted keys with different values, in the recipe's order, with the old and new values."""
    every = ((".".join(path), at(old, path), at(new, path)) for path in leaves(Recipe))
    return [(key, before, after) for key, before, after in every if before != after]


def free_keys() -> list[str]:
    """List the dotted keys that may change when a run is resumed, starting with those outside of sections."""
    free = [path for path, key in leaves(Recipe).items() if FREE in key.declared]
    return [".".join(path) for path in sorted(free, key=len)]


def deciding(old: Recipe, new: Recipe) -> list[tuple[str, Any, Any]]:
    """List the changed keys that affect past results, with the old and new values."""
    free = free_keys()
    return [one for one in differences(old, new) if one[0] not in free]


def parsed(
    text: str,
    name: str,
    overrides: Overrides = (),
    *,
    check_name: NameCheck | None = None,
    is_shipped: bool = True,
) -> Recipe:
    """Parse a recipe from YAML text, which messages refer to as ``name``; see :func:`load`.

    With ``is_shipped``, keys that the network does not have are dropped with a warning.
    """
    tree, lines, unread = yaml12.read_in_part(text, name)
    if not unread and (tree is None or tree == {}):
        raise UserError(f"{name}: the file is empty: expected at least one key, such as 'model:'")
    if _describes_data(tree, name):
        raise UserError(
            f"{name}: this describes a data set and is not a recipe; use it as the data: "
            f"rankless train yolov4-tiny data.root={shell_word(name)}"
        )

    source = Source(
        name,
        {path: Location(line, name=name) for path, line in {(): 1, **lines}.items()},
        [(Location(line, name=name), sentence) for line, sentence in unread],
        check_name,
    )
    return _built(upgrade(flattened(tree or {})), source, overrides, is_shipped=is_shipped)


def _describes_data(tree: Any, name: str) -> bool:
    """Check for Darknet's ``.data`` and Ultralytics's ``data.yaml``, which users mistake for recipes."""
    keys = set(tree) if isinstance(tree, dict) else set[str]()
    return name.endswith(".data") or ("train" in keys and bool(keys & {"names", "nc", "val"}))


def _built(flat: Flat, source: Source, overrides: Overrides, *, is_shipped: bool = False) -> Recipe:
    if () in flat or len(flat) > MOST_KEYS:
        return _RECIPE.validate_python(nested(flat), context=source)  # raises the error
    ours, places, problems = _overridden(overrides)
    whole = _over(flat, ours, presets_win=True)
    if is_shipped:
        whole = with_network(whole)
        kinds = Kinds.of(nested(whole))
        known = leaves(Recipe, kinds)
        left_out = [
            path
            for path in whole
            if path not in places
            and (path not in known or (path == _LOSS_NAME and whole[path] not in ("auto", kinds.loss)))
        ]
        if left_out:
            whole = {path: value for path, value in whole.items() if path not in left_out}
            network, keys = whole.get(_NAME, "this network"), ", ".join(map(".".join, left_out))
            warn(f"{source.name}: {network} does not have {keys}, so the recipe's values are ignored")
    source.places |= places
    source.problems += [*problems, *_named_twice(whole, source)]
    return _RECIPE.validate_python(nested(whole), context=source)


def _named_twice(flat: Flat, source: Source) -> Iterator[tuple[Location, str]]:
    """Yield a problem if both ``model.name`` and ``model.cfg`` are given.

    Two cases are allowed: a cfg on the command line replaces a file's name, and the default name in a file is
    ignored, because every recorded recipe has it.
    """
    name, where, other = flat.get(_NAME), source.of(_NAME), source.of(_CFG)
    if name is None or not flat.get(_CFG) or not kind_of(flat.get(("task",), Recipe.task)).cfg:
        return
    is_written = where.line < math.inf and other.name != COMMAND_LINE
    if where.name == COMMAND_LINE or (is_written and name != ModelKeys.name):
        text = f"'model.name' is {shown(name)}, but 'model.cfg' also defines the network"
        yield where, f"{text}; remove one of them (model.cfg='' removes a cfg in the file)"


def _overridden(overrides: Overrides) -> tuple[Flat, dict[KeyPath, Location], list[tuple[Location, str]]]:
    if isinstance(overrides, Mapping):
        raise UserError(f"overrides is {overrides!r}: expected a list of strings, as in ['epochs=1']")
    flat, places, problems = Flat(), dict[KeyPath, Location](), list[tuple[Location, str]]()
    for order, override in enumerate(several(overrides)):
        where = Location(order=order, name=COMMAND_LINE)
        key, equals, text = override.partition("=")
        if not equals or not key:
            problems.append((where, f"'{override}': {without_key(override)}"))
            continue
        try:
            value, _ = yaml12.read(text, f"'{override}'", lines=False)
        except UserError as error:
            problems += [(where, sentence) for sentence in error.problems]
            continue
        path = (*key.split("."),)
        new = flattened(nested({path: value}))
        if len(new) > MOST_KEYS:
            problems.append((where, f"'{key}': more than {MOST_KEYS:,} keys; remove some of them"))
            continue
        flat = _over(flat, new)
        places |= dict.fromkeys((path, *new), where)
    return flat, places, problems


def _over(old: Flat, new: Flat, *, presets_win: bool = False) -> Flat:
    """Merge two sets of values; those in ``new`` take precedence.

    With ``presets_win``, a preset in ``new`` drops all old values of its section.
    """
    presets = [path[:-1] for path in new if presets_win and path[-1] == "preset"]
    old = {path: value for path, value in old.items() if path[:-1] not in presets}
    for path, value in new.items():
        outer = next((path[:n] for n in range(1, len(path)) if path[:n] in old), None)
        if outer in sections(Recipe) and old[outer] not in (None, {}):
            continue  # a value instead of a section, which is reported as an error
        inner = [other for other in old if other[: len(path)] == path]
        if value == {} and inner and path in sections(Recipe):
            continue
        if path in OPEN and isinstance(value, Mapping) and isinstance(old.get(path), Mapping):
            value = {**old[path], **value}  # as in a section, other keys stay
        old = {other: old[other] for other in old if other != outer and other not in inner}
        old[path] = value
    return old


def _text(source: str | Path, check_name: NameCheck | None = None) -> tuple[str, str]:
    path, name = Path(source), str(source)
    if isinstance(source, str) and name in shipped():
        return shipped_text(name), f"{name}.yaml"
    is_path = isinstance(source, Path) or bool(re.search(r"[/\\]|\.ya?ml$", name))
    if not is_path and not path.exists():
        raise UserError(_missing(name, _instead_of(name, check_name)))
    try:
        return reading.read_text(path, reading.YAML), name
    except FileNotFoundError:
        beside = [str(file) for pattern in ("*.yaml", "*.yml") for file in path.parent.glob(pattern)]
        near = nearest(name, beside) or (f"; {other}" if (other := other_yolo(path.stem)) else "")
        near = near or nearest(path.stem, shipped())
        raise UserError(_missing(name, near)) from None
    except IsADirectoryError:
        if (path / "recipe.yaml").is_file():
            expected = f"a recipe file, such as {path}/recipe.yaml"
        else:
            expected = (
                f"a recipe; if it contains data, add data.root={shell_word(name)} to a recipe, or create a "
                f"recipe for it: rankless new {shell_word(name)}"
            )
        raise UserError(f"{name}: this is a folder; expected {expected}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: not UTF-8 text (byte {error.start}): expected a YAML file") from None
    except OSError as error:
        raise UserError(f"{name}: cannot be read: {error.strerror}") from None


def _missing(name: str, hint: str) -> str:
    is_typo = hint.startswith("; did you mean")
    known = "" if is_typo else f"; expected a recipe file or one of {', '.join(shipped())}"
    return f"'{name}': no such file, folder or shipped recipe{known}{hint}"


def _instead_of(name: str, check_name: NameCheck | None) -> str:
    if other := other_yolo(name):
        return f"; {other}"
    near = nearest(name, shipped())
    if check_name is None:
        return f"{near or ';'} for a model, use model.name=NAME"
    task = next((task for task in BUILT_IN if check_name(task, name) is None), "")
    if not task:
        return (
            near
            or "; run `rankless recipes` for the recipes, or `rankless models` for the values of model.name"
        )
    keys = f"{f'task={task} ' if task != Recipe.task else ''}model.name={name}"
    return f"{near or ';'} for the model of this name, use {keys}"


def _tree(recipe: Recipe) -> dict[str, Any]:
    known = leaves(Recipe, Kinds.of(recipe))
    whole = flattened(_RECIPE.dump_python(recipe, mode="json"))
    flat = {path: value for path, value in whole.items() if path in known}
    if flat.get(_CFG) and recipe.model.name == ModelKeys.name:
        del flat[_NAME]  # the cfg describes the network, not the default name
    tree: dict[str, Any] = nested(flat)
    return tree
