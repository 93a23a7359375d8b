"""Pages in a real browser, where there is one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WORDS = ("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0")


def document(url: str, folder: Path, *options: str) -> tuple[str, str]:
    """A page as a browser has it, and what it wrote to its console; the profile lies in ``folder``."""
    if BROWSER is None:
        pytest.skip("there is no Chromium here")
    profile = f"--user-data-dir={folder / 'profile'}"
    done = subprocess.run(
        [BROWSER, *WORDS, profile, *options, "--dump-dom", url], capture_output=True, text=True, timeout=250
    )
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
