"""Recipes from Python's keywords: mappings serve as sections, and mistakes are said as of a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rankless.recipe.pretrained import with_network
from rankless.recipe.schema import Recipe
from rankless.recipe.validation import Location, build, collect


def built(keys: Mapping[str, Any]) -> Recipe:
    """Build a recipe of keywords.

    Args:
        keys: values, sections, or mappings of the keys of a section.

    Raises:
        UserError: every problem.
    """
    given, problems = collect(_plain(keys), lambda path: Location("Recipe"))
    return build(with_network(given), problems)


def _plain(value: Any) -> Any:
    """Return sections as mappings of what differs from the defaults, and tuples as lists."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    given = {one.name: (getattr(value, one.name), one) for one in dataclasses.fields(value)}
    return {
        name: _plain(one) for name, (one, field) in given.items() if name == "name" or one != _default(field)
    }


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is dataclasses.MISSING:
        return field.default
    return field.default_factory()
