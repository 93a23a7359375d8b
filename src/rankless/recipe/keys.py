"""Messages about the keys of a recipe: which exist, which one was meant, what a value should be.

Everything is derived from the recipe's JSON Schema, so the types of the sections are the only source.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, cast

from pydantic import TypeAdapter

from rankless.errors import nearest, one_of, similar
from rankless.recipe.familiar import ELSEWHERE, PUBLISHED, VALUES, answer
from rankless.recipe.kinds import KINDS, foreign, losses_of
from rankless.recipe.loss_kinds import loss_kind
from rankless.recipe.model_kinds import model_kind
from rankless.recipe.schema import BUILT_IN_TASKS, Recipe

_FAR = 10_000
"""A maximum from here on is only a guard, and is not part of what a key expects."""

KeyPath = tuple[str, ...]
"""Keys from the outside in: ``("optim", "lr")``."""

adapter = TypeAdapter(Recipe)


class Kinds(NamedTuple):
    """What determines the keys of a recipe: its task, and the tags of its model and its loss."""

    task: str
    model: str
    loss: str

    @classmethod
    def of(cls, task: Any, model: Any, loss: Any) -> Kinds:
        """Return the kinds of these sections (instances or mappings); a loss that does not fit is auto."""
        known = losses_of(model)
        return cls(str(task), model_kind(model), name if (name := loss_kind(loss)) in known else known[0])


@cache
def leaves(kinds: Kinds | None = None) -> dict[KeyPath, dict[str, Any]]:
    """Map the path of every key that holds a value to its JSON Schema, in the recipe's order.

    Args:
        kinds: return only the keys of recipes of these kinds; by default those of all kinds, each as in the
            first kind that has it.
    """
    schemas: dict[KeyPath, dict[str, Any]] = {}
    for path, schema in _walk(kinds):
        if "properties" not in schema:
            schemas.setdefault(path, schema)
    return schemas


@cache
def sections() -> dict[KeyPath, tuple[str, ...]]:
    """Map the path of every section to its keys, of all kinds; the recipe itself is ``()``."""
    every = [path for path, _ in _walk(None)]
    outer = [path for path, schema in _walk(None) if "properties" in schema]
    return {path: tuple(dict.fromkeys(p[-1] for p in every if p and p[:-1] == path)) for path in outer}


def no_effect(path: KeyPath, kinds: Kinds, model: str) -> str:
    """Write the message about a key that only recipes of other kinds have.

    Args:
        path: of the key.
        kinds: of the recipe.
        model: its model's name.
    """
    if path[0] in KINDS:
        return foreign(path[0], ".".join(path[1:]), kinds.model if path[0] == "model" else kinds.loss, model)
    other = leaves()[path]["x-task"]
    return f"key '{'.'.join(path)}': it has an effect only with task '{other}', and task is '{kinds.task}'"


def shown(value: Any) -> str:
    """Write a value as a user would, shortened to a readable length."""
    if value is None:
        return "empty"
    if isinstance(value, Mapping):
        return "a section" if value else "an empty section"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        # A list inside a list is not examined: anchors can make it endless.
        items = ["[…]" if isinstance(item, list) else shown(item) for item in value[:8]]
        text = f"[{', '.join(items)}{', …' * (len(value) > 8)}]"
    else:
        text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


def instead_of(path: KeyPath) -> str:
    """Suggest what to write for a key that does not exist, as the end of a sentence."""
    every = [*leaves(), *(section for section in sections() if section)]
    dotted, names = ".".join(path), [".".join(other) for other in every]
    if dotted in names:
        *outer, last = dotted.split(".")
        return (
            f": dots are for the command line; in a file write '{last}:' indented under '{'.'.join(outer)}:'"
        )
    # The last word decides: with their section before them, all keys of a section resemble each other.
    beside = [other[-1] for other in every if other[:-1] == path[:-1]]
    lasts = [other[-1] for other in every]
    if path[-1] not in lasts and path[-1].lower() in ELSEWHERE:
        return f"; {answer(ELSEWHERE[path[-1].lower()])}"
    meant = [path[-1]] if path[-1] in lasts else similar(path[-1], beside) or similar(path[-1], lasts)
    if same := [".".join(other) for other in every if other[-1] in meant]:
        return f"; did you mean '{difflib.get_close_matches(dotted, same, n=1, cutoff=0)[0]}'?"
    here = path[:-1] if path[:-1] in sections() else ()
    return f"; expected {one_of(sections()[here])}"


def expected(schema: Mapping[str, Any]) -> str:
    """Describe a JSON Schema: ``a whole number of at least 1``."""
    if "anyOf" in schema:
        return ", or ".join(expected(option) for option in schema["anyOf"])
    words = _words(schema)
    if words:
        return one_of(words) if len(words) > 1 else f"'{words[0]}'"
    kind = schema["type"]
    if kind == "array":
        items = schema.get("prefixItems")
        count = f"a list of {len(items)}" if items else "a list"
        return f"{count}, each {expected(items[0] if items else schema['items'])}"
    if kind in ("integer", "number"):
        return _number(schema)
    if kind == "boolean":
        return "true or false"
    described: str = schema.get("description", "text that is not empty")
    return described


def mistake(path: KeyPath, value: Any, kinds: Kinds | None = None) -> str:
    """Report a wrong value of a key, what was expected and the nearest valid value."""
    schema = leaves(kinds)[path]
    what = f"'{'.'.join(path)}' is {shown(value)}: expected {expected(schema)}{_too_large(value, schema)}"
    if path == ("model", "anchors") and (pairs := _flat_pairs(value)):
        return f"'model.anchors' has a list for each head: expected one list, smallest first: {pairs}"
    if value is None:
        return f"{what}; leave the key out for the default, {shown(schema['default'])}"
    if path == ("model", "pretrained"):
        return f"{what}: a run or a weights file; {PUBLISHED}"
    if isinstance(value, str):
        if known := VALUES.get((".".join(path), value)):
            return f"{what}; {known}"
        words = [word for option in _options(schema) for word in _words(option)]
        return what + (nearest(value, words) or _unquoted(value, schema))
    return what


@cache
def _schema() -> dict[str, Any]:
    """The whole JSON Schema, whose making takes longer than everything else about a recipe."""
    return adapter.json_schema()


def _walk(kinds: Kinds | None) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    """Yield path and JSON Schema of every key and section of the kinds, once for each kind that has it."""
    whole = _schema()

    def walk(path: KeyPath, schema: dict[str, Any]) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
        if "oneOf" in schema:
            classes = KINDS[path[0]].items()
            chosen = {one.__name__ for tag, one in classes if not kinds or tag == getattr(kinds, path[0])}
            names = (option["$ref"].rpartition("/")[2] for option in schema["oneOf"])
            for name in names:
                if name in chosen:
                    yield from walk(path, whole["$defs"][name])
            return
        schema = whole["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        yield path, schema
        for name, inner in schema.get("properties", {}).items():
            task = inner.get("x-task")
            if not (kinds and task and kinds.task in BUILT_IN_TASKS and kinds.task != task):
                yield from walk((*path, name), inner)

    return walk((), whole)


def _flat_pairs(value: Any) -> str:
    """Write anchors that are grouped by head, [[[w, h], …], …], as one list; empty if they are not."""
    try:
        pairs = [(float(width), float(height)) for head in value for width, height in head]
    except (TypeError, ValueError):
        return ""
    pairs.sort(key=math.prod)
    return "[" + ", ".join(f"[{width:g}, {height:g}]" for width, height in pairs[:100]) + "]"


def _options(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    options: list[Mapping[str, Any]] = schema.get("anyOf", [schema])
    return options


def _words(schema: Mapping[str, Any]) -> list[str]:
    return [str(word) for word in schema.get("enum", [])] or ([schema["const"]] if "const" in schema else [])


def _number(schema: Mapping[str, Any]) -> str:
    least, most = schema.get("minimum"), _most(schema)
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    most = None if most is not None and most >= _FAR else most  # mentioned only when a number exceeds it
    kind = "a whole number" if schema["type"] == "integer" else "a number"
    if least is not None and most is not None:
        return f"{kind} from {least} to {most:,}"
    if least is not None and below is not None:
        return f"{kind} of at least {least} and below {below}"
    if least is not None:
        return f"{kind} of at least {least}"
    if above is None:
        return kind
    return f"{kind} above {above}" + (f" and at most {most:,}" if most is not None else "")


def _most(schema: Mapping[str, Any]) -> float | None:
    return cast("float | None", schema.get("maximum"))


def _too_large(value: Any, schema: Mapping[str, Any]) -> str:
    """Name the large limit that a number exceeds; it is not mentioned otherwise."""
    options = _options(schema)
    items = [one.get("items") or (one.get("prefixItems") or [one])[0] for one in options]
    limits = [most for one in (*items, *options) if (most := _most(one)) is not None and most >= _FAR]
    numbers = value if isinstance(value, list) else [value]
    given = [one for one in numbers if isinstance(one, int | float) and not isinstance(one, bool)]
    if not limits or not any(max(limits) < one < math.inf for one in given):
        return ""
    return f", and at most {max(limits):,.0f}"


def _unquoted(text: str, schema: Mapping[str, Any]) -> str:
    """Hint that a number is text because of quotes or underscores."""
    if not any(option.get("type") in ("integer", "number") for option in _options(schema)):
        return ""
    try:
        float(text)
    except ValueError:
        return ""
    return f"; write {text.replace('_', '')} without quotes"
