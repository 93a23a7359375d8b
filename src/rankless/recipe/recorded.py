"""The recipe that a weights file holds, read from its header without PyTorch."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from rankless.files.reading import MIB, opened

_LONGEST_HEADER = 100 * MIB  # the limit of safetensors


def recipe_in(path: Path) -> dict[str, Any] | None:
    """Return the recipe inside a weights file as it is recorded, a tree of keys and values.

    None if there is none to be read: loading the file reports what is wrong with it.
    """
    try:
        with opened(path) as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, _LONGEST_HEADER)))
        tree = json.loads(header["__metadata__"]["recipe"])
    except (OSError, struct.error, ValueError, RecursionError, KeyError, TypeError):
        return None
    return tree if isinstance(tree, dict) else None
