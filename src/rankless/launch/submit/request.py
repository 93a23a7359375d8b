"""A request to submit a training run to a cluster."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rankless.errors import UserError, printable


@dataclass(frozen=True)
class Request:
    """A training run to submit to a cluster."""

    recipe: str  # name of a shipped recipe, or path of a file on the cluster
    overrides: tuple[str, ...] = ()
    nodes: int = 1
    devices: int = 1  # per machine
    run: str | None = None  # None lets the ranks choose one
    sinks: tuple[str, ...] = ()
    name: str = "rankless"
    cpus: int | None = None  # per rank; None for the cluster's default
    recipe_text: str | None = None  # contents of the recipe file if the cluster does not have it

    @property
    def ranks(self) -> int:
        """The number of ranks on all machines."""
        return self.nodes * self.devices

    def words(self) -> list[str]:
        """Return the arguments after ``python -m``. The ranks compare ``--devices`` with the world size."""
        out = [] if self.run is None else ["--out", self.run]
        sinks = [word for sink in self.sinks for word in ("--sink", sink)]
        devices = ["--devices", str(self.ranks)]
        return ["rankless", "train", self.recipe, *self.overrides, *out, *devices, *sinks]


def refuse_unlike(options: Mapping[str, str | None], expected: Mapping[str, tuple[str, str]]) -> None:
    """Raise a UserError if the value of an option does not match its pattern.

    ``expected`` maps each option to its pattern and a description of valid values.
    """
    wrong = [
        f"{name} is '{printable(value)}'; expected {expected[name][1]}"
        for name, value in options.items()
        if value is not None and not re.fullmatch(expected[name][0], value)
    ]
    if wrong:
        raise UserError(wrong)


def pass_on(text: str, command: Sequence[str], *, instead: str, remedy: Callable[[str], str]) -> str:
    """Pass a job description to a cluster's command-line program, and return the program's output.

    ``instead`` is the advice if the program is not installed. ``remedy`` takes the program's error output and
    returns the advice.
    """
    name, *options = command
    program = shutil.which(name)
    if program is None:
        raise UserError(f"{name}: no such command on this machine; {instead}")
    given = text.encode(errors="surrogateescape")
    done = subprocess.run([program, *options], input=given, capture_output=True, check=False)
    if done.returncode:
        reason = " ".join(done.stderr.decode(errors="replace").split())
        raise UserError(f"{name}: refused the job ({reason}); {remedy(reason)}")
    return done.stdout.decode(errors="replace")


def job_name(recipe: str) -> str:
    """Return a job name that every cluster accepts, derived from the recipe's name."""
    stem = recipe.rpartition("/")[2].removesuffix(".yaml").removesuffix(".yml")
    name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:40].rstrip("-")
    return name if name[:1].isalpha() else f"train-{name}".rstrip("-")
