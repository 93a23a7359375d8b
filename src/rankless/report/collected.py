"""The contents of a run directory, read once and then updated with new lines of the journal.

Memory is bounded: the numbers of the steps of a long run are stored as sums over ranges of steps (bins).
"""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankless.errors import UserError
from rankless.files.reading import MIB, read_text
from rankless.recipe import load as recipes
from rankless.runs import journal, starts
from rankless.runs.directory import RunDirectory, similar_run
from rankless.runs.following import is_alive
from rankless.runs.overview import STATES, last_decisive
from rankless.runs.pace import Pace
from rankless.runs.scoring import LOWER_IS_BETTER, is_better, name_of_best

MOST = 1000
"""Maximum number of bins, about one per pixel of a chart."""

_LARGEST = 1e100


@dataclass
class Bin:
    """A range of steps, ``first`` to ``last``, with the sum and the count of each number by name."""

    first: int
    last: int
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, values: Mapping[str, float], counts: Mapping[str, int] | None = None) -> None:
        """Add numbers by name or, with ``counts``, sums of that many numbers each."""
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + (counts[name] if counts else 1)

    def mean(self, name: str) -> float | None:
        """Return the mean of the numbers called ``name``, or None if there are none."""
        count = self.counts.get(name, 0)
        return self.sums[name] / count if count else None


class Binned:
    """The numbers of all steps in at most ``most`` bins, kept below this limit by merging pairs of bins."""

    def __init__(self, most: int = MOST) -> None:
        self.most, self.width = most, 1
        self.bins: list[Bin] = []
        self.names: dict[str, None] = {}

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add the numbers of a step, except those that are not finite or so large that a sum may overflow.

        Steps start at 1 and must increase.
        """
        finite = {name: value for name, value in values.items() if abs(value) < _LARGEST}
        self.names |= dict.fromkeys(finite)
        if not self.bins or step > self.bins[-1].last:
            first = (step - 1) // self.width * self.width + 1
            self.bins.append(Bin(first, first + self.width - 1))
        self.bins[-1].add(finite)
        while len(self.bins) > self.most:
            self._halve()

    def _halve(self) -> None:
        self.width *= 2
        bins, self.bins = self.bins, []
        for one in bins:
            first = (one.first - 1) // self.width * self.width + 1
            if not self.bins or self.bins[-1].first != first:
                self.bins.append(Bin(first, first + self.width - 1))
            self.bins[-1].add(one.sums, one.counts)

    def points(self, name: str) -> Iterator[tuple[float, float]]:
        """Yield the middle step of each bin and the mean of its numbers called ``name``."""
        for one in self.bins:
            mean = one.mean(name)
            if mean is not None:
                yield (one.first + one.last) / 2, mean

    def total(self, name: str) -> float:
        """Return the sum of the numbers called ``name`` over all steps."""
        return math.fsum(one.sums.get(name, 0.0) for one in self.bins)


_LONGEST = 64 * MIB  # bytes of evaluation.json
_PLAIN = ("loss", "lr", "gradient_norm", "epoch")


class Collected:
    """The data of one run, read from its files. Attributes are empty if their source cannot be read.

    Attributes:
        steps: the numbers of the steps: ``loss``, ``lr``, ``gradient_norm``, ``epoch`` and ``part:NAME``, and
            the durations ``seconds``, ``waited`` (for images), ``network`` (for other ranks) and ``elapsed``
            (since the start of the first step), in seconds.
        step: number of the last step.
        evaluations: step and scores of each evaluation, in order.
        events: the journal's events, each with the ``step`` after which it happened, and the time ``when`` in
            seconds since 1970, or None if unknown.
        spread: pairs of a step and every rank's milliseconds per micro-batch.
        memory: last recorded peak memory of each rank's device in MiB.
        busy: last recorded fraction of the time that each rank's device spent computing.
        recipe: values by dotted key.
        details: details of the best evaluation from ``evaluation.json``.
        times: the start of the first step and the end of the last one, in seconds since 1970, or None.
    """

    def __init__(self, path: Path) -> None:
        self.run = RunDirectory(path)
        self.name = path.resolve().name
        self._journal = journal.Follower(self.run.journal)
        self.recipe: dict[str, Any] = {}
        self.recipe_text = ""
        self.starts: list[dict[str, Any]] = []
        self.details: dict[str, Any] = {}
        self._forget()

    def _forget(self) -> None:
        self.steps, self.step = Binned(), 0
        self.evaluations: list[tuple[int, dict[str, Any]]] = []
        self.events: list[dict[str, Any]] = []
        self.spread: list[tuple[int, list[float]]] = []
        self.memory: list[float] = []
        self.busy: list[float] = []
        self.times: tuple[float, float] | None = None
        self.pace = Pace()

    def refresh(self) -> Collected:
        """Read the new entries and return this object."""
        try:
            if self._journal.was_cut():
                self._forget()
            for entry in self._journal.entries():
                self._take(entry)
        except OSError as error:
            if not self.run.path.exists():
                raise UserError(f"{self.run.path}: no such run{similar_run(self.run.path)}") from None
            raise UserError(
                f"{self.run.path}: the journal cannot be read ({error.strerror or error}); expected a run "
                "directory, which contains a journal a few seconds after the run starts"
            ) from None
        self._read_beside()
        return self

    def _take(self, entry: Mapping[str, Any]) -> None:
        if "step" in entry:
            self._take_step(int(entry["step"]), entry)
        elif "evaluation" in entry:
            self.evaluations.append((int(entry["evaluation"]), dict(entry["scores"])))
        elif isinstance(entry.get("event"), str):
            when = as_number(entry.get("timing", {}).get("time"))
            if entry["event"] in ("start", "resume"):
                self.pace.begins = True
            self.events.append({**entry, "step": max(_whole(entry.get("at")), 0), "when": when})

    def _take_step(self, step: int, entry: Mapping[str, Any]) -> None:
        if step <= self.step:  # the journal may have been edited by hand
            return
        self.step = step
        timing: dict[str, Any] = entry.get("timing", {})
        parts = entry.get("parts")
        values = {name: as_number(entry.get(name)) for name in _PLAIN}
        if isinstance(parts, dict):
            values |= {f"part:{name}": as_number(value) for name, value in parts.items()}
        seconds = as_number(timing.get("seconds"))
        values["seconds"] = seconds
        if seconds is not None:
            values["waited"] = seconds * (as_number(timing.get("waited")) or 0.0)
            values["network"] = seconds * (as_number(timing.get("network")) or 0.0)
            self.pace.add(seconds, as_number(timing.get("waited")) or 0.0)
        if (now := as_number(timing.get("time"))) is not None:
            first, last = self.times or (now - (seconds or 0.0), now)
            self.times = (first, max(last, now))  # the clock may have been set back
            values["elapsed"] = self.times[1] - first
        self.steps.add(step, {name: value for name, value in values.items() if value is not None})
        if (ranks := _numbers(timing.get("ranks"))) is not None:
            self.spread.append((step, ranks))
        self.memory = _numbers(timing.get("memory")) or self.memory
        self.busy = _numbers(timing.get("busy")) or self.busy

    def _read_beside(self) -> None:
        self.starts, _ = starts.read(self.run.environment)
        details = _json(self.run.evaluation)
        known = {step for step, _ in self.evaluations}
        is_known = isinstance(details, dict) and _whole(details.get("step")) in known
        self.details = details if is_known and isinstance(details, dict) else {}
        if self.recipe_text:
            return
        try:
            self.recipe_text = read_text(self.run.recipe, MIB, encoding="utf-8")
            self.recipe = dict(_flat(json.loads(recipes.to_json(recipes.load(self.run.recipe)))))
        except (OSError, ValueError, UserError):
            pass

    @property
    def score_name(self) -> str | None:
        """The name of the score that selects the best weights, or None if there is none."""
        given = str(self.recipe.get("evaluate.best", "auto"))
        return name_of_best(given, self.evaluations[-1][1]) if self.evaluations else None

    @property
    def drawn_score(self) -> str | None:
        """The name of the score to draw: ``score_name`` or, if that is a loss, the task's score."""
        name = self.score_name
        return name_of_best("auto", self.evaluations[-1][1]) if name in LOWER_IS_BETTER else name

    @property
    def best(self) -> tuple[int, dict[str, Any]] | None:
        """The step and scores of the best evaluation (the first one if tied), or None if there is none."""
        name, best = self.score_name, None
        for step, scores in self.evaluations:
            value = as_number(scores.get(name)) if name else None
            if name and value is not None and is_better(name, value, best[1][name] if best else None):
                best = (step, scores)
        return best or (self.evaluations[-1] if self.evaluations else None)

    @property
    def images_per_second(self) -> float | None:
        """The average number of images per second of all ranks together, or None if unknown."""
        images = as_number(self.recipe.get("batch.images"))
        return self.pace.images_per_second(images) if images else None

    def elapsed(self, step: float, when: float | None = None) -> float:
        """Return the seconds from the start of the first step to the end of ``step``, or to ``when``."""
        if when is not None and self.times:
            return max(when - self.times[0], 0.0)
        points = [(0.0, 0.0), *self.steps.points("elapsed")]
        right = bisect.bisect_left(points, step, key=lambda point: point[0])
        if right in (0, len(points)):
            return points[min(right, len(points) - 1)][1]
        (x0, y0), (x1, y1) = points[right - 1 : right + 1]
        return y0 + (y1 - y0) * (step - x0) / (x1 - x0)

    @property
    def ranks(self) -> int:
        """The number of ranks at the last start, or 0 if unknown."""
        sizes = [_whole(entry.get("world_size")) for entry in self.events if "world_size" in entry]
        return sizes[-1] if sizes else 0

    @property
    def state(self) -> str:
        """The state of the run in one or two words, as ``rankless runs`` prints it."""
        last = last_decisive(self.events)
        if last not in ("end", "stop") and is_alive(self.run.path, last):
            return "running"
        return STATES.get(last or "", "interrupted")


def _flat(tree: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in tree.items():
        found += _flat(value, f"{before}{name}.") if isinstance(value, dict) else [(f"{before}{name}", value)]
    return found


def _json(path: Path) -> Any:
    try:
        return json.loads(read_text(path, _LONGEST, encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def as_number(value: Any) -> float | None:
    """Return a number from a journal as a float, or None for any other value."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _numbers(values: Any) -> list[float] | None:
    if not isinstance(values, list):
        return None
    numbers = [number for value in values if (number := as_number(value)) is not None]
    return numbers if len(numbers) == len(values) else None


def _whole(value: Any) -> int:
    return value if type(value) is int else 0
