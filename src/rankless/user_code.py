"""Errors in code that is the user's own: reported at once and in few lines, with the lines of that code.

They would come again however often a rank is restarted. Code is the user's when it is neither this package's,
nor Python's, nor in a folder of installed packages.
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
_LONG = 400  # characters of an error's own words


def explained(error: BaseException) -> UserError | None:
    """The error in words where a restart would only meet it again; None where it may help.

    Returns:
        That memory ran out, whoever asked for it, or what :func:`blamed` says.
    """
    return shortage(error) or blamed(error)


def blamed(error: BaseException) -> TaskError | None:
    """The error in words, where it came out of the user's own code; None where it did not."""
    if type(error).__name__ == "AcceleratorError":
        return None  # a device that failed, wherever the program was: a restart may help
    frames = traceback.extract_tb(error.__traceback__)
    own = [number for number, frame in enumerate(frames) if is_users(frame.filename)]
    if not own:
        return None
    # Where the way leads through the user's code and then into a library, its last line there is shown too.
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
    """Check whether a file is the user's own code."""
    if filename.startswith("<") or Path(filename).is_relative_to(_OURS):
        return False
    if any(part in _INSTALLED for part in Path(filename).parts):
        return False
    return not any(Path(filename).is_relative_to(place) for place in _PYTHONS)
