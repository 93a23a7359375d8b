"""Write recipes with a comment above each key."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rankless.files import yaml12

_COLUMNS = 110


@dataclass(frozen=True)
class Setting:
    """A dotted recipe key, its value, and the reason for that value."""

    key: str
    value: Any
    why: str


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
