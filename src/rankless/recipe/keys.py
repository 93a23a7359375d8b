"""The keys of a recipe, collected from its classes, with path, type, default and annotations.

The keys depend on the task and on the kinds of ``model`` and ``loss``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import Field, TypeAdapter
from pydantic.dataclasses import is_pydantic_dataclass

from rankless.recipe.fields import BUILT_IN_TASKS, FREE, SCORING, Only, Reads, get
from rankless.recipe.loss_kinds import LOSSES, LossKeys, loss_kind
from rankless.recipe.model_kinds import MODELS, ModelKeys, losses_of, model_kind

KeyPath = tuple[str, ...]
"""Keys from the outermost to the innermost: ``("optim", "lr")``."""

KINDS: Mapping[str, Mapping[str, type[ModelKeys] | type[LossKeys]]] = {"model": MODELS, "loss": LOSSES}
"""Maps the sections ``model`` and ``loss`` to their classes, keyed by tag."""

SHORTHANDS: Mapping[KeyPath, str] = {
    ("data", "augment"): "preset",
    ("model", "involution"): "kernel",
    ("model", "densenet", "separable"): "dilation",
}
"""Maps each section that may be given as a single value to the key that the value sets."""

_Mark = TypeVar("_Mark", Only, Reads)


class Kinds(NamedTuple):
    """The task and the tags of model and loss, which determine the keys of a recipe."""

    task: str
    model: str
    loss: str

    @classmethod
    def of(cls, task: Any, model: Any, loss: Any) -> Kinds:
        """Return the kinds of these sections, which are instances or mappings.

        A loss that the model does not support counts as the model's published one.
        """
        known = losses_of(model)
        return cls(str(task), model_kind(model), name if (name := loss_kind(loss)) in known else known[0])


@dataclass(frozen=True, eq=False)
class Key:
    """A recipe key with a value, that is, not a section.

    Attributes:
        path: path from the recipe's root.
        section: the class that declares the key.
        field: pydantic's field: type, limits, default.
        declared: annotations of the key and of its sections, such as :class:`Only`.
    """

    path: KeyPath
    section: type
    field: Any
    declared: tuple[Any, ...]

    @property
    def default(self) -> Any:
        """The value of the key if the recipe omits it."""
        return self.field.default

    @property
    def is_free(self) -> bool:
        """Whether the key may change when a run is resumed."""
        return FREE in self.declared

    @property
    def conditions(self) -> list[Only]:
        """Conditions on other keys that must hold for this key to have an effect."""
        return [one for one in self.declared if isinstance(one, Only)]

    @property
    def task(self) -> str:
        """The name of the only built-in task that reads the key, or an empty string if both do."""
        return next((str(one.values[0]) for one in self.conditions if one.key == "task"), "")

    @property
    def reads(self) -> Reads:
        """The tasks that read the key after training."""
        return next((one for one in self.declared if isinstance(one, Reads)), SCORING)

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the key's values."""
        about = Field(description=self.field.description)
        kind: Any = Annotated[self.field.annotation, *self.field.metadata, about]
        return TypeAdapter(kind).json_schema()


@cache
def leaves(recipe: type, kinds: Kinds | None = None) -> dict[KeyPath, Key]:
    """Map the path of every key with a value to its :class:`Key`, in the recipe's order.

    With ``kinds``, return only the keys of recipes of these kinds; by default, the keys of all kinds, as
    declared by the first kind that has the key.
    """
    found: dict[KeyPath, Key] = {}
    for path, one in _walk(recipe, (), kinds, ()):
        if isinstance(one, Key) and not (
            kinds and one.task and kinds.task in BUILT_IN_TASKS and kinds.task != one.task
        ):
            found.setdefault(path, one)
    return found


@cache
def sections(recipe: type) -> dict[KeyPath, tuple[str, ...]]:
    """Map every section's path to its keys in all kinds; the recipe itself has the path ``()``."""
    walked = [*_walk(recipe, (), None, ())]
    outer = [path for path, one in walked if not isinstance(one, Key)]
    return {path: tuple(dict.fromkeys(p[-1] for p, _ in walked if p and p[:-1] == path)) for path in outer}


def classes(recipe: type) -> list[type]:
    """List the recipe's class and the classes of its sections in all kinds."""
    return list(dict.fromkeys(one for _, one in _walk(recipe, (), None, ()) if not isinstance(one, Key)))


def _walk(
    section: type, at: KeyPath, kinds: Kinds | None, declared: tuple[Any, ...]
) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the path and class of every section, and the path and :class:`Key` of every key, in each kind."""
    yield at, section
    for name, field in section.__pydantic_fields__.items():  # type: ignore[attr-defined]
        path, beside = (*at, name), (*field.metadata, *declared)
        if name in KINDS and not at:
            classes: list[Any] = [
                one for tag, one in KINDS[name].items() if not kinds or tag == getattr(kinds, name)
            ]
        else:
            classes = [field.annotation] if is_pydantic_dataclass(field.annotation) else []
        for one in classes:
            yield from _walk(one, path, kinds, beside)
        if not classes:
            yield path, Key(path, section, field, beside)


def at(tree: Any, path: KeyPath, default: Any = None) -> Any:
    """Return the value at a path in nested sections, which are mappings or instances."""
    for name in path:
        tree = get(tree, name, default)
        if tree is default:
            break
    return tree
