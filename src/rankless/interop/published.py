"""Names of published files that say the beginning of the file's SHA-256, as PyTorch's do."""

from __future__ import annotations

import re
from pathlib import Path

from rankless.files import checksums

_DIGITS = re.compile(r"-([0-9a-f]{8})\.pth")


def checked_name(source: Path) -> list[str]:
    """Compare a file's SHA-256 with the digits in its name, as in ``resnet18-f37072fd.pth``.

    Returns:
        A note about the result; nothing for other names. The digits may also be a date, so that a difference
        is a warning.
    """
    said = _DIGITS.search(source.name)
    if said is None:
        return []
    found = checksums.of_file(source)
    if found.startswith(said[1]):
        return [f"its SHA-256 begins with {said[1]}, as its name says"]
    return [
        f"warning: its SHA-256 begins with {found[:8]}, not with the {said[1]} of its name; if it is a "
        "published file it is damaged: download it again"
    ]
