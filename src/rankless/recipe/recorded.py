"""Recipes recorded in weights files or by earlier versions."""

from __future__ import annotations

import json
import re
import shlex
import struct
from pathlib import Path
from typing import Any

from rankless.errors import UserError, printable
from rankless.files.hub import path_of
from rankless.files.reading import MIB, opened
from rankless.recipe.keys import Flat, flattened
from rankless.recipe.model_kinds import FamilyModel
from rankless.recipe.transformers_config import folder_of, recipe_keys
from rankless.runs.directory import weights_of
from rankless.task_kinds import BUILT_IN, DETECT

_LONGEST_HEADER = 100 * MIB  # the limit of safetensors
_OWN = ("pretrained", "freeze", "checkpointing")
"""Keys of ``model`` that affect only the training and are not taken from pretrained weights."""
_SEEN = (("data", "fit"), ("data", "resample"), ("data", "pad"))
"""Keys that determine how images are placed on the network's input."""


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


def with_network(flat: Flat) -> Flat:
    """Return a recipe's values with the network of ``model.pretrained``, unless the recipe has its own.

    The task, the keys of ``model`` and the placement of images on the input come from the weights' recipe;
    the recipe's own values take precedence. A file without a readable recipe adds nothing; training reports
    the error. Weights of a custom task add nothing, because a file must not decide which code runs.
    """
    file = flat.get(("model", "pretrained"))
    if not file or not isinstance(file, str) or ("model", "name") in flat or ("model", "cfg") in flat:
        return flat
    if (folder := folder_of(file)) is not None:
        theirs = flattened(recipe_keys(folder, "model.pretrained"))
        return {**theirs, **flat, ("task",): DETECT.name}
    try:
        theirs = flattened(recipe_in(weights_of(path_of(file), warn=lambda _: None)) or {})
    except (UserError, OSError, ValueError):
        theirs = {}
    task = theirs.get(("task",))
    if task not in BUILT_IN or flat.get(("task",), task) != task:
        return flat
    name = theirs.get(("model", "name"))
    if isinstance(name, str) and re.search(FamilyModel.pattern, name) and not theirs.get(("model", "cfg")):
        raise UserError(
            f"model.pretrained is '{file}', which names the detector family '{printable(name)}'; if you "
            f"trust its code, add model.name={shlex.quote(printable(name))}"
        )
    network = {
        path: value
        for path, value in theirs.items()
        if path[:2] in _SEEN or (path[:1] == ("model",) and len(path) > 1 and path[1] not in _OWN)
    }
    return {**network, **flat, ("task",): task}


# Before durations had units, recipes recorded bare numbers for all of these keys; the last three were epochs.
_DURATIONS = (
    ("schedule", "warmup"),
    ("evaluate", "every"),
    ("model", "freeze"),
    ("data", "augment", "close_mosaic"),
)
# A recorded recipe has all of these keys; a recipe written by hand does not.
_RECORDED = (("threads",), ("reduce",), ("seed",), ("checkpoint", "keep"), ("ema", "decay"), *_DURATIONS)


def upgrade(flat: Flat) -> Flat:
    """Translate a recorded recipe to current keys and values with the same meaning.

    Durations used to be bare numbers, most of them in epochs. Before ``mosaic_min_area`` existed, mosaics
    dropped boxes that kept less than a quarter of their area.
    """
    if any(flat.get(path) is None for path in _RECORDED):
        return flat
    flat = dict(flat)
    if flat.get(("data", "augment", "mosaic")):
        flat.setdefault(("data", "augment", "mosaic_min_area"), 0.25)
    if all(type(flat[path]) is int for path in _DURATIONS):
        flat |= {path: f"{flat[path]} epochs" for path in _DURATIONS[1:] if flat[path] > 0}
    return flat
