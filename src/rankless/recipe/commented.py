"""Read and write recipes with a comment above each key, which states the reason for its value."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from rankless.files import yaml12
from rankless.recipe.installed import shipped_text
from rankless.recipe.keys import at, leaves
from rankless.recipe.schema import Recipe

_COLUMNS = 110


@dataclass(frozen=True)
class Setting:
    """A dotted recipe key, its value, and the reason for that value."""

    key: str
    value: Any
    why: str = ""


def adapted(recipe: str, changes: Iterable[Setting], *, without: Iterable[str] = ()) -> list[Setting]:
    """Return the settings of a shipped recipe with ``changes`` and without some keys, in the recipe's order.

    A change without a reason keeps the reason in the shipped recipe, which is the comment above the key.
    """
    text = shipped_text(recipe)
    tree, lines = yaml12.read(text, recipe)
    rows = [row.strip() for row in text.splitlines()]
    found = {}
    for path, number in lines.items():
        if not isinstance(value := at(tree, path), dict):
            above = [*takewhile(lambda row: row.startswith("#"), reversed(rows[: number - 1]))]
            key = ".".join(path)
            found[key] = Setting(key, value, " ".join(row[2:] for row in reversed(above)))
    for change in changes:
        found[change.key] = change if change.why else replace(change, why=found[change.key].why)
    keys = (".".join(path) for path in leaves(Recipe))
    return [found[key] for key in keys if key in found and key not in without]


def commented(head: Iterable[str], settings: Iterable[Setting]) -> str:
    """Return YAML with ``head`` as comment lines, and each setting below its reason.

    The settings of a section must be adjacent.
    """
    lines = [f"# {line}".rstrip() for line in head]
    section: list[str] = []
    for setting in settings:
        *sections, name = setting.key.split(".")
        known = next(n for n in range(len(sections), -1, -1) if section[:n] == sections[:n])
        if not known:
            lines.append("")
        lines += [f"{'  ' * level}{sections[level]}:" for level in range(known, len(sections))]
        section, indent = sections, "  " * len(sections)
        mark = f"{indent}# "
        lines += textwrap.wrap(
            setting.why, _COLUMNS, initial_indent=mark, subsequent_indent=mark, break_long_words=False
        )
        lines.append(textwrap.indent(yaml12.write({name: setting.value}).rstrip("\n"), indent))
    return "\n".join([*lines, ""])
