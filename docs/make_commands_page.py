"""Writes the reference in ``docs/commands.md``: ``python docs/make_commands_page.py``.

The descriptions, arguments, options and examples are those of ``--help``. A test compares them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from cyclopts import App

from rankless import cli

PAGE = Path(__file__).with_name("commands.md")
START, END = "<!-- reference: made by make_commands_page.py -->\n", "<!-- end of reference -->\n"
# A line of an app's list of commands; the words below its options: indented commands, or a paragraph.
COMMAND = re.compile(r"^\* \[`(\w+)`\]\(#\S+\)(: .*)$", re.MULTILINE)
WORDS = re.compile(r"(?:^  .*\n?)+|(?:^\S.*\n?)+", re.MULTILINE)


def reference() -> str:
    """A section for each command and each subcommand, in the order of ``rankless --help``."""
    return "\n\n".join([_commands(cli.app, ("rankless",)), *_sections(cli.app, ("rankless",))]) + "\n\n"


def page(text: str) -> str:
    """The page with its reference made again."""
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    return before + START + "\n" + reference() + END + after


def _sections(app: App, words: tuple[str, ...]) -> Iterator[str]:
    for name, _ in COMMAND.findall(app.generate_docs(recursive=False)):
        command, path = app[name], (*words, name)
        usage = (command.usage or "").removeprefix("Usage: ")
        yield "\n\n".join([f"### {' '.join(path)}", _indented(usage), *_description(command, path)])
        yield from _sections(command, path)


def _description(command: App, path: tuple[str, ...]) -> Iterator[str]:
    """What ``--help`` says below the usage, in its order."""
    if commands := _commands(command, path):
        yield command.help or ""
        yield commands
    else:
        _, _, text = command.generate_docs(recursive=False).partition("```\n\n")
        yield re.sub(r"\*\*(Arguments|Options)\*\*:", r"\1:", text.strip())
    for words in WORDS.findall(command.help_epilogue or ""):
        yield _indented(words) if words.startswith(" ") else words.strip()


def _commands(app: App, path: tuple[str, ...]) -> str:
    """The list of an app's commands, with links to their sections."""
    rows = COMMAND.findall(app.generate_docs(recursive=False))
    return "\n".join(f"* [`{name}`](#{'-'.join([*path, name])}){about}" for name, about in rows)


def _indented(lines: str) -> str:
    return "\n".join(f"    {line.strip()}" for line in lines.strip().splitlines())


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
