"""Print the lower bounds of pyproject.toml as constraints, for ``make test DEPENDENCIES=lowest``."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

# NAME>=VERSION, whatever follows.
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)>=([0-9.]+)")


def lower_bounds(project: Path) -> list[str]:
    """``NAME==VERSION`` for every requirement of the package and of its tests.

    Raises:
        ValueError: a requirement without a lower bound.
    """
    declared = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    extras = declared["optional-dependencies"]
    requirements = [*declared["dependencies"]]
    for requirement in extras["test"]:
        own = re.fullmatch(rf"{declared['name']}\[(.+)\]", requirement)
        requirements += (
            [line for extra in own[1].split(",") for line in extras[extra]] if own else [requirement]
        )
    bounds = []
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match is None:
            raise ValueError(f"{project}: '{requirement}' has no lower bound")
        bounds.append(f"{match[1]}=={match[2]}")
    return bounds


if __name__ == "__main__":
    print("\n".join(lower_bounds(Path(__file__).parents[2] / "pyproject.toml")))
