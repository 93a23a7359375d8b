"""Writes the tables of ``docs/recipe.md`` from the recipe itself: ``python docs/make_recipe_table.py``.

What a key means stands below its field in the recipe's classes; its values follow from its type.
The tables are never written by hand; a test compares them.
"""

from __future__ import annotations

import inspect
from pathlib import Path

from rankless.recipe.json_schema import descriptions
from rankless.recipe.keys import KINDS, KeyPath, Kinds, classes, leaves, sections
from rankless.recipe.loss_kinds import LossKeys
from rankless.recipe.mistakes import expected, shown
from rankless.recipe.model_kinds import ModelKeys
from rankless.recipe.schema import Recipe

PAGE = Path(__file__).with_name("recipe.md")
START, END = "<!-- tables: made by make_recipe_table.py -->\n", "<!-- end of tables -->\n"
_EVERY = ("custom", "auto")
"""The kinds that have the keys of all others."""


def tables() -> str:
    """One Markdown table per section, in the recipe's order."""
    lines = []
    for path in sections(Recipe):
        kinds = [tag for tag in KINDS.get(path[0], ()) if tag not in _EVERY] if path else []
        heads = ["key", *(["kinds"] if kinds else []), "meaning", "values", "default"]
        lines += [f"### `{'.'.join(path)}`", "", f"{_cell(_about(path))}.", ""] if path else []
        lines += [_line(heads), _line(["---"] * len(heads)), *_rows(path, kinds), ""]
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """The page with its tables made again."""
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return before + START + "\n" + tables() + END + after


def _rows(path: KeyPath, kinds: list[str]) -> list[str]:
    """A row for each key of a section; one for each meaning that it has in different kinds."""
    found: dict[tuple[str, ...], list[str]] = {}
    for kind in kinds or [""]:
        model, loss = (
            kind if path[:1] == (one,) else every for one, every in zip(KINDS, _EVERY, strict=True)
        )
        for key in leaves(Recipe, Kinds("", model, loss)).values():
            if key.path[:-1] == path:
                about, default = descriptions(key.section)[key.path[-1]], shown(key.default)
                takes = expected(key.values.json_schema())
                if key.path == ("loss", "name"):
                    about, default = descriptions(LossKeys)["name"], "'auto'"
                    takes = f"one of auto, {', '.join(kinds)}"
                row = (f"`{'.'.join(key.path)}`", _cell(about), takes, f"`{default}`")
                found.setdefault(row, []).append(kind)
    return [
        _line([name, *([", ".join(of) if len(of) < len(kinds) else "all"] if kinds else []), *cells])
        for (name, *cells), of in found.items()
    ]


def _about(path: KeyPath) -> str:
    """What a section is: of kinds, what they have in common."""
    whole: dict[KeyPath, type] = {("model",): ModelKeys, ("loss",): LossKeys}
    named = {one.__name__.lower(): one for one in classes(Recipe)}
    section = whole.get(path) or named[path[-1]]
    return inspect.cleandoc(section.__doc__ or "").partition("\n\n")[0]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |".replace(" --- ", "---")


def _cell(text: str) -> str:
    plain = text.replace("``", "`").replace("|", "\\|").replace("\n", " ").rstrip(".")
    return plain[:1].upper() + plain[1:] if plain[:1].isascii() else plain  # α stays a small one


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
