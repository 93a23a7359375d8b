"""Give the package a README whose links lead to the repository; everything else is in pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
LINK = re.compile(r"(!?)(\[[^\[\]]*\])\((?!\w+:|#)([^)\s]+)\)")  # of a path in the repository


def readme() -> str:
    """Return README.md with absolute addresses, of the files as they are in this version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    repository, tag = project["urls"]["Repository"], f"v{project['version']}"

    def absolute(link: re.Match[str]) -> str:
        image, text, path = link.groups()
        return f"{image}{text}({repository}/{'raw' if image else 'blob'}/{tag}/{path})"

    return LINK.sub(absolute, (ROOT / "README.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    setup(long_description=readme(), long_description_content_type="text/markdown")
