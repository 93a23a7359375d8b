"""The form of a Darknet cfg file: sections of ``key=value`` lines, whatever they mean."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from rankless.errors import printable


@dataclass
class Section:
    """One ``[name]`` with its options; reading one marks it as used.

    Attributes:
        name: without brackets, in lower case.
        line: where it begins, from 1.
        options: key to value and line.
        used: keys that were read.
    """

    name: str
    line: int
    options: dict[str, tuple[str, int]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)


class OptionReader:
    """Reads the options of one section at a time; collects what is wrong with them.

    Args:
        place: what the text is called in messages.

    Attributes:
        faults: sentences with place and line.
        section: the one being read.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self.problems: list[str] = []
        self.section = Section("", 0)

    def fault(self, sentence: str, line: int | None = None) -> None:
        """Note a fault, in the section's line if not in another."""
        self.problems.append(f"{self.place}:{line or self.section.line}: {sentence}")

    def sections(self, text: str) -> Iterator[Section]:
        """Every section of a text; faults for lines that are neither section nor option."""
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
                self.fault(f"'{shown}': expected [section] or key=value: is this a cfg file?", number)
                if len(self.problems) > 5 or "\0" in raw:
                    return
                continue
            section.options[key] = (value, number)
        if section is not None:
            yield section

    def line(self, key: str) -> int:
        """The line of an option; the section's where it is not given."""
        return self.section.options.get(key, ("", self.section.line))[1]

    def word(self, key: str, default: str) -> str:
        """An option as text."""
        self.section.used.add(key)
        return self.section.options.get(key, (default, 0))[0]

    def integer(self, key: str, default: int, least: int, most: int) -> int:
        """A whole number, or a fault and the default."""
        text = self.word(key, str(default))
        try:
            value = int(float(text)) if len(text) < 20 else None
        except (ValueError, OverflowError):
            value = None
        if value is None or not least <= value <= most:
            what = f"[{self.section.name}] {key}={text[:40]}"
            self.fault(f"{what}: expected a whole number from {least} to {most}", self.line(key))
            return min(max(default, least), most)
        return value

    def number(self, key: str, default: float, least: float = 0.0, most: float = 1e9) -> float:
        """A number, or a fault and the default."""
        (value,) = self.numbers(key, str(default), count=1) or (default,)
        if not least <= value <= most:
            self.fault(
                f"[{self.section.name}] {key}={value:g}: expected a number from {least:g} to {most:g}",
                self.line(key),
            )
            return default
        return value

    def numbers(self, key: str, default: str, count: int | None = None) -> tuple[float, ...]:
        """Numbers with commas between; empty after a fault."""
        text = self.word(key, default)
        try:
            values = tuple(float(part) for part in text.split(",") if part)
        except ValueError:
            values = (math.nan,)
        if not all(map(math.isfinite, values)) or (count is not None and len(values) != count):
            wanted = "a number" if count == 1 else "numbers with commas between"
            self.fault(f"[{self.section.name}] {key}={text[:40]}: expected {wanted}", self.line(key))
            return ()
        return values

    def has(self, key: str) -> bool:
        """Whether an option is given."""
        return key in self.section.options
