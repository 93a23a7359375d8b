"""The one way a mistake of the user's is told: a sentence, never a traceback.

Every fault names the thing, the value found, what was expected and what to do. Faults that can be
found together are told together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class UserError(Exception):
    """One or more faults in what the user gave. The command line prints them and exits with 2.

    Args:
        faults: one sentence, or several; each stands on a line of its own.
    """

    exit_code = 2

    def __init__(self, faults: str | Iterable[str]) -> None:
        self.faults: tuple[str, ...] = (faults,) if isinstance(faults, str) else tuple(faults)
        super().__init__("\n".join(self.faults))


class TaskError(UserError):
    """An error in the user's own code, with the lines where it happened. The command line exits with 1."""

    exit_code = 1


STOPPED = 85
"""Exit code of a run that was asked to stop and saved its state: a scheduler may requeue it."""

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def printable(text: str, longest: int = 100) -> str:
    """Text out of a file, fit for a message: no control characters, no more than ``longest`` characters."""
    shown = text if text.isprintable() else ascii(text)[1:-1]
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def listed(names: Sequence[str]) -> str:
    """The first few of the names for a message, and how many more there are."""
    shown = ", ".join(f"'{name}'" for name in names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown
