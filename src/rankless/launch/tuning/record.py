"""The record of a search: ``search.json`` in its folder, and ``trials.csv`` with the same data as a table."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from rankless.errors import UserError
from rankless.files.reading import MIB, read_text
from rankless.files.writing import write_atomically
from rankless.launch.tuning.space import Range

FINISHED, FAILED, RUNNING = "finished", "failed", "running"
_FILE, _TABLE = "search.json", "trials.csv"


@dataclass(frozen=True)
class Trial:
    """One run of a search."""

    number: int  # starts at 1; trial 1 uses the unchanged recipe
    params: Mapping[str, Any]
    changes: Sequence[str]  # recipe changes as key=value
    state: str  # finished, failed, or running, which is never recorded
    score: float | None = None
    seconds: float = 0.0  # duration of the training steps in seconds
    problem: str = ""


@dataclass(frozen=True)
class Search:
    """The definition of a search."""

    recipe: str  # as JSON
    name: str  # of the recipe, for the command that trains with the best values
    words: Sequence[str]  # the user's recipe changes as key=value
    space: Mapping[str, Range]
    score_name: str
    lower_is_better: bool
    seed: int = 0
    keeps_all: bool = False  # keeps the weights of all trials instead of only those of the best trial


@dataclass
class Record:
    """A search and its trials, stored in a folder."""

    folder: Path
    search: Search
    trials: list[Trial] = field(default_factory=list)

    def add(self, trial: Trial) -> None:
        """Add a trial to the record and write the files."""
        self.trials.append(trial)
        self.write()

    def write(self) -> None:
        content = {"search": asdict(self.search), "trials": [asdict(trial) for trial in self.trials]}
        write_atomically(self.folder / _FILE, json.dumps(content, indent=1) + "\n")
        table = io.StringIO()
        keys = list(self.search.space)
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(["trial", "state", self.search.score_name, "seconds", *keys, "run", "problem"])
        for one in self.trials:
            values = [one.params.get(key, "") for key in keys]
            run = self.run(one.number)
            writer.writerow(
                [one.number, one.state, one.score, f"{one.seconds:.0f}", *values, run, one.problem]
            )
        write_atomically(self.folder / _TABLE, table.getvalue())

    def run(self, number: int) -> Path:
        return self.folder / f"trial-{number:03}"

    def command(self, one: Trial) -> str:
        """Return the command that trains with a trial's values."""
        return shlex.join(("rankless", "train", self.search.name, *self.search.words, *one.changes))

    def ranked(self) -> list[Trial]:
        """Return the finished trials, starting with the best."""
        sign = 1 if self.search.lower_is_better else -1
        done = [trial for trial in self.trials if trial.score is not None]
        return sorted(done, key=lambda trial: sign * float(trial.score or 0.0))

    def table(self) -> list[str]:
        """Return the header and a row per trial, with the best trial first and failed trials last."""
        failed = [one for one in self.trials if one.score is None]
        return [self.header(), *map(self.row, [*self.ranked(), *failed])]

    def header(self) -> str:
        names = "".join(f"{key.rpartition('.')[2]:>{width}}" for key, width in self._columns())
        return f"{'trial':>5}  {self.search.score_name:>7}{names}"

    def row(self, one: Trial) -> str:
        if one.state == FAILED:
            return f"{one.number:>5}  {one.state:>7}  {one.problem}"
        values = "".join(f"{as_text(one.params.get(key)):>{width}}" for key, width in self._columns())
        score = "" if one.score is None else f"{one.score:.4f}"
        return f"{one.number:>5}  {score or one.state:>7}{values}"

    def _columns(self) -> list[tuple[str, int]]:
        return [(key, max(len(key.rpartition(".")[2]), 8) + 2) for key in self.search.space]


def as_text(value: object) -> str:
    """Format a value for a table; None (a value outside the range) becomes a dash."""
    return "–" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


class _File(msgspec.Struct):
    """The contents of ``search.json``."""

    search: Search
    trials: list[Trial]


def opened(folder: Path) -> Record:
    """Read the search recorded in a folder."""
    path = folder / _FILE
    try:
        content = msgspec.json.decode(read_text(path, 64 * MIB), type=_File)
    except FileNotFoundError:
        raise UserError(
            f"--out {folder}: contains no search (no {_FILE}); use the folder of a search, or omit --resume"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); start a new search") from None
    return Record(folder, content.search, content.trials)
