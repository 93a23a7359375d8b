"""Where things are cached, and that no other user of the machine has a hand in it."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from unittest.mock import patch

import pytest

from rankless.files.cache_folder import cache_folder


@pytest.mark.parametrize("foreign", [False, True])
def test_without_a_home_the_cache_is_in_a_folder_of_this_user_alone(
    foreign: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANKLESS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    guessed = tmp_path / f"cache-{os.geteuid()}"
    if foreign:
        guessed.mkdir(mode=0o700)
        guessed.chmod(0o777)
    with patch.object(Path, "home", side_effect=RuntimeError):
        found = cache_folder()
    assert (found.parent == guessed) != foreign
    assert stat.S_IMODE(found.parent.stat().st_mode) == 0o700
