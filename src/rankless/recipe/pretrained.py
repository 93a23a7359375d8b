"""The network of the weights that a recipe starts from, where it names none itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rankless.errors import UserError
from rankless.recipe.keys import KeyPath
from rankless.recipe.recorded import recipe_in
from rankless.recipe.schema import BUILT_IN_TASKS
from rankless.recipe.validation import Given, Location, collect
from rankless.runs.directory import weights_of

_TASK, _PRETRAINED = ("task",), ("model", "pretrained")
_NETWORK = (("model", "name"), ("model", "cfg"))
_OWN = (_PRETRAINED, ("model", "freeze"), ("model", "checkpointing"))
"""What a recipe says about its own training, whatever the weights were trained with."""
_SEEN = (("data", "fit"), ("data", "resample"), ("data", "pad"))
"""How the network was shown its images."""


def with_network(given: Mapping[KeyPath, Given]) -> dict[KeyPath, Given]:
    """Add the network in the weights file that ``model.pretrained`` names, unless one is given.

    It is the task and the keys of ``model`` that the weights were trained with, and how images were brought
    onto the input; what is given wins. A file that cannot be read, or that holds no recipe, adds nothing: the
    training reports what is wrong with it. Nor does one of a task that is not built in, because nothing in a
    file decides what code runs.

    Args:
        given: values by the path of their key.
    """
    named = given.get(_PRETRAINED)
    if named is None or not isinstance(named.value, str) or any(path in given for path in _NETWORK):
        return dict(given)
    try:
        tree = recipe_in(weights_of(Path(named.value), warn=lambda _: None)) if named.value else None
    except (UserError, OSError, ValueError):
        tree = None
    theirs, _ = collect(tree or {}, lambda path: Location(f"{named.value}: the recipe inside"))
    task = theirs.get(_TASK)
    if task is None or task.value not in BUILT_IN_TASKS or given.get(_TASK, task).value != task.value:
        return dict(given)
    taken = {
        path: one
        for path, one in theirs.items()
        if path in (_TASK, *_SEEN) or (path[0] == "model" and path not in _OWN)
    }
    return {**taken, **given}
