"""The training to submit to a cluster, checked before it waits in a queue."""

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
    """A training.

    Attributes:
        recipe: as the ranks read it: a shipped one's name, or a file.
        overrides: ``key=value`` each.
        nodes: machines.
        devices: ranks on each of them.
        run: the run directory; None has the ranks choose one.
        sinks: the user's, by name.
        name: of the job.
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
        """The number of ranks on all machines."""
        return self.nodes * self.devices

    def words(self) -> list[str]:
        """What follows ``python -m``; the number of devices has every rank check how many came."""
        out = [] if self.run is None else ["--out", self.run]
        sinks = [word for sink in self.sinks for word in ("--sink", sink)]
        devices = ["--devices", str(self.ranks)]
        return ["rankless", "train", self.recipe, *self.overrides, *out, *devices, *sinks]


class Problems:
    """Collects the problems of a command, so that all are reported at once."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def check(self, right: bool, problem: str) -> None:
        """Note a problem unless something is right."""
        if not right:
            self.found.append(problem)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Inside, a :class:`UserError` is noted; what follows it there is left out."""
        try:
            yield
        except UserError as error:
            self.found += error.problems

    def match(self, options: Mapping[str, tuple[str | None, str, str]]) -> None:
        """Check options that are given.

        Args:
            options: of each its value, the pattern of the whole value, and what is expected.
        """
        for option, (value, pattern, expected) in options.items():
            self.check(
                value is None or re.fullmatch(pattern, value) is not None,
                f"{option}: is '{printable(value or '')}'; expected {expected}: correct it",
            )

    def refuse(self) -> None:
        """Raise the collected problems."""
        if self.found:
            raise UserError(self.found)


def pass_on(text: str, command: Sequence[str], *, instead: str, remedy: Callable[[str], str]) -> str:
    """Give a job's description to the cluster's own program on the standard input; what that prints.

    Args:
        text: the description.
        command: the program and its arguments.
        instead: what to do where this machine does not have the program.
        remedy: given what it says, what is expected and what to do about it.
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
    """A name that every cluster takes, made from a recipe's: lower case, at most 40 characters."""
    stem = recipe.rpartition("/")[2].removesuffix(".yaml").removesuffix(".yml")
    name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:40].rstrip("-")
    return name if name[:1].isalpha() else f"train-{name}".rstrip("-")


def checked(
    problems: Problems, words: Sequence[str], load: Callable[[Sequence[str]], tuple[Recipe, str]], ranks: int
) -> tuple[str, tuple[str, ...]]:
    """The recipe's word and the overrides, where the recipe can be read.

    Args:
        problems: where errors are noted.
        words: the recipe and ``key=value``.
        load: reads the recipe, and returns it with its name.
        ranks: how many there will be.
    """
    named = next((word for word in words if "=" not in word), "")
    with problems.noted():
        if not named:
            raise UserError("no recipe given: expected a shipped recipe's name or a YAML file")
        recipe, _ = load(words)
        refuse_idle("{} devices", [ranks], recipe)
    return named, tuple(word for word in words if word != named)
