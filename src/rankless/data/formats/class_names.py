"""Class names that stand in a file of their own, one a line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rankless.errors import UserError
from rankless.files import reading

PATTERNS = ("classes.txt", "*_classes.txt", "*.names")


def names_file(folders: Iterable[Path]) -> Path | None:
    """The first ``classes.txt``, ``*_classes.txt`` or ``*.names`` in the folders, in this order."""
    folders = [folder for folder in dict.fromkeys(folders) if folder.is_dir()]
    found = (file for pattern in PATTERNS for folder in folders for file in sorted(folder.glob(pattern)))
    return next((file for file in found if file.is_file()), None)


def read_names(file: Path) -> tuple[str, ...]:
    """The names in a file; empty lines count for nothing.

    Raises:
        UserError: it cannot be read, or has none.
    """
    try:
        lines = reading.read_text(file, reading.NAMES).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{file} cannot be read: {reading.reason(error)}; expected one class name a line in UTF-8."
        ) from None
    names = tuple(line.strip() for line in lines if line.strip())
    if not names:
        raise UserError(f"{file} is empty, expected one class name a line.")
    return names
