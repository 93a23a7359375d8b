"""Errors for users: a mistake is reported as a sentence, never as a traceback.

Every sentence names the thing, its value, what was expected and what to do. Problems that can be found
together are reported together. They quote files that anybody may have written: quotations are escaped and
shortened here, for all messages.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
from collections.abc import Iterable, Sequence

MOST_PROBLEMS = 25
"""An error lists at most this many problems and counts the others."""

LONGEST = 2000
"""Characters per line; the middle of a longer line is left out."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM)
_SIMILAR = 0.75  # of 1; less far apart than this is a typo, more is another word
_MOST_LINES = 100  # of one problem: a traceback, or a table of tensors

# What moves the cursor or colors the terminal (Cc), ends a line unseen (U+2028, U+2029), reverses the text,
# or stands for a byte that is not UTF-8.
HARMFUL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class UserError(Exception):
    """One or more problems with the user's input. The command line prints them and exits with 2.

    Args:
        problems: one sentence, or several; each is printed on a separate line. Control characters and the
            like are escaped, except for a line break before indented text; long sentences are shortened and
            long lists cut, with a note about how much is missing.
    """

    exit_code = 2

    def __init__(self, problems: str | Iterable[str]) -> None:
        every = (problems,) if isinstance(problems, str) else tuple(problems)
        self.problems: tuple[str, ...] = tuple(map(self._printed, every[:MOST_PROBLEMS]))
        if len(every) > MOST_PROBLEMS + 1:
            self.problems += (f"… and {len(every) - MOST_PROBLEMS - 1:,} more",)
        if len(every) > MOST_PROBLEMS:  # the last one often says what to do about all of them
            self.problems += (self._printed(every[-1]),)
        super().__init__("\n".join(self.problems))

    def _printed(self, problem: str) -> str:
        return _lines(re.split(r"\n(?= )", problem))


class TaskError(UserError):
    """An error in the user's own code, with the lines where it happened. The command line exits with 1."""

    exit_code = 1

    def _printed(self, problem: str) -> str:
        return _lines(problem.split("\n"))


class OutputError(UserError):
    """A command's output could not be written. The command line exits with 1."""

    exit_code = 1


class ShortageError(UserError):
    """Memory ran out; the caller that knows the recipe adds advice about its keys."""


class OneValueError(UserError):
    """A micro-batch is too small: a batch norm gets only one value per channel."""


STOPPED = 85
"""Exit code of a run that was asked to stop and saved its state: a scheduler may requeue it."""

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def of_a_path(error: BaseException) -> UserError | None:
    """Return the error for a path that can never lead to a file; None for any other error."""
    if isinstance(error, OSError) and error.errno in (errno.ELOOP, errno.ENAMETOOLONG) and error.filename:
        return UserError(f"{_name(error.filename)}: {error.strerror}; give another path")
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop from "):  # raised by pathlib
        return UserError(f"{error}; remove the link, or give another path")
    if isinstance(error, ValueError) and "embedded null" in str(error):
        return UserError("a path holds a NUL, which no file's name can; give another")
    return None


def of_the_system(error: BaseException) -> UserError | None:
    """Describe a refusal of the operating system that nothing else caught; None for any other error.

    Args:
        error: as it was caught. An ``OSError`` is the system's where it names a file, or a disk that is full.
    """
    if known := of_a_path(error):
        return known
    if isinstance(error, OSError) and error.filename is not None:
        reason = error.strerror or str(error)
        return UserError(f"{_name(error.filename)}: {reason}; fix it, or give another path")
    if isinstance(error, UnicodeEncodeError) and HARMFUL.search(error.object, error.start, error.end):
        where = escaped(error.object[max(error.start - 60, 0) : error.end + 60])
        return UserError(f"'{where}': is not UTF-8, and cannot be written here; give another name or path")
    if isinstance(error, OSError) and error.errno in _FULL:
        return UserError(f"{error.strerror or error}; make room, and start again")
    if isinstance(error, MemoryError):
        return UserError("there is not enough memory for this; give smaller files or sizes, or free some")
    return None


def remedy(error: BaseException) -> str:
    """Say what to do about a file that could not be written, as a part of a sentence."""
    number = error.errno if isinstance(error, OSError) else None
    if number in _FORBIDDEN:
        return "let this user write there"
    if number == errno.EROFS:
        return "make that file system writable"
    return "make room" if number in _FULL else "fix that"


def similar(word: str, known: Iterable[str], count: int = 1) -> list[str]:
    """Return the known words that may have been meant, the most similar first.

    Args:
        word: as given; upper case, and the dashes before an option, make no difference.
        known: what it may be.
        count: at most so many are returned.
    """
    plain: dict[str, str] = {}
    for one in known:
        plain.setdefault(one.lstrip("-").lower(), one)
    near = difflib.get_close_matches(word.lstrip("-").lower(), plain, n=count, cutoff=_SIMILAR)
    return [plain[one] for one in near]


def nearest(word: str, known: Iterable[str], *, count: int = 1, shown: str = "'{}'") -> str:
    """Return ``; did you mean 'x'?`` with what :func:`similar` finds, or an empty text.

    Args:
        word, known, count: see there.
        shown: how a word is written.
    """
    near = similar(word, known, count)
    return f"; did you mean {' or '.join(map(shown.format, near))}?" if near else ""


def one_of(names: Iterable[str]) -> str:
    """Write what is expected: ``one of a, b``, or ``a`` where that is all there is."""
    every = list(names)
    return f"one of {', '.join(every)}" if len(every) != 1 else every[0]


def in_gb(size: float) -> str:
    """Write bytes as ``12.5 GB`` or ``12.5 MB``, as disks and memory are sold."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.1f} MB"


def in_gib(size: int) -> str:
    """Write bytes as ``12.5 GiB``, ``12 MiB`` or ``12 KiB``, as they are asked for."""
    if size < 1 << 20:
        return f"{size / (1 << 10):,.0f} KiB"
    return f"{size / (1 << 20):,.0f} MiB" if size < 1 << 30 else f"{size / (1 << 30):,.1f} GiB"


def escaped(text: str) -> str:
    r"""Make text safe for a terminal: ``\x1b``, ``\u202e`` and the like are spelled out."""
    return HARMFUL.sub(lambda match: _named(match[0]), text)


def shortened(text: str, longest: int) -> str:
    """Cut the middle out of a text longer than ``longest`` characters; both ends remain."""
    if len(text) <= longest:
        return text
    head, tail = longest * 2 // 3, longest // 4
    return f"{text[:head]} … {len(text) - head - tail:,} characters … {text[-tail:]}"


def printable(text: str, longest: int = 100) -> str:
    """Make text from a file fit for a message: printable, at most ``longest`` characters."""
    cut = text[: longest + 1]  # a text may be megabytes long
    shown = cut if cut.isprintable() else "".join(c if c.isprintable() else _named(c) for c in cut)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def counted(count: int, one: str, many: str = "") -> str:
    """A number and what is counted: ``1 box``, ``1,024 boxes``.

    Args:
        count: how many.
        one: the noun in the singular, or a phrase that begins with it.
        many: in the plural; ``one`` with an ``s`` if not given.
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def listed(names: Sequence[str]) -> str:
    """List the first few names for a message, and how many more there are."""
    shown = ", ".join(f"'{printable(name)}'" for name in names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown


def _name(filename: object) -> str:
    """Name a file as an ``OSError`` does: by text, bytes, a path or the number of an open file."""
    return (
        os.fsdecode(filename) if isinstance(filename, str | bytes | os.PathLike) else f"open file {filename}"
    )


def _lines(lines: list[str]) -> str:
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"  … and {len(lines) - _MOST_LINES:,} more lines"]
    return "\n".join(escaped(shortened(line, LONGEST)) for line in lines)


def _named(character: str) -> str:
    r"""Spell a character as Python does; a byte that is not UTF-8 as ``\xff``."""
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
