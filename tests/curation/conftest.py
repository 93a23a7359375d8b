"""Every test here knows the format ``small``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import small_data


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """See :mod:`small_data`; what is read is kept for the one test alone."""
    monkeypatch.setenv("RANKLESS_CACHE", str(tmp_path / "cache"))
    small_data.install(monkeypatch)
