"""The one way a mistake of the user's is told: a sentence, never a traceback.

Every fault names the thing, the value found, what was expected and what to do. Faults that can be
found together are told together. What they quote comes out of files that anybody may have written: it is
escaped and shortened here, for all of them.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Sequence

MOST_FAULTS = 25
"""So many faults of one error are listed; the others are counted."""

LONGEST = 2000
"""Characters of one line; the middle of a longer one is left out."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MOST_LINES = 100  # of one fault: a traceback, or a table of tensors

# What moves the cursor or colors the terminal (Cc), ends a line unseen (U+2028, U+2029), turns the direction
# of the text around so that it reads otherwise than it is, or stands for a byte that is no UTF-8.
HARMFUL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class UserError(Exception):
    """One or more faults in what the user gave. The command line prints them and exits with 2.

    Args:
        faults: one sentence, or several; each stands on a line of its own. Control characters and the like
            are escaped, but for a line break before indented text; what is too long or too many is left
            out, with a word about how much.
    """

    exit_code = 2

    def __init__(self, faults: str | Iterable[str]) -> None:
        every = (faults,) if isinstance(faults, str) else tuple(faults)
        self.faults: tuple[str, ...] = tuple(map(self._told, every[:MOST_FAULTS]))
        if len(every) > MOST_FAULTS + 1:
            self.faults += (f"… and {len(every) - MOST_FAULTS - 1:,} more",)
        if len(every) > MOST_FAULTS:  # the last one often says what to do about all of them
            self.faults += (self._told(every[-1]),)
        super().__init__("\n".join(self.faults))

    def _told(self, fault: str) -> str:
        return _lines(re.split(r"\n(?= )", fault))


class TaskError(UserError):
    """An error in the user's own code, with the lines where it happened. The command line exits with 1."""

    exit_code = 1

    def _told(self, fault: str) -> str:
        return _lines(fault.split("\n"))


class ShortageError(UserError):
    """Memory ran out; whoever knows the recipe adds what to change in it."""


STOPPED = 85
"""Exit code of a run that was asked to stop and saved its state: a scheduler may requeue it."""

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def of_a_path(error: BaseException) -> UserError | None:
    """The sentence for a path that can never lead to a file, whatever is tried again; None for all else."""
    if isinstance(error, OSError) and error.errno in (errno.ELOOP, errno.ENAMETOOLONG) and error.filename:
        return UserError(f"{_name(error.filename)}: {error.strerror}; give another path")
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop from "):  # pathlib's words
        return UserError(f"{error}; remove the link, or give another path")
    if isinstance(error, ValueError) and "embedded null" in str(error):
        return UserError("a path holds a NUL, which no file's name can; give another")
    return None


def of_the_system(error: BaseException) -> UserError | None:
    """The last resort for what nobody foresaw: the system's refusal in words; None where it is none of it.

    Args:
        error: as it was caught. An ``OSError`` is the system's where it names a file, or a disk that is full.
    """
    if told := of_a_path(error):
        return told
    if isinstance(error, OSError) and error.filename is not None:
        reason = error.strerror or str(error)
        return UserError(f"{_name(error.filename)}: {reason}; fix it, or give another path")
    if isinstance(error, OSError) and error.errno in _FULL:
        return UserError(f"{error.strerror or error}; make room, and start again")
    if isinstance(error, MemoryError):
        return UserError("there is not enough memory for this; give smaller files or sizes, or free some")
    return None


def escaped(text: str) -> str:
    r"""Text that may be shown on a terminal as it is: ``\x1b``, ``\u202e`` and the like in words."""
    return HARMFUL.sub(lambda found: _named(found[0]), text)


def shortened(text: str, longest: int) -> str:
    """Text without its middle where it is longer than ``longest`` characters; both ends are kept."""
    if len(text) <= longest:
        return text
    head, tail = longest * 2 // 3, longest // 4
    return f"{text[:head]} … {len(text) - head - tail:,} characters … {text[-tail:]}"


def printable(text: str, longest: int = 100) -> str:
    """Text out of a file, fit for a message: no character unseen, no more than ``longest`` characters."""
    cut = text[: longest + 1]  # a text may be megabytes long
    shown = cut if cut.isprintable() else "".join(c if c.isprintable() else _named(c) for c in cut)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def listed(names: Sequence[str]) -> str:
    """The first few of the names for a message, and how many more there are."""
    shown = ", ".join(f"'{printable(name)}'" for name in names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown


def _name(filename: object) -> str:
    """A file as an ``OSError`` names it: text, bytes, a path or the number of an open file."""
    return (
        os.fsdecode(filename) if isinstance(filename, str | bytes | os.PathLike) else f"open file {filename}"
    )


def _lines(lines: list[str]) -> str:
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"  … and {len(lines) - _MOST_LINES:,} more lines"]
    return "\n".join(escaped(shortened(line, LONGEST)) for line in lines)


def _named(character: str) -> str:
    r"""A character as Python writes it in a text; a byte that is no UTF-8 as ``\xff``."""
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
