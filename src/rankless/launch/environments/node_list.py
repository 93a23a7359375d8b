"""Slurm's short forms: lists of hosts such as ``n[01-03,07],gpu5``, and of numbers such as ``2(x3),1``."""

from __future__ import annotations

import re
from collections.abc import Iterator

_BRACKETS = re.compile(r"\[([0-9,\-]*)\]")
_REPEATED = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")


def hosts(text: str) -> Iterator[str]:
    """The hosts of a list, in its order, one by one: a list of a few characters may name millions.

    Raises:
        ValueError: it is no list of hosts.
    """
    for part in _parts(text):
        yield from _expanded(part)


def nth(text: str, index: int) -> int:
    """The number of a node: entry ``index`` of a list such as ``2(x3),1``.

    Raises:
        ValueError: it is no such list, or has fewer entries.
    """
    for part in text.split(","):
        match = _REPEATED.fullmatch(part.strip())
        if match is None:
            break
        index -= int(match[2] or 1)
        if index < 0:
            return int(match[1])
    raise ValueError(text)


def _parts(text: str) -> Iterator[str]:
    """Split at the commas outside of brackets."""
    depth = start = 0
    for at, character in enumerate(text):
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and not depth:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _expanded(part: str) -> Iterator[str]:
    """The hosts of ``rack[1-2]n[01-03]``: what is behind changes fastest."""
    match = _BRACKETS.search(part)
    if match is None:
        if not part or any(character in "[]" for character in part):
            raise ValueError(part)
        yield part
        return
    for number in _numbers(match[1]):
        rest = part[match.end() :]
        for end in _expanded(rest) if rest else ("",):
            yield f"{part[: match.start()]}{number}{end}"


def _numbers(text: str) -> Iterator[str]:
    """The numbers of ``01-03,07`` with their leading zeros."""
    for piece in text.split(","):
        first, dash, last = piece.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise ValueError(text)
        for number in range(int(first), int(last or first) + 1):
            yield f"{number:0{len(first)}}"
