"""A training to submit to a cluster, and checks before it waits in a queue."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rankless.errors import UserError, printable
from rankless.launch.sharing import refuse_idle
from rankless.recipe.schema import Recipe


@dataclass(frozen=True)
class Request:
    """A training to submit.

    Attributes:
        recipe: name of a shipped recipe, or path of a recipe file on the cluster.
        overrides: recipe changes as ``key=value``.
        nodes: number of machines.
        devices: number of ranks per machine.
        run: the run directory; None lets the ranks choose one.
        sinks: names of additional sinks.
        name: the job's name.
    """

    recipe: str
    overrides: tuple[str, ...] = ()
    nodes: int = 1
    devices: int = 1
    run: str | None = None
    sinks: tuple[str, ...] = ()
    name: str = "rankless"

    @property
    def ranks(self) -> int:
        """Number of ranks on all machines."""
        return self.nodes * self.devices

    def words(self) -> list[str]:
        """Return the arguments after ``python -m``; ``--devices`` lets every rank check the world size."""
        out = [] if self.run is None else ["--out", self.run]
        sinks = [word for sink in self.sinks for word in ("--sink", sink)]
        devices = ["--devices", str(self.ranks)]
        return ["rankless", "train", self.recipe, *self.overrides, *out, *devices, *sinks]


class Problems:
    """A collection of a command's problems, to report all at once."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def check(self, right: bool, problem: str) -> None:
        """Add ``problem`` unless ``right``."""
        if not right:
            self.found.append(problem)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Add the problems of a :class:`UserError` that ends the block."""
        try:
            yield
        except UserError as error:
            self.found += error.problems

    def match(self, options: Mapping[str, tuple[str | None, str, str]]) -> None:
        """Check options, each given as its value or None, a pattern, and a text about the expected value."""
        for option, (value, pattern, expected) in options.items():
            self.check(
                value is None or re.fullmatch(pattern, value) is not None,
                f"{option}: is '{printable(value or '')}'; expected {expected}: correct it",
            )

    def refuse(self) -> None:
        """Raise the collected problems, if any."""
        if self.found:
            raise UserError(self.found)


def pass_on(text: str, command: Sequence[str], *, instead: str, remedy: Callable[[str], str]) -> str:
    """Pass a job's description to the cluster's program on standard input, and return its output.

    Args:
        text: the description.
        command: the program and its arguments.
        instead: the advice if this machine does not have the program.
        remedy: returns the advice for the program's error output.
    """
    name, *options = command
    program = shutil.which(name)
    if program is None:
        raise UserError(f"{name}: no such command here; {instead}")
    given = text.encode(errors="surrogateescape")
    done = subprocess.run([program, *options], input=given, capture_output=True, check=False)
    if done.returncode:
        said = " ".join(done.stderr.decode(errors="replace").split())
        raise UserError(f"{name}: refuses ({said}); {remedy(said)}")
    return done.stdout.decode(errors="replace")


def job_name(recipe: str) -> str:
    """Return a job name that every cluster accepts, derived from the recipe's name."""
    stem = recipe.rpartition("/")[2].removesuffix(".yaml").removesuffix(".yml")
    name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:40].rstrip("-")
    return name if name[:1].isalpha() else f"train-{name}".rstrip("-")


def checked(
    problems: Problems, words: Sequence[str], load: Callable[[Sequence[str]], tuple[Recipe, str]], ranks: int
) -> tuple[str, tuple[str, ...]]:
    """Split words into the recipe and its overrides, and check that ``ranks`` ranks can train it.

    Args:
        problems: collects the errors.
        words: the recipe and ``key=value`` overrides.
        load: reads the recipe.
        ranks: number of ranks.
    """
    named = next((word for word in words if "=" not in word), "")
    with problems.noted():
        if not named:
            raise UserError("no recipe given: expected a shipped recipe's name or a YAML file")
        recipe, _ = load(words)
        refuse_idle("{} devices", [ranks], recipe)
    return named, tuple(word for word in words if word != named)
