"""The recipe's JSON Schema for editors, with the documentation of every key."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
from typing import Any

from pydantic import TypeAdapter

from rankless.recipe.fields import Only
from rankless.recipe.keys import KINDS, SHORTHANDS, classes
from rankless.recipe.loss_kinds import LOSSES
from rankless.recipe.model_kinds import ModelKeys
from rankless.recipe.schema import Recipe


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12); a key's description is the docstring below its field."""
    whole = TypeAdapter(Recipe).json_schema()
    known = {one.__name__: one for one in classes(Recipe)}
    for definition in (whole, *whole["$defs"].values()):
        kind = known[definition["title"]]
        definition["description"], described = inspect.cleandoc(kind.__doc__ or ""), descriptions(kind)
        for name, key in definition["properties"].items():
            key.pop("title", None)
            if name in described:
                key["description"] = described[name]
            for only in kind.__pydantic_fields__[name].metadata:  # type: ignore[attr-defined]
                if isinstance(only, Only) and only.key == "task":
                    key["x-task"] = " or ".join(map(str, only.values))
        if issubclass(kind, ModelKeys) and kind.pattern:
            definition["properties"]["name"]["pattern"] = kind.pattern
            definition["required"] = [] if re.search(kind.pattern, ModelKeys.name) else ["name"]
    sections = whole["properties"]
    for name in KINDS:  # a loss without a name may have any kind
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


def descriptions(section: type) -> dict[str, str]:
    """Return the docstrings below the fields of a section's class and of its bases, by key."""
    found: dict[str, str] = {}
    for one in reversed(section.__mro__):
        try:
            (body,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
        except (OSError, TypeError):  # AutoLoss, or a class of Python itself
            continue
        for field, text in itertools.pairwise(body.body):  # type: ignore[attr-defined]
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                found[field.target.id] = " ".join(ast.literal_eval(text.value).split())  # type: ignore[union-attr]
    if section.__name__ == "AutoLoss":
        found |= {
            key: text
            for one in LOSSES.values()
            if one is not section
            for key, text in descriptions(one).items()
        }
    return found
