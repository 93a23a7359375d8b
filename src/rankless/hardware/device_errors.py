"""Recognize errors of a GPU that running the same code again would only repeat."""

from __future__ import annotations

import traceback
from pathlib import Path

from rankless.errors import UserError

# Other errors, such as those of damaged memory, may disappear after a restart.
_REPEATED = ("device-side assert triggered", "illegal memory access was encountered", "misaligned address")


def device_error(error: BaseException) -> UserError | None:
    """Return a short error if a kernel used an invalid index or address; otherwise, return None."""
    first, *_ = str(error).splitlines() or [""]
    if not any(sign in first for sign in _REPEATED):
        return None
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "torch" not in Path(frame.filename).parts
    ]
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return UserError(
        f"{first} (noticed{where}; with CUDA_LAUNCH_BLOCKING=1, that is where it happens): a kernel on the "
        "GPU got an index or address that is out of range, most often a class id; check that all labels and "
        "indices are smaller than the number of classes or rows, as with: rankless data check"
    )
