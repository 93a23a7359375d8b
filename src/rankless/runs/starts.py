"""The record of a run's starts, ``environment.json``, with the hardware and software of each start."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankless.files.reading import MIB, read_text, reason

# These do not affect numbers, because the recipe sets the threads and Python only calls numerical libraries.
# But OMP_DYNAMIC and OMP_THREAD_LIMIT give a computation fewer threads than the recipe.
WITHOUT_EFFECT = re.compile(
    r".*_NUM_THREADS|OMP_(?!DYNAMIC$|THREAD_LIMIT$).*|KMP_.*|GOMP_.*|CUDA_VISIBLE_DEVICES|python"
    r"|PYTORCH_.*(ALLOC_CONF|CACHE_PATH|CACHING)"
)
MAY_DIFFER = ("python", "NVIDIA driver")
"""Versions that may differ between ranks."""
_SECTIONS = ("hardware", "instruction_set", "versions", "variables")
_LONGEST = 64 * MIB  # enough for about 20,000 starts


def read(path: Path) -> tuple[list[dict[str, Any]], str]:
    """Return the entries of the record and the problem with the file, which is "" if there is none."""
    try:
        content = json.loads(read_text(path, _LONGEST, encoding="utf-8"))
    except FileNotFoundError:
        return [], ""
    except (OSError, UnicodeDecodeError) as error:
        return [], reason(error)
    except (ValueError, RecursionError):
        return [], "it is not JSON"
    entries = [content] if isinstance(content, dict) else content  # an old version wrote a single entry
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        return [], "it is not a list of starts"
    return entries, ""


def deciding(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that can affect weights."""
    return {name: value for name, value in variables.items() if not WITHOUT_EFFECT.fullmatch(name)}


def facts(start: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of a start that can affect weights, by names such as ``versions.torch``."""
    sections = {name: start[name] for name in _SECTIONS if isinstance(start.get(name), dict)}
    return {
        f"{section}.{name}": str(value)
        for section, values in sections.items()
        for name, value in values.items()
        if not WITHOUT_EFFECT.fullmatch(name) and name not in MAY_DIFFER
    }
