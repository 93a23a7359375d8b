"""The syntax of a Darknet cfg file: sections of ``key=value`` lines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from rankless.errors import printable


@dataclass
class Section:
    """A ``[name]`` section with its options.

    Attributes:
        name: the section's name in lower case, without brackets.
        line: number of the section's first line, from 1.
        options: value and line number of each key.
        used: keys that were read.
    """

    name: str
    line: int
    options: dict[str, tuple[str, int]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)


class OptionReader:
    """A reader for the options of one section at a time, which collects problems."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.problems: list[str] = []
        self.section = Section("", 0)

    def report(self, sentence: str, line: int | None = None) -> None:
        """Record a problem in a line, by default in the first line of the section."""
        self.problems.append(f"{self.name}:{line or self.section.line}: {sentence}")

    def sections(self, text: str) -> Iterator[Section]:
        """Yield the sections in a text, and report lines that are neither a section nor an option."""
        section: Section | None = None
        for number, raw in enumerate(text.splitlines(), 1):
            line = "".join(raw.split("#")[0].split(";")[0].split())
            if not line:
                continue
            if line.startswith("["):
                if section is not None:
                    yield section
                section = Section(line.strip("[]").lower(), number)
                continue
            key, equals, value = line.partition("=")
            if not equals or section is None:
                shown = printable(raw.strip(), 60)
                self.report(f"'{shown}': expected [section] or key=value; is this a cfg file?", number)
                if len(self.problems) > 5 or "\0" in raw:
                    return
                continue
            section.options[key] = (value, number)
        if section is not None:
            yield section

    def line(self, key: str) -> int:
        """Return the line number of an option, or of the section if the option is missing."""
        return self.section.options.get(key, ("", self.section.line))[1]

    def word(self, key: str, default: str) -> str:
        """Read an option as text, and mark it as used."""
        self.section.used.add(key)
        return self.section.options.get(key, (default, 0))[0]

    def integer(self, key: str, default: int, least: int, most: int) -> int:
        """Read an integer. If it is invalid, report a problem and return the default."""
        text = self.word(key, str(default))
        try:
            value = int(float(text)) if len(text) < 20 else None
        except (ValueError, OverflowError):
            value = None
        if value is None or not least <= value <= most:
            what = f"[{self.section.name}] {key}={text[:40]}"
            self.report(f"{what}: expected a whole number from {least} to {most}", self.line(key))
            return min(max(default, least), most)
        return value

    def number(self, key: str, default: float, least: float = 0.0, most: float = 1e9) -> float:
        """Read a number. If it is invalid, report a problem and return the default."""
        (value,) = self.numbers(key, str(default), count=1) or (default,)
        if not least <= value <= most:
            self.report(
                f"[{self.section.name}] {key}={value:g}: expected a number from {least:g} to {most:g}",
                self.line(key),
            )
            return default
        return value

    def numbers(self, key: str, default: str, count: int | None = None) -> tuple[float, ...]:
        """Read comma-separated numbers. If one is invalid, report a problem and return an empty tuple."""
        text = self.word(key, default)
        try:
            values = tuple(float(part) for part in text.split(",") if part)
        except ValueError:
            values = (math.nan,)
        if not all(map(math.isfinite, values)) or (count is not None and len(values) != count):
            wanted = "a number" if count == 1 else "comma-separated numbers"
            self.report(f"[{self.section.name}] {key}={text[:40]}: expected {wanted}", self.line(key))
            return ()
        return values

    def has(self, key: str) -> bool:
        return key in self.section.options
