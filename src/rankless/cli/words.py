"""Words that several commands share: their parameters, and how a number is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Group, Parameter

from rankless.errors import UserError

COMMANDS = Group("Commands", sort_key=0)
ARGUMENTS = Group("Arguments", sort_key=1)
OPTIONS = Group("Options", sort_key=2)

flag = Parameter(negative="", show_default=False)
Target = Annotated[Path, Parameter(name="TARGET", help="A run directory or a weights file.")]
Json = Annotated[bool, Parameter(name="--json", help="Print JSON, for programs."), flag]


def whole_number(option: str, text: str, more: str = "") -> int:
    number = int(text) if text.strip().isdecimal() and len(text) < 10 else 0
    if number < 1:
        raise UserError(f"{option} has '{text}': expected a whole number of at least 1{more}")
    return number


def part() -> App:
    """An application for some of the commands, which look alike whichever page they stand on."""
    return App(group_commands=COMMANDS, group_arguments=ARGUMENTS, group_parameters=OPTIONS)
