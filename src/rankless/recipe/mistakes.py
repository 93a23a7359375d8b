"""Messages about wrong keys and values, with suggestions of valid ones."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from rankless.errors import nearest, one_of, similar
from rankless.recipe.familiar import (
    BATCH,
    ELSEWHERE,
    PUBLISHED,
    SECTIONS,
    VALUES,
    answer,
    imported,
    key_of_file,
)
from rankless.recipe.keys import KINDS, Key, KeyPath, Kinds, leaves, sections
from rankless.recipe.model_kinds import MODELS

_FAR = 10_000
"""Maximums of at least this value are only guards; messages mention them only if a value exceeds them."""


def unknown_key(recipe: type, path: KeyPath, kinds: Kinds, model: str) -> str:
    """Return the message about a key that does not exist, or does not exist in recipes of these kinds."""
    dotted = ".".join(path)
    if path not in leaves(recipe) and path not in sections(recipe):
        return f"key '{dotted}': no such key{_instead_of(recipe, path)}"
    if path in leaves(recipe) and path[0] not in KINDS:
        others = " or ".join(map(repr, leaves(recipe)[path].tasks))
        return f"key '{dotted}': it has an effect only with task {others}, but the task is '{kinds.task}'"
    having = [
        tag
        for tag, one in KINDS[path[0]].items()
        if path[1] in one.__pydantic_fields__ and tag not in ("custom", "auto")  # type: ignore[union-attr]
    ]
    if path[0] == "loss":
        who = f"only the loss {having[0]} has it"
        if len(having) > 1:
            who = f"only the losses {_listed(having, 'and')} have it"
        return f"key '{dotted}': {who}; this model's loss is {kinds.loss}"
    who = f"only {_listed([MODELS[tag].label for tag in having], 'or')} has it"
    return f"key '{dotted}': {who}; '{model}' is {MODELS[kinds.model].label}"


def not_a_section(recipe: type, path: KeyPath, value: Any) -> str:
    """Return the message about a plain value where a section is expected."""
    dotted, keys = ".".join(path), sections(recipe)[path]
    what = (
        f"'{dotted}' is {shown(value)}: expected a section"
        if path
        else f"this recipe is {shown(value)}: expected a mapping"
    )
    what = f"{what} with any of the keys {', '.join(keys)}"
    if dotted not in SECTIONS or not isinstance(value, str | int | float):
        return what
    key, note = f"{dotted}.{SECTIONS[dotted]}", ""
    if dotted == "model":
        key, note = key_of_file(str(value), key), imported(str(value))[1]
    counts = f", {BATCH}" if dotted == "batch" else ""
    return f"{what}; did you mean '{key}'{counts}?{f' {note}' if note else ''}"


def wrong_value(key: Key, value: Any, size: Any = "default") -> str:
    """Return the message about a wrong value, with the expected values and the nearest valid one.

    ``size`` is the value of ``model.image_size``, for anchors that are fractions of the image.
    """
    schema, dotted = key.values.json_schema(), ".".join(key.path)
    what = f"'{dotted}' is {shown(value)}: expected {expected(schema)}{_too_large(value, schema)}"
    if dotted == "model.anchors" and (pairs := _flat_pairs(value)):
        text, sides = ascending_anchors(pairs, size)
        unit = f", in pixels of an input of {sides}" if sides else ""
        return f"'model.anchors' has a list for each head: expected one list, smallest first{unit}: {text}"
    if value is None:
        return f"{what}; remove the key to use the default, {shown(key.default)}"
    if dotted == "model.pretrained":
        return f"{what}: a run or a weights file; {PUBLISHED}"
    if isinstance(value, str):
        if known := VALUES.get((dotted, value)):
            return f"{what}; {known}"
        words = [word for option in _options(schema) for word in _words(option)]
        return what + (nearest(value, words) or _unquoted(value, schema))
    return what


def shown(value: Any) -> str:
    """Return a value as a user would write it, shortened to a readable length."""
    if value is None:
        return "empty"
    if isinstance(value, Mapping):
        return "a section" if value else "an empty section"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        # A list inside a list is not examined: anchors can make it endless.
        items = ["[…]" if isinstance(item, list | tuple) else shown(item) for item in value[:8]]
        text = f"[{', '.join(items)}{', …' * (len(value) > 8)}]"
    else:
        text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


def expected(schema: Mapping[str, Any]) -> str:
    """Return a description of a JSON Schema, such as ``a whole number of at least 1``."""
    if "anyOf" in schema:
        return ", or ".join(expected(option) for option in schema["anyOf"])
    words = _words(schema)
    if words:
        return one_of(words) if len(words) > 1 else f"'{words[0]}'"
    kind = schema["type"]
    if kind == "array":
        items = schema.get("prefixItems")
        which = "a list" if not items else "a pair" if len(items) == 2 else f"a list of {len(items)} items"
        item = expected(items[0] if items else schema["items"])
        plural = re.sub(r"^(?:a )?(whole number|number|pair|text)(?! that)\b", r"\1s", item)
        is_plain = plural != item and ", or " not in item
        return f"{which} of {plural}" if is_plain else f"{which} in which each item is {item}"
    if kind in ("integer", "number"):
        return _number(schema)
    if kind == "boolean":
        return "true or false"
    described: str = schema.get("description", "text that is not empty")
    return described


def _instead_of(recipe: type, path: KeyPath) -> str:
    every = [*leaves(recipe), *(section for section in sections(recipe) if section)]
    dotted, names = ".".join(path), [".".join(other) for other in every]
    if dotted in names:
        *outer, last = dotted.split(".")
        return (
            f": dots are for the command line; in a file, write '{last}:' indented under '{'.'.join(outer)}:'"
        )
    # Only the last part is compared, because all keys of a section share the section's name.
    beside = [other[-1] for other in every if other[:-1] == path[:-1]]
    lasts = [other[-1] for other in every]
    if path[-1] not in lasts and path[-1].lower() in ELSEWHERE:
        return f"; {answer(ELSEWHERE[path[-1].lower()])}"
    meant = [path[-1]] if path[-1] in lasts else similar(path[-1], beside) or similar(path[-1], lasts)
    if same := [".".join(other) for other in every if other[-1] in meant]:
        return f"; did you mean '{difflib.get_close_matches(dotted, same, n=1, cutoff=0)[0]}'?"
    here = path[:-1] if path[:-1] in sections(recipe) else ()
    return f"; expected {one_of(sections(recipe)[here])}"


def _listed(words: list[str], joint: str) -> str:
    return f" {joint} ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _flat_pairs(value: Any) -> list[tuple[float, float]]:
    """Return the pairs of anchors that are grouped by head; an empty list for other values."""
    try:
        return [(float(width), float(height)) for head in value for width, height in head]
    except (TypeError, ValueError):
        return []


def ascending_anchors(pairs: Iterable[tuple[float, float]], size: Any) -> tuple[str, str]:
    """Return anchors as text, in pixels and smallest first, and the size of the input that they are for.

    If all sides are at most 1, they are fractions of the input, and ``size`` is ``model.image_size`` (416 if
    it is not a number of pixels). Otherwise, the sides are pixels, and the second text is empty.
    """
    pairs = sorted(pairs, key=math.prod)[:100]
    sides = ""
    if all(side <= 1 for pair in pairs for side in pair):
        height, width = size if isinstance(size, list | tuple) and len(size) == 2 else (size, size)
        if not isinstance(height, int) or not isinstance(width, int):
            height = width = 416
        pairs = [(max(1, round(w * width, 1)), max(1, round(h * height, 1))) for w, h in pairs]
        sides = f"{height} × {width}"
    return "[" + ", ".join(f"[{width:g}, {height:g}]" for width, height in pairs) + "]", sides


def _options(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    options: list[Mapping[str, Any]] = schema.get("anyOf", [schema])
    return options


def _words(schema: Mapping[str, Any]) -> list[str]:
    return [str(word) for word in schema.get("enum", [])] or ([schema["const"]] if "const" in schema else [])


def _number(schema: Mapping[str, Any]) -> str:
    kind = "a whole number" if schema["type"] == "integer" else "a number"
    least, most = schema.get("minimum"), schema.get("maximum")
    most = None if most is not None and most >= _FAR else most  # mentioned only when a number exceeds it
    if least is not None and most is not None:
        return f"{kind} from {least} to {most:,}"
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    limits = {"of at least": least, "above": above, "below": below, "at most": most}
    bounds = (f"{words} {limit:,}" for words, limit in limits.items() if limit is not None)
    return f"{kind} {' and '.join(bounds)}".rstrip()


def _too_large(value: Any, schema: Mapping[str, Any]) -> str:
    """Return the maximum for an error message if it is at least ``_FAR`` and a number exceeds it."""
    options = _options(schema)
    items = [one.get("items") or (one.get("prefixItems") or [one])[0] for one in options]
    limits = [one["maximum"] for one in items if one.get("maximum", 0) >= _FAR]
    numbers = value if isinstance(value, list | tuple) else [value]
    given = [one for one in numbers if isinstance(one, int | float) and not isinstance(one, bool)]
    if not limits or not any(max(limits) < one < math.inf for one in given):
        return ""
    return f", and at most {max(limits):,.0f}"


def _unquoted(text: str, schema: Mapping[str, Any]) -> str:
    """Return a hint if quotes or underscores turn a number into text, or ""."""
    if not any(option.get("type") in ("integer", "number") for option in _options(schema)):
        return ""
    try:
        float(text)
    except ValueError:
        return ""
    return f"; write {text.replace('_', '')} without quotes"
