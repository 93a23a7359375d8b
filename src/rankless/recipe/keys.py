"""The keys of a recipe, collected from its classes, with path, type, default and annotations.

The keys depend on the task and on the kinds of ``model`` and ``loss``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from itertools import islice
from typing import Annotated, Any, NamedTuple

from pydantic import Field, TypeAdapter
from pydantic.dataclasses import is_pydantic_dataclass

from rankless.recipe.fields import SCORING, Only, Reads, get, given, is_task, similar_task
from rankless.recipe.loss_kinds import LOSSES, LossKeys, loss_kind
from rankless.recipe.model_kinds import MODELS, ModelKeys, losses_of, model_kind
from rankless.task_kinds import BUILT_IN, DEFAULT

KeyPath = tuple[str, ...]
"""Keys from the outermost to the innermost: ``("optim", "lr")``."""

Flat = dict[KeyPath, Any]
"""The values of a recipe by path."""

MOST_KEYS = 1000
_DEEPEST = 20

KINDS: Mapping[str, Mapping[str, type[ModelKeys] | type[LossKeys]]] = {"model": MODELS, "loss": LOSSES}
"""Maps the sections ``model`` and ``loss`` to their classes, keyed by tag."""

OPEN: tuple[KeyPath, ...] = (("model", "options"), ("data", "options"))
"""The keys whose value is a mapping with keys that the user's own class defines."""

SHORTHANDS: Mapping[KeyPath, str] = {
    ("data", "augment"): "preset",
    ("model", "involution"): "kernel",
    ("model", "densenet", "separable"): "dilation",
}
"""For each section that may be given as a single value, the key that the value sets."""


class Kinds(NamedTuple):
    """The task and the tags of model and loss, which determine the keys of a recipe."""

    task: str
    model: str
    loss: str

    @classmethod
    def of(cls, recipe: Any) -> Kinds:
        """Return the kinds of a recipe (an instance or a mapping).

        A misspelled task counts as the task with a similar name. A loss that the model does not support
        counts as the model's published one.
        """
        model, loss = get(recipe, "model", {}), loss_kind(get(recipe, "loss", {}))
        known = losses_of(model)
        task = str(get(recipe, "task", DEFAULT))
        task = task if is_task(task) else similar_task(task) or task
        return cls(task, model_kind(model), loss if loss in known else known[0])


@dataclass(frozen=True, eq=False)
class Key:
    """A recipe key that has a value and is not a section."""

    path: KeyPath  # path from the recipe's root
    section: type
    field: Any  # pydantic's field: type, limits, default
    declared: tuple[Any, ...]  # annotations of the key and of its sections, such as :class:`Only`

    @property
    def default(self) -> Any:
        return self.field.get_default(call_default_factory=True)

    @property
    def conditions(self) -> list[Only]:
        """Conditions on other keys that must hold for this key to have an effect."""
        return [one for one in self.declared if isinstance(one, Only)]

    @property
    def tasks(self) -> tuple[str | int, ...]:
        """The names of the built-in tasks that read the key."""
        return next((one.values for one in self.conditions if one.key == "task"), BUILT_IN)

    @property
    def reads(self) -> Reads:
        """The tasks that read the key after training."""
        return next((one for one in self.declared if isinstance(one, Reads)), SCORING)

    @property
    def values(self) -> TypeAdapter[Any]:
        """The type of the key's values."""
        about = Field(description=self.field.description)
        kind: Any = Annotated[self.field.annotation, *self.field.metadata, about]
        return TypeAdapter(kind)


@cache
def leaves(recipe: type, kinds: Kinds | None = None) -> dict[KeyPath, Key]:
    """Map the path of every key with a value to its :class:`Key`, in the recipe's order.

    With ``kinds``, return only the keys of recipes of these kinds. By default, return the keys of all kinds,
    each as declared by the first kind that has it.
    """
    found: dict[KeyPath, Key] = {}
    for path, one in _walk(recipe, (), kinds, ()):
        if isinstance(one, Key) and not (kinds and kinds.task in BUILT_IN and kinds.task not in one.tasks):
            found.setdefault(path, one)
    return found


@cache
def sections(recipe: type, kinds: Kinds | None = None) -> dict[KeyPath, tuple[str, ...]]:
    """Map every section's path to its keys; the recipe itself has the path ``()``."""
    walked = [*_walk(recipe, (), kinds, ())]
    outer = [path for path, one in walked if not isinstance(one, Key)]
    return {path: tuple(dict.fromkeys(p[-1] for p, _ in walked if p and p[:-1] == path)) for path in outer}


def classes(recipe: type) -> list[type]:
    """List the recipe's class and the classes of its sections, for all kinds."""
    return list(dict.fromkeys(one for _, one in _walk(recipe, (), None, ()) if not isinstance(one, Key)))


def _walk(
    section: type, at: KeyPath, kinds: Kinds | None, declared: tuple[Any, ...]
) -> Iterator[tuple[KeyPath, Any]]:
    """Yield each section's path and class, and each key's path and :class:`Key`."""
    yield at, section
    for name, field in section.__pydantic_fields__.items():  # type: ignore[attr-defined]
        path, own = (*at, name), (*field.metadata, *declared)
        inner: list[Any] = [field.annotation] if is_pydantic_dataclass(field.annotation) else []
        if name in KINDS and not at:
            inner = [one for tag, one in KINDS[name].items() if not kinds or tag == getattr(kinds, name)]
        for one in inner:
            yield from _walk(one, path, kinds, own)
        if not inner:
            yield path, Key(path, section, field, own)


def at(tree: Any, path: KeyPath, default: Any = None) -> Any:
    """Return the value at a path in nested sections (mappings or instances)."""
    for name in path:
        tree = get(tree, name, default)
        if tree is default:
            break
    return tree


def flattened(tree: Any) -> Flat:
    """Return the values in nested sections by path, at most ``MOST_KEYS + 1`` of them.

    The limit is needed because YAML anchors can make a tree endless. A section that is empty or has only
    default values counts as a value. A shorthand (:data:`SHORTHANDS`) becomes the key that it sets.
    """
    return dict(islice(_values(tree, ()), MOST_KEYS + 1))


def _values(tree: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    section: Mapping[Any, Any] = {}
    if path in OPEN:
        yield path, tree
        return
    if isinstance(tree, Mapping) and len(path) < _DEEPEST:
        section = tree
    elif is_dataclass(tree) and not isinstance(tree, type):
        section = given(tree)
    elif path in SHORTHANDS and tree is not None and not isinstance(tree, list):
        key = SHORTHANDS[path]
        section = {key: int(tree) if key == "dilation" and isinstance(tree, bool) else tree}
    if not section and (path or tree != {}):
        yield path, tree
    for name, value in section.items():
        text = str(name).encode("utf-8", "backslashreplace").decode()  # escapes lone surrogates
        yield from _values(value, (*path, text))


def nested(flat: Flat) -> Any:
    """Return nested mappings with these values, the reverse of :func:`flattened`."""
    if () in flat:
        return flat[()]
    tree: Any = {}
    for (*outer, last), value in flat.items():
        section = tree
        for name in outer:
            section = section.setdefault(name, {})
        if value == {}:
            section.setdefault(last, {})
        else:
            section[last] = value
    return tree
