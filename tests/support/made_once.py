"""Files that take long to make are made once for all workers of a session."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from rankless.files.cache_folder import locked
from support.process_server import SHARED


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that ``make(folder)`` has filled for the first worker that asked. Tests only read."""
    home = Path(os.environ[SHARED]).with_name(f"made-{name}")
    folder, whole = home / "content", home / "whole"
    with locked(home):
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)  # what a worker left that failed
            folder.mkdir()
            make(folder)
            whole.touch()
    return folder
