"""Options of the user's own classes: ``model.options`` and ``data.options``.

The fields of a dataclass are its options. Their types and limits are checked as those of a recipe's keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from rankless.errors import UserError, nearest, one_of
from rankless.recipe.keys import Key, KeyPath
from rankless.recipe.mistakes import wrong_value


def with_options(own: Any, path: KeyPath, options: Mapping[str, Any], name: str) -> Any:
    """Return an instance of the class ``own`` with these options, the value of the key ``path``.

    Raises:
        UserError: an option is unknown, is missing or has a wrong value. The error calls the class ``name``.
    """
    if problems := [*_wrong_options(own, path, options, name)]:
        raise UserError(problems)
    try:
        return own(**{key: _tuples(value) for key, value in options.items()})
    except ValueError as error:  # from __post_init__
        raise UserError(f"{'.'.join(path)}: {error}") from error


def _wrong_options(own: Any, path: KeyPath, options: Mapping[str, Any], name: str) -> Iterator[str]:
    known = {one.name: one for one in fields(own) if one.init} if is_dataclass(own) else {}
    types = get_type_hints(own, include_extras=True) if known else {}
    dotted = ".".join(path)
    for option in options.keys() - known.keys():
        expected = f"expected {one_of(known)}{nearest(option, known)}" if known else "it has no options"
        yield f"key '{dotted}.{option}': '{name}' has no such option; {expected}"
    for option, one in known.items():
        info = FieldInfo.from_annotated_attribute(types[option], one.default)
        key = Key((*path, option), own, info, ())
        if option not in options:
            if one.default is MISSING and one.default_factory is MISSING:
                yield f"'{dotted}.{option}' is missing; '{name}' requires this option"
            continue
        try:
            key.values.validate_json(json.dumps(options[option]), strict=True)
        except ValidationError:
            yield wrong_value(key, options[option])


def _tuples(value: Any) -> Any:
    """Return tuples instead of lists, so that the options cannot change."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
