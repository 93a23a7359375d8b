"""``SHA256SUMS``: the checksums beside the files of a checkpoint, in the format of ``sha256sum``."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from rankless.files import reading

NAME = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64}) [ *]([^/\0]+)")
_LONGEST = 1 << 20  # bytes; a few hundred are usual


def text(sums: Mapping[str, str]) -> str:
    """Write the content of the file, given digests by file name."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))


def read(folder: Path) -> dict[str, str] | None:
    """Read digests by file name; None if ``folder`` has no such file. Invalid lines are skipped."""
    try:
        lines = reading.read_text(folder / NAME, _LONGEST, errors="replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return {match[2]: match[1] for match in map(_LINE.fullmatch, lines) if match}


def of_file(path: Path, most: int | None = None) -> str:
    """Compute the SHA-256 of a regular file, of limited size if ``most`` is given."""
    with reading.opened(path, most) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
