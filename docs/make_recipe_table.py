"""Writes the tables of ``docs/recipe.md`` from the recipe itself: ``python docs/make_recipe_table.py``.

What a key means is its entry in the docstrings of ``recipe.py``, what it takes is its type, so the tables are
never written by hand. A test compares them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankless.recipe import load
from rankless.recipe.keys import expected, leaves, shown

PAGE = Path(__file__).with_name("recipe.md")
START, END = "<!-- tables: made by make_recipe_table.py -->\n", "<!-- end of tables -->\n"


def tables() -> str:
    """One Markdown table per section, in the recipe's order."""
    schema = load.schema()
    lines = []
    for path, section in _sections(schema, schema, ()):
        rows = [
            f"| `{'.'.join((*path, name))}` | {_cell(one['description'])} "
            f"| {expected(leaves()[*path, name])} | `{shown(one['default'])}` |"
            for name, one in section["properties"].items()
            if (*path, name) in leaves()
        ]
        lines += [f"### `{'.'.join(path)}`", "", f"{_cell(section['description'])}.", ""] if path else []
        lines += ["| key | meaning | takes | default |", "|---|---|---|---|", *rows, ""]
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """The page with its tables made anew."""
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return before + START + "\n" + tables() + END + after


def _sections(
    whole: dict[str, Any], schema: dict[str, Any], path: tuple[str, ...]
) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    found = [(path, schema)]
    for name, one in schema["properties"].items():
        section = next((option for option in one.get("anyOf", [one]) if "$ref" in option), None)
        if section:
            inner = whole["$defs"][section["$ref"].rpartition("/")[2]]
            found += _sections(whole, inner, (*path, name))
    return found


def _cell(text: str) -> str:
    plain = text.replace("``", "`").replace("|", "\\|").replace("\n", " ").rstrip(".")
    return plain[:1].upper() + plain[1:] if plain[:1].islower() else plain


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
