"""Writes the tables of ``docs/recipe.md`` from the recipe itself: ``python docs/make_recipe_table.py``.

What a key means is its entry in the docstrings of the recipe's classes; what it takes is its type.
The tables are never written by hand; a test compares them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankless.recipe import load
from rankless.recipe.keys import Kinds, expected, leaves, sections, shown
from rankless.recipe.kinds import KINDS
from rankless.recipe.loss_kinds import Loss
from rankless.recipe.model_kinds import Model

WHOLE = load.schema()
LOSS_NAME = "which loss; `auto` is the one that the model was published with"
PAGE = Path(__file__).with_name("recipe.md")
START, END = "<!-- tables: made by make_recipe_table.py -->\n", "<!-- end of tables -->\n"


def tables() -> str:
    """One Markdown table per section, in the recipe's order."""
    lines = []
    for path in sections():
        of_kinds = path[:1] and path[0] in KINDS
        rows = [_row(key, names, of_kinds) for key, names in _keys(path)]
        heads = ["key", *(["of"] if of_kinds else []), "meaning", "takes", "default"]
        lines += [f"### `{'.'.join(path)}`", "", f"{_cell(_about(path))}.", ""] if path else []
        lines += [_line(heads), _line(["---"] * len(heads)), *rows, ""]
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """The page with its tables made again."""
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return before + START + "\n" + tables() + END + after


def _definitions(path: tuple[str, ...]) -> list[tuple[str, dict[str, Any]]]:
    """Kind (where there are any) and JSON Schema of a section, of each kind that has it."""
    found = [("", WHOLE)]
    for depth, name in enumerate(path):
        inner = []
        for kind, one in found:
            key = one["properties"].get(name, {})
            options = [
                option["$ref"].rpartition("/")[2] for option in key.get("anyOf", [key]) if "$ref" in option
            ]
            tags = [*KINDS[name]] if depth == 0 and name in KINDS else [kind] * len(options)
            inner += [(tag, WHOLE["$defs"][option]) for tag, option in zip(tags, options, strict=True)]
        found = inner
    return found


def _keys(path: tuple[str, ...]) -> list[tuple[tuple[tuple[str, ...], dict[str, Any]], list[str]]]:
    """Path and JSON Schema of each key, and the kinds that have it so."""
    found: list[tuple[tuple[tuple[str, ...], dict[str, Any]], list[str]]] = []
    for kind, section in _definitions(path):
        for name, key in section["properties"].items():
            if (*path, name) not in leaves() or kind in ("custom", "auto"):
                continue
            plain = ((*path, name), {k: v for k, v in key.items() if k not in ("pattern", "const")})
            if name == "name" and path == ("loss",):
                plain[1].update(description=LOSS_NAME, default="auto")
            same = [kinds for other, kinds in found if other == plain]
            if same:
                same[0].append(kind)
            else:
                found.append((plain, [kind]))
    return found


def _row(key: tuple[tuple[str, ...], dict[str, Any]], names: list[str], of_kinds: object) -> str:
    path, schema = key
    kinds = {"model": "custom", "loss": "auto", **({path[0]: names[0]} if of_kinds else {})}
    takes = expected(leaves(Kinds("", **kinds))[path])
    takes = f"one of auto, {', '.join(names)}" if path == ("loss", "name") else takes
    some = 0 < len(names) < len(KINDS[path[0]]) - 1 if of_kinds else False
    about = schema["description"]
    of = [", ".join(names) if some else "all"] if of_kinds else []
    return _line([f"`{'.'.join(path)}`", *of, _cell(about), takes, f"`{shown(schema['default'])}`"])


def _about(path: tuple[str, ...]) -> str:
    """What a section is: of kinds, what they have in common."""
    whole = {"model": Model, "loss": Loss}.get(path[0]) if len(path) == 1 else None
    text: str = (
        (whole.__doc__ or "").partition("\n\n")[0] if whole else _definitions(path)[0][1]["description"]
    )
    return text


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |".replace(" --- ", "---")


def _cell(text: str) -> str:
    plain = text.replace("``", "`").replace("|", "\\|").replace("\n", " ").rstrip(".")
    return plain[:1].upper() + plain[1:] if plain[:1].isascii() else plain  # α stays a small one


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
