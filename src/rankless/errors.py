"""Exceptions for mistakes by the user, which are reported as sentences instead of tracebacks.

Each sentence names the problem, the value found, the expected value and the remedy. All problems that can be
found at once are reported together. Messages may quote untrusted files, so this module escapes and shortens
them.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

MOST_PROBLEMS = 25
"""Maximum number of problems that an error lists. Further problems are only counted."""

LONGEST = 2000
"""Maximum number of characters per line. Longer lines are cut in the middle."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM)
_SIMILAR = 0.75  # minimum similarity, 0..1, for a word to count as a typo of another one
_MOST_LINES = 100  # maximum number of lines of a problem, such as a traceback or a table of tensors

# Characters that move the cursor or color the terminal (Cc), end a line invisibly (U+2028, U+2029), reverse
# the text, or stand for a byte that is not UTF-8.
HARMFUL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class UserError(Exception):
    """One or more problems with the user's input. The command line prints them and exits with code 2.

    Args:
        problems: one or more sentences, each printed on its own line. Control characters are escaped, except
            for a line break before indented text. Long sentences and lists are shortened.
    """

    exit_code = 2

    def __init__(self, problems: str | Iterable[str]) -> None:
        every = (problems,) if isinstance(problems, str) else tuple(problems)
        self.problems: tuple[str, ...] = tuple(map(self._printed, every[:MOST_PROBLEMS]))
        if len(every) > MOST_PROBLEMS + 1:
            self.problems += (f"… and {len(every) - MOST_PROBLEMS - 1:,} more",)
        if len(every) > MOST_PROBLEMS:  # the last line often gives the remedy for all problems
            self.problems += (self._printed(every[-1]),)
        super().__init__("\n".join(self.problems))

    def _printed(self, problem: str) -> str:
        return _lines(re.split(r"\n(?= )", problem))


class TaskError(UserError):
    """Raised for an error in the user's own code. The message shows the lines that raised it."""

    exit_code = 1

    def _printed(self, problem: str) -> str:
        return _lines(problem.split("\n"))


class OutputError(UserError):
    """Raised when a command cannot write its output."""

    exit_code = 1


class ShortageError(UserError):
    """Raised when memory runs out."""


class OneValueError(UserError):
    """Raised when a micro-batch is so small that a batch norm has only one value per channel."""


def check_all(*checks: Callable[[], Any]) -> list[Any]:
    """Call all checks and return their results, or raise one error with all of their problems."""
    results, problems = [], list[str]()
    for check in checks:
        try:
            results.append(check())
        except UserError as error:
            if not error.problems:  # another rank reports the problems
                raise
            problems += error.problems
    if problems:
        raise UserError(dict.fromkeys(problems))
    return results


LOST_PEER = 75
"""Exit code of a rank that failed only because it lost its connection to another rank."""

STOPPED = 85
"""Exit code of a run that stopped on request and saved its state, so that a scheduler may requeue it."""

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def without_folder() -> str:
    """Return an error message if the working directory was deleted, or an empty string."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return "the working directory was deleted; change to another one (cd), and start again"
    return ""


def of_a_path(error: BaseException) -> UserError | None:
    """Convert an exception about an invalid path to a ``UserError``, or return None for other exceptions."""
    if isinstance(error, FileNotFoundError) and error.filename is None and (problem := without_folder()):
        return UserError(problem)
    if isinstance(error, OSError) and error.errno in (errno.ELOOP, errno.ENAMETOOLONG) and error.filename:
        return UserError(f"{_name(error.filename)}: {error.strerror}; use another path")
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop from "):  # raised by pathlib
        return UserError(f"{error}; remove the link, or use another path")
    if isinstance(error, ValueError) and "embedded null" in str(error):
        return UserError("a path contains a NUL character; use another path")
    return None


def of_the_system(error: BaseException) -> UserError | None:
    """Convert an operating-system error to a ``UserError``, or return None for other exceptions.

    An ``OSError`` is converted only if it names a file or reports a full disk.
    """
    if known := of_a_path(error):
        return known
    if isinstance(error, OSError) and error.filename is not None:
        reason = error.strerror or str(error)
        return UserError(f"{_name(error.filename)}: {reason}; resolve the problem, or use another path")
    if isinstance(error, UnicodeEncodeError) and HARMFUL.search(error.object, error.start, error.end):
        where = escaped(error.object[max(error.start - 60, 0) : error.end + 60])
        return UserError(f"'{where}': not valid UTF-8, so it cannot be written; use another name or path")
    if isinstance(error, OSError) and error.errno in _FULL:
        return UserError(f"{error.strerror or error}; make room and start again")
    if isinstance(error, MemoryError):
        return UserError("not enough memory; use smaller files or sizes, or free some memory")
    return None


def remedy(error: BaseException) -> str:
    """Return advice on a failed write, such as ``make room``."""
    number = error.errno if isinstance(error, OSError) else None
    if number in _FORBIDDEN:
        return "grant this user write access"
    if number == errno.EROFS:
        return "make the file system writable"
    return "make room" if number in _FULL else "resolve the problem"


def similar(word: str, known: Iterable[str], count: int = 1) -> list[str]:
    """Return up to ``count`` known words similar to ``word``, most similar first.

    Case and leading dashes are ignored.
    """
    plain: dict[str, str] = {}
    for one in known:
        plain.setdefault(one.lstrip("-").lower(), one)
    near = difflib.get_close_matches(word.lstrip("-").lower(), plain, n=count, cutoff=_SIMILAR)
    return [plain[one] for one in near]


def nearest(word: str, known: Iterable[str], *, count: int = 1, shown: str = "'{}'") -> str:
    """Return ``; did you mean 'x'?`` with words from :func:`similar`, or an empty string."""
    near = similar(word, known, count)
    return f"; did you mean {' or '.join(map(shown.format, near))}?" if near else ""


def one_of(names: Iterable[str]) -> str:
    """Return the expected values as text: ``one of a, b``, or ``a`` if there is only one."""
    every = list(names)
    return f"one of {', '.join(every)}" if len(every) != 1 else every[0]


def in_gb(size: float) -> str:
    """Format a size in bytes in decimal units: ``12.5 GB`` or ``12.5 MB``."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.1f} MB"


def in_gib(size: int) -> str:
    """Format a size in bytes in binary units: ``12.5 GiB``, ``12 MiB`` or ``12 KiB``."""
    if size < 1 << 20:
        return f"{size / (1 << 10):,.0f} KiB"
    return f"{size / (1 << 20):,.0f} MiB" if size < 1 << 30 else f"{size / (1 << 30):,.1f} GiB"


def escaped(text: str) -> str:
    r"""Escape characters that may harm a terminal, as in ``\x1b``."""
    return HARMFUL.sub(lambda match: _named(match[0]), text)


def shortened(text: str, longest: int) -> str:
    """Shorten a text to about ``longest`` characters by cutting out its middle."""
    if len(text) <= longest:
        return text
    head, tail = longest * 2 // 3, longest // 4
    return f"{text[:head]} … {len(text) - head - tail:,} characters … {text[-tail:]}"


def shell_word(path: object) -> str:
    """Return a path as one word of a shell command, quoted if necessary."""
    return shlex.quote(str(path))


def printable(text: str, longest: int = 100) -> str:
    """Escape unprintable characters in untrusted text and cut it to ``longest`` characters."""
    cut = text[: longest + 1]  # a text may be megabytes long
    shown = cut if cut.isprintable() else "".join(c if c.isprintable() else _named(c) for c in cut)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def counted(count: int, one: str, many: str = "") -> str:
    """Return a number with its noun: ``1 box``, ``1,024 boxes``. By default, the plural ends in ``s``."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def listed(names: Sequence[str]) -> str:
    """Join the first eight names, and append the number of remaining names."""
    shown = ", ".join(f"'{printable(name)}'" for name in names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown


def _name(filename: object) -> str:
    """Return the file name of an ``OSError``, which may be bytes, a path or a file descriptor, as text."""
    return (
        os.fsdecode(filename) if isinstance(filename, str | bytes | os.PathLike) else f"open file {filename}"
    )


def _lines(lines: list[str]) -> str:
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"  … and {len(lines) - _MOST_LINES:,} more lines"]
    return "\n".join(escaped(shortened(line, LONGEST)) for line in lines)


def _named(character: str) -> str:
    r"""Return Python's escape sequence for a character, or ``\xff`` for a byte that is not UTF-8."""
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
