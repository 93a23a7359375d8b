"""Completion candidates: recipes, recipe keys and their choices, models and runs.

Keys, choices and models come from the JSON Schema, which loads faster than the modules that define them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyclopts.completion._engine import CompletionContext

Candidates = Iterator[tuple[str, str]]


def by_name(context: CompletionContext) -> Candidates:
    """Yield completions, with descriptions, for the current argument, given its name in ``--help``."""
    name, word = " ".join(context.argument.names), context.incomplete
    if re.search(r"\bRECIPE\b", name) and all("=" in one.value for one in context.argument.tokens):
        yield from recipes(context)
        yield from ((str(file), "") for file in _files() if file.suffix in (".yaml", ".yml"))
    if "KEY=VALUE" in name:
        yield from keys(word)
    is_run = re.search(r"\bRUN\b|\bTARGET\b|^--run$", name)
    if is_run and "/" not in word:  # the shell completes a path with a slash
        yield from ((str(path), "") for path in _files() if (path / "recipe.yaml").is_file())


def recipes(_: CompletionContext) -> Candidates:
    """Yield the names of the shipped recipes, with their descriptions."""
    from rankless.recipe.installed import shipped

    yield from shipped().items()


def models(_: CompletionContext) -> Candidates:
    """Yield the names of the models, with their descriptions."""
    yield from ((word.partition("=")[2], text) for word, text in keys("model.name="))


def _files() -> Iterator[Path]:
    for folder in (Path(), Path("runs")):
        if folder.is_dir():
            yield from sorted(folder.iterdir())


def keys(word: str) -> Iterator[tuple[str, str]]:
    """Yield recipe keys that start with ``word``, or the values of a key if ``word`` is ``key=…``."""
    from rankless.recipe.installed import schema_text

    whole = json.loads(schema_text())
    key, equals, _ = word.partition("=")
    *outer, last = key.split(".")
    nodes = list(_resolved(whole, whole))
    for name in [*outer, last] if equals else outer:
        nodes = [
            one
            for node in nodes
            if name in node.get("properties", {})
            for one in _resolved(node["properties"][name], whole)
        ]
    if equals:
        choices = dict.fromkeys(choice for node in nodes for choice in _choices(node))
        yield from ((f"{key}={choice}", "") for choice in choices)
        return
    before = "".join(f"{name}." for name in outer)
    for node in nodes:
        for name, about in node.get("properties", {}).items():
            inner = list(_resolved(about, whole))
            text = about.get("description") or next((one.get("description", "") for one in inner), "")
            text = text.replace("``", "")
            if any("properties" in one for one in inner):
                yield f"{before}{name}.", text
            if any("properties" not in one for one in inner):
                yield f"{before}{name}=", text


def _resolved(node: Mapping[str, Any], whole: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if "$ref" in node:
        yield from _resolved(whole["$defs"][node["$ref"].rpartition("/")[2]], whole)
    elif options := node.get("anyOf") or node.get("oneOf"):
        for one in options:
            yield from _resolved(one, whole)
    else:
        yield node


def _choices(node: Mapping[str, Any]) -> list[str]:
    values = node.get("enum") or node.get("examples") or ([node["const"]] if "const" in node else [])
    if node.get("type") == "boolean":
        values = [True, False]
    return [json.dumps(one) if not isinstance(one, str) else one for one in values]
