"""Report errors in the user's own code with the lines that raised them.

Such errors are reported at once, because restarting the rank would only repeat them. Code is
the user's own unless it belongs to this package, to Python or to an installed package.
"""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from rankless.errors import TaskError, UserError
from rankless.hardware.shortages import shortage

_OURS = str(Path(__file__).parent)
_PYTHONS = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
_INSTALLED = ("site-packages", "dist-packages")
_SHOWN = 6  # lines of code
_LONG = 400  # characters of an exception's message


def explained(error: BaseException) -> UserError | None:
    """Return a user error for a shortage of memory or an exception in the user's own code, otherwise None."""
    return shortage(error) or blamed(error)


def blamed(error: BaseException) -> TaskError | None:
    """Return an error with the user's lines that raised the exception, or None if other code raised it."""
    if type(error).__name__ == "AcceleratorError":
        return None  # the device failed, not the code
    frames = traceback.extract_tb(error.__traceback__)
    own = [number for number, frame in enumerate(frames) if is_users(frame.filename)]
    if not own:
        return None
    # If the user's code called a library that raised the exception, the library's last line is also shown.
    shown = [frames[number] for number in own[-_SHOWN:]]
    if own[-1] < len(frames) - 1 and not frames[-1].filename.startswith(_OURS):
        shown.append(frames[-1])
    words = "".join(traceback.format_exception_only(error)).strip()
    lines = [words if len(words) <= _LONG else f"{words[:_LONG]} …"]
    for frame in shown:
        lines.append(f"  {frame.filename}:{frame.lineno}, in {frame.name}")
        if frame.line:
            lines.append(f"    {frame.line}")
    return TaskError("\n".join(lines))


def is_users(filename: str) -> bool:
    """Check whether a file contains the user's own code."""
    if filename.startswith("<") or Path(filename).is_relative_to(_OURS):
        return False
    if any(part in _INSTALLED for part in Path(filename).parts):
        return False
    return not any(Path(filename).is_relative_to(place) for place in _PYTHONS)
