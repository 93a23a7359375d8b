"""The file of class names that ``rankless import`` takes."""

from __future__ import annotations

import json
from pathlib import Path

from rankless.errors import UserError, counted
from rankless.files import reading


def read_class_names(path: Path | None, classes: int | None) -> tuple[str, ...] | None:
    """Read the names in a file, a JSON list or one per line; None without a file.

    Args:
        path: of the file.
        classes: how many there have to be; None: any number.
    """
    if path is None:
        return None
    try:
        text = reading.read_text(path, reading.NAMES)
    except OSError as error:
        raise UserError(f"--names {path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"--names {path}: not UTF-8 text (byte {error.start}); expected a class name on every line"
        ) from None
    names = _listed(path, text) if text.lstrip().startswith("[") else text.strip().splitlines()
    names = [name.strip() for name in names]
    problems = [f"--names {path}:{n}: an empty name" for n, name in enumerate(names, 1) if not name]
    if not names:
        problems = [f"--names {path}: has no names; expected a class name on every line, or a JSON list"]
    if classes is not None and classes != len(names):
        problems.append(
            f"--classes is {classes}, but {path} has {counted(len(names), 'name')}; leave --classes out"
        )
    if problems:
        raise UserError(problems)
    return tuple(names)


def _listed(path: Path, text: str) -> list[str]:
    try:
        names = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"--names {path}: starts like a JSON list but is not valid: {error}") from None
    if not all(isinstance(name, str) for name in names):
        raise UserError(f"--names {path}: has entries that are not text; expected a list of class names")
    return list(names)
