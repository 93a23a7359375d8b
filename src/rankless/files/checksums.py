"""The file ``SHA256SUMS``, with the checksums of a checkpoint's files in the format of ``sha256sum``."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from rankless.files import reading

NAME = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64}) [ *]([^/\0]+)")
_DIGITS = re.compile(r"-([0-9a-f]{8,64})\.pth$")
_LONGEST = 1 << 20  # bytes; files usually have a few hundred


def text(sums: Mapping[str, str]) -> str:
    """Return the contents of ``SHA256SUMS``, given digests by file name."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))


def read(folder: Path) -> dict[str, str] | None:
    """Return the digests by file name, or None if there is no ``SHA256SUMS``; skip invalid lines."""
    try:
        lines = reading.read_text(folder / NAME, _LONGEST, errors="replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return {match[2]: match[1] for match in map(_LINE.fullmatch, lines) if match}


def digits_in(name: str) -> str:
    """Return the SHA-256 digits in a name such as ``resnet18-f37072fd.pth``, or an empty string."""
    match = _DIGITS.search(name)
    return match[1] if match else ""


def of_file(path: Path, most: int | None = None) -> str:
    """Return the SHA-256 digest of a regular file of at most ``most`` bytes."""
    with reading.opened(path, most) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
