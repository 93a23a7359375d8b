"""The record of a run's starts, ``environment.json``: each start's hardware and software, the newest last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rankless.files.reading import MIB, read_text, reason

_LONGEST = 64 * MIB  # some 20,000 starts


def read(path: Path) -> tuple[list[dict[str, Any]], str]:
    """Return a record's entries, and the problem with the file; both are empty if the file is missing."""
    try:
        content = json.loads(read_text(path, _LONGEST, encoding="utf-8"))
    except FileNotFoundError:
        return [], ""
    except (OSError, UnicodeDecodeError) as error:
        return [], reason(error)
    except (ValueError, RecursionError):
        return [], "it is not JSON"
    entries = [content] if isinstance(content, dict) else content  # an old version kept a single entry
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        return [], "it is not a list of starts"
    return entries, ""
