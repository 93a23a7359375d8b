"""Recipes recorded in weights files or by earlier versions."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from rankless.errors import UserError
from rankless.files.hub import path_of
from rankless.files.reading import MIB, opened
from rankless.recipe.fields import BUILT_IN_TASKS, given
from rankless.recipe.keys import at
from rankless.recipe.transformers_config import folder_of, recipe_keys
from rankless.runs.directory import weights_of

_LONGEST_HEADER = 100 * MIB  # the limit of safetensors
_OWN = ("pretrained", "freeze", "checkpointing")
"""Keys of ``model`` that describe how it is trained, and are not adopted from pretrained weights."""
_SEEN = ("fit", "resample", "pad")
"""Keys of ``data`` that determine how images are placed on the network's input."""


def recipe_in(path: Path) -> dict[str, Any] | None:
    """Return the recipe in a weights file as a tree of keys and values, unchanged.

    Return None if it cannot be read; loading the file reports the error.
    """
    tree = _in_header(path, "recipe")
    return tree if isinstance(tree, dict) else None


def classes_of(pretrained: str) -> list[str]:
    """Return the class names in the weights of ``model.pretrained``; empty if they cannot be read."""
    try:
        names = _in_header(weights_of(path_of(pretrained), warn=lambda _: None), "class_names")
    except (UserError, OSError, ValueError):
        names = None
    return names if isinstance(names, list) else []


def _in_header(path: Path, key: str) -> Any:
    """Return an entry of a weights file's metadata, or None if it cannot be read."""
    try:
        with opened(path) as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, _LONGEST_HEADER)))
        return json.loads(header["__metadata__"][key])
    except (OSError, struct.error, ValueError, RecursionError, KeyError, TypeError):
        return None


def instruction_set_of(path: Path) -> str:
    """Return the ``cpu_isa`` of the recipe in a weights file, or ``native`` if it has none."""
    return "avx2" if (recipe_in(path) or {}).get("cpu_isa") == "avx2" else "native"


def with_network(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's tree with the network of ``model.pretrained``, unless the tree has its own network.

    The task, the keys of ``model`` and the placement of images on the input come from the weights' recipe;
    values in the tree take precedence. A file without a readable recipe adds nothing; training reports the
    error. Weights of a custom task add nothing, because a file must not decide which code runs.
    """
    model, data = tree.get("model"), tree.get("data", {})
    file = model.get("pretrained") if isinstance(model, Mapping) else None
    if not isinstance(model, Mapping) or not isinstance(file, str) or "name" in model or "cfg" in model:
        return dict(tree)
    if (folder := folder_of(file)) is not None:
        return _with_transformers(tree, model, recipe_keys(folder, "model.pretrained"))
    try:
        theirs = (recipe_in(weights_of(path_of(file), warn=lambda _: None)) if file else None) or {}
    except (UserError, OSError, ValueError):
        theirs = {}
    task = theirs.get("task")
    if task not in BUILT_IN_TASKS or tree.get("task", task) != task:
        return dict(tree)
    model = {**{key: one for key, one in given(theirs.get("model")).items() if key not in _OWN}, **model}
    if isinstance(data, Mapping) or is_dataclass(data):
        data = {**{key: one for key, one in given(theirs.get("data")).items() if key in _SEEN}, **given(data)}
    return {**tree, "task": task, "model": model, "data": data}


def _with_transformers(
    tree: Mapping[str, Any], model: Mapping[str, Any], keys: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a recipe's tree with the network and the preprocessing of a transformers model folder."""
    made = {**tree, "task": "detect", "model": {**keys["model"], **model}}
    for section in ("data", "evaluate"):
        of_tree = tree.get(section, {})
        if isinstance(of_tree, Mapping) or is_dataclass(of_tree):
            made[section] = {**keys[section], **given(of_tree)}
    return made


# Before durations had units, recipes recorded bare numbers for all of these keys; the last three were epochs.
_DURATIONS = (
    ("schedule", "warmup"),
    ("evaluate", "every"),
    ("model", "freeze"),
    ("data", "augment", "close_mosaic"),
)
# A recorded recipe has all of these keys; a recipe written by hand does not.
_RECORDED = (("threads",), ("reduce",), ("seed",), ("checkpoint", "keep"), ("ema", "decay"), *_DURATIONS)


def upgrade(tree: Any) -> Any:
    """Translate a recorded recipe to current keys and values with the same meaning.

    Durations used to be bare numbers, most of them in epochs. Before ``mosaic_min_area`` existed, mosaics
    dropped boxes with less than a quarter of their area left.
    """
    if any(at(tree, path) is None for path in _RECORDED):
        return tree
    augment = dict(tree["data"]["augment"])
    if augment.get("mosaic"):
        augment.setdefault("mosaic_min_area", 0.25)
    tree = {**tree, "data": {**tree["data"], "augment": augment}}
    if all(type(at(tree, path)) is int for path in _DURATIONS):
        for *outer, last in _DURATIONS[1:]:
            section = tree
            for name in outer:
                section[name] = section = dict(section[name])
            if section[last] > 0:
                section[last] = f"{section[last]} epochs"
    return tree
