"""The record of a run's starts, ``environment.json``: hardware and software of each, the newest last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rankless.files.reading import MIB, read_text, reason

_LONGEST = 64 * MIB  # some 20,000 starts


def read(path: Path) -> tuple[list[dict[str, Any]], str]:
    """Return a record's entries and the problem with the file; both empty if there is none."""
    try:
        content = json.loads(read_text(path, _LONGEST, encoding="utf-8"))
    except FileNotFoundError:
        return [], ""
    except (OSError, UnicodeDecodeError) as error:
        return [], reason(error)
    except (ValueError, RecursionError):
        return [], "it is no JSON"
    entries = [content] if isinstance(content, dict) else content  # of a version with one entry alone
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        return [], "it is no list of starts"
    return entries, ""
