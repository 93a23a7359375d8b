"""The summary of a run: its state, progress, best score and weights."""

from __future__ import annotations

import json
import math
import mmap
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankless.errors import UserError
from rankless.files.reading import MIB, opened, read_text
from rankless.runs import journal
from rankless.runs.directory import DETACHED, RunDirectory, is_run, read_state
from rankless.runs.following import is_alive
from rankless.runs.scoring import is_better, name_of_best
from rankless.runs.weights_digest import of_run
from rankless.task_kinds import DEFAULT, kind_of

_SECONDS = re.compile(rb'"seconds":([0-9.e+-]{1,30})')
_DEPTH = 3
STATES = {"end": "finished", "stop": "stopped", "error": "failed", "death": "died"}
"""The states of runs, by the last event that determines the state."""


@dataclass(frozen=True)
class Overview:
    """The summary of a run.

    Attributes:
        state: ``running``, ``finished``, ``stopped`` (on request), ``failed`` (with an error), ``died`` (a
            process died), ``interrupted`` (the end was not recorded), ``new`` (before the first step), or
            ``on HOST`` for a run that another machine coordinates.
        step, steps: number of completed steps, and of all steps, or None if unknown.
        saved: step of the newest checkpoint, from which the run resumes, or None if there is none.
        score_name, score, best_step: the best score so far, or None before the first evaluation.
        seconds: total duration of the steps in the journal.
        changed: time of the journal's last change, in seconds since 1970.
        digest: SHA-256 of the best weights or, if there are none, of the last ones; None if none are saved.
    """

    run: Path
    state: str
    step: int
    steps: int | None
    saved: int | None
    score_name: str | None
    score: float | None
    best_step: int | None
    seconds: float
    changed: float
    digest: str | None


def find(folder: Path) -> list[RunDirectory]:
    """Return the run directories in a folder and its subfolders, most recently changed first."""
    found = sorted(_within(folder, _DEPTH), key=lambda run: (-_changed(run), run.path))
    return [RunDirectory(folder)] if is_run(folder) else found


def _within(folder: Path, depth: int) -> Iterator[RunDirectory]:
    with suppress(OSError):
        for entry in sorted(folder.iterdir()):
            if entry.is_symlink() or not entry.is_dir() or entry.name.startswith("."):
                continue
            if is_run(entry):
                yield RunDirectory(entry)
            elif depth > 1:
                yield from _within(entry, depth - 1)


def overview(run: RunDirectory, recipe: Mapping[str, Any]) -> Overview:
    """Return the summary of a run. ``recipe`` is its recipe as plain values, or empty if unknown."""
    entries: Sequence[dict[str, Any]] = []
    with suppress(OSError):
        entries = journal.tail(run.journal)
    best = _best(run, recipe)
    name = _score_name(recipe, entries) if best else None
    return Overview(
        run.path,
        _state(run, entries),
        max(map(journal.step_of, entries), default=0),
        steps_of(recipe, entries),
        max(run.steps(), default=None),
        name,
        best[1] if best else None,
        best[0] if best else None,
        _seconds(run.journal),
        _changed(run),
        of_run(run.path),
    )


def steps_of(recipe: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the total number of steps, estimated from an entry, or None before the first step."""
    for entry in reversed(entries):
        if entry.get("step") and isinstance(entry.get("epoch"), float | int) and entry["epoch"] > 0:
            # An entry's epoch is rounded to a millionth.
            return math.ceil(int(recipe.get("epochs", 0)) * entry["step"] / entry["epoch"] - 1e-2) or None
    return None


def last_decisive(entries: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the last event that determines the state of a run, or None if there is none."""
    events = (*STATES, "start", "resume")
    return next((entry["event"] for entry in reversed(entries) if entry.get("event") in events), None)


def _state(run: RunDirectory, entries: Sequence[dict[str, Any]]) -> str:
    last = last_decisive(entries)
    if is_alive(run.path, last):
        return "running"
    if not run.journal.exists():
        return _elsewhere(run) or "new"
    if last in STATES:
        return STATES[last]
    return "interrupted" if any(map(journal.step_of, entries)) else "new"


def _elsewhere(run: RunDirectory) -> str | None:
    try:
        host = json.loads(read_text(run.path / DETACHED, MIB))["host"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return f"on {str(host).split(':')[0]}"


def _best(run: RunDirectory, recipe: Mapping[str, Any]) -> tuple[int, float] | None:
    for step in reversed(run.steps()):
        with suppress(UserError):
            best = read_state(run.step_directory(step))["best"]
            return (best["step"], best["score"]) if best else None
    return None if run.checkpoints.exists() else _best_in_journal(run, recipe)


def _best_in_journal(run: RunDirectory, recipe: Mapping[str, Any]) -> tuple[int, float] | None:
    best: tuple[int, float] | None = None
    with suppress(OSError):
        for entry in journal.read(run.journal):
            name = _score_name(recipe, [entry]) if "evaluation" in entry else None
            score = entry["scores"].get(name) if name else None
            if name and isinstance(score, float) and is_better(name, score, best[1] if best else None):
                best = entry["evaluation"], score
    return best


def _score_name(recipe: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> str | None:
    evaluate = recipe.get("evaluate")
    best = str(evaluate.get("best", "auto")) if isinstance(evaluate, Mapping) else "auto"
    for entry in reversed(entries):
        if "evaluation" in entry:
            return name_of_best(best, entry["scores"])
    # The last evaluation may precede the part of the journal that was read.
    kind = kind_of(recipe.get("task", DEFAULT))
    return (kind.score if kind.name else None) if best == "auto" else best


def _seconds(path: Path) -> float:
    """Return the total duration of the steps without parsing the journal, which may have a million lines."""
    try:
        with opened(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            return sum(float(found[1]) for found in _SECONDS.finditer(text))
    except (OSError, ValueError):  # the journal is missing or empty
        return 0.0


def _changed(run: RunDirectory) -> float:
    for path in (run.journal, run.path / DETACHED, run.path):
        with suppress(OSError):
            return path.stat().st_mtime
    return 0.0
