"""The pages of documentation, and every command on them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT, ROOT / "docs", ROOT / "benchmarks")
PAGES = sorted(
    [page for folder in FOLDERS for page in folder.glob("*.md")] + [*(ROOT / ".github").rglob("*.md")]
)
HISTORY = ("CHANGELOG.md", "decisions.md")  # their sentences name commands as they were


@dataclass(frozen=True)
class Line:
    """A line of code on a page.

    Attributes:
        page: the file.
        number: of the line, from 1.
        text: without indentation, with the lines that continue it.
        is_inline: it stands between backticks in a sentence, so it may be the beginning of a command only.
    """

    page: Path
    number: int
    text: str
    is_inline: bool = False

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.number}: {self.text}"


def code() -> Iterator[Line]:
    """Every line that stands indented, fenced or between backticks on a page."""
    for page in PAGES:
        yield from (line for line in _code_of(page) if not (line.is_inline and page.name in HISTORY))


def _code_of(page: Path) -> Iterator[Line]:
    text = re.sub(r"\\\n +", " ", page.read_text(encoding="utf-8"))
    language = None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            language = line[3:].strip() if language is None else None
        elif language is not None or line.startswith("    "):
            yield Line(page, number, line.strip())
        else:
            yield from (Line(page, number, one, is_inline=True) for one in re.findall(r"`([^`]+)`", line))


def commands() -> list[Line]:
    """Every call of ``rankless``, from that word on, whatever launcher stands before it; not its usage."""
    found = _calls(r"(?:.*\s)?rankless ((?:[a-z]|--).*)")
    return [line for line in found if not re.search(r"\[[A-Z]", line.text)]


def scripts() -> list[Line]:
    """Every call of a Python script: its path and the words after it."""
    return _calls(r"(?:.*\s)?(?:python3?|torchrun\b.*?) ([\w./-]+\.py\b.*)")


def makes() -> list[Line]:
    return _calls(r"(make .*)")


def _calls(pattern: str) -> list[Line]:
    """The group of the pattern in each command of each line that matches it."""
    return [
        Line(line.page, line.number, match[1], line.is_inline)
        for line in code()
        for command in re.split(r"\s[|;]\s|&&|;$", line.text.removeprefix("$ "))
        if (match := re.fullmatch(pattern, _without_rest(command)))
    ]


def _without_rest(command: str) -> str:
    """Without a comment, a redirection or what is left out."""
    return re.split(r"\s+[#<>]|…", command)[0].strip()
