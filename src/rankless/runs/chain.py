"""A hash chain over a run's checkpoints: lines of the journal, each with the digest of the previous one.

A line binds a checkpoint's files to the recipe, the data, the environment and all earlier numbers in the
journal. A checkpoint's ``chain.json`` contains everything in its line except the digests of its files, so
that the line can be restored if the process is killed before writing it. Lines of removed checkpoints are
kept.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from rankless.errors import UserError
from rankless.files import checksums
from rankless.files.reading import MIB, read_text
from rankless.runs import journal, starts
from rankless.runs.directory import RunDirectory, damage, read_state

NAME = "chain.json"
_LONGEST = MIB


class Line(msgspec.Struct):
    """One line of the hash chain."""

    checkpoint: int  # number of completed steps
    files: dict[str, str]  # SHA-256 of each file of the checkpoint, by name
    recipe: str
    environment: str  # digest of :func:`rankless.runs.starts.facts`
    numbers: tuple[int, str]  # number of the journal's lines with numbers so far, and their digest
    link: str  # SHA-256 of the rest of this line
    before: str | None = None  # the link of the previous line
    data: str | None = None  # digest of the annotations, if there is one
    images: str | None = None  # SHA-256 of the list of the data's files, if it was complete


@dataclass
class Chain:
    """A run's hash chain, and the result of comparing it with the run's files."""

    lines: list[Line] = field(default_factory=list)  # including those restored from a checkpoint
    problems: list[str] = field(default_factory=list)  # a sentence for each mismatch
    notes: list[str] = field(default_factory=list)  # sentences about checkpoints without a chain
    sound: list[int] = field(default_factory=list)  # steps of complete, matching checkpoints, in order
    wrong: dict[int, str] = field(default_factory=dict)  # "damaged" or "exchanged", by step

    def between(self, first: int, last: int) -> list[Line]:
        """Return the lines of all steps after ``first`` and up to ``last``."""
        return [line for line in self.lines if first < line.checkpoint <= last]


class Numbers:
    """A running digest of the numbers in a journal, except those that depend on the machine."""

    def __init__(self) -> None:
        self.count, self._sha = 0, hashlib.sha256()

    def add(self, entry: Mapping[str, Any]) -> None:
        """Add an entry of the journal if it contains numbers."""
        if "step" in entry or "evaluation" in entry:
            self.count += 1
            self._sha.update(journal.line({key: value for key, value in entry.items() if key != "timing"}))

    def mark(self) -> tuple[int, str]:
        """Return the number of entries added so far and their digest."""
        return self.count, self._sha.hexdigest()


def digest_of(value: object) -> str:
    """Return the SHA-256 of a value as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def entry_of(folder: Path) -> dict[str, Any] | None:
    """Reconstruct a checkpoint's hash-chain line from its ``folder``. Return None if this is impossible."""
    with suppress(OSError, UserError):
        files, step = checksums.read(folder) or {}, read_state(folder)["step"]
        if files.pop(NAME, "") and (links := links_in(folder)):
            entry = {**links, "checkpoint": step, "files": files}
            return {**entry, "link": digest_of(entry)}
    return None


def links_in(folder: Path) -> dict[str, Any]:
    """Return the contents of a checkpoint's ``chain.json``, or an empty dict if it cannot be read."""
    with suppress(OSError, ValueError, RecursionError):
        links = json.loads(read_text(folder / NAME, _LONGEST))
        return links if isinstance(links, dict) else {}
    return {}


def read(run: RunDirectory) -> Chain:
    """Read a run's hash chain, and compare it with the checkpoints, the journal and the environments."""
    chain = Chain()
    entries: list[dict[str, Any]] = []
    try:
        entries = list(journal.read(run.journal))
    except OSError as error:
        chain.problems.append(f"{run.journal}: cannot be read ({error.strerror or error})")
    for entry in entries:
        if "checkpoint" in entry:
            _follow(chain, entry, str(run.journal))
    for step in run.steps():
        _look_at(chain, run.step_directory(step), step, str(run.journal))
    chain.problems += _numbers(chain.lines, entries, str(run.journal))
    chain.problems += _other_files(chain.lines, run)
    recorded = {entry["checkpoint"] for entry in entries if "checkpoint" in entry}
    chain.problems += _pointers(chain, run, recorded)
    begins = chain.lines[0].checkpoint if chain.lines else None
    older = [str(step) for step in chain.sound if begins is None or step < begins]
    if older:
        begin = "" if begins is None else f"; the hash chain starts at step {begins}"
        chain.notes.append(
            f"the checkpoints of steps {', '.join(older)} were saved by an earlier version, without a hash "
            f"chain{begin}"
        )
    return chain


def _follow(chain: Chain, entry: dict[str, Any], source: str) -> None:
    step, last = entry["checkpoint"], chain.lines[-1] if chain.lines else None
    try:
        line = msgspec.convert(entry, Line)
    except msgspec.ValidationError as error:
        chain.problems.append(f"{source}: the hash-chain line for step {step} is damaged ({error})")
        return
    if line.link != digest_of({key: value for key, value in entry.items() if key != "link"}):
        chain.problems.append(f"{source}: the hash-chain line for step {step} was changed")
    if line.before != (last.link if last else None):
        gap = f"between steps {last.checkpoint} and" if last else "before step"
        chain.problems.append(f"{source}: hash-chain lines {gap} {step} were changed or removed")
    chain.lines.append(line)


def _look_at(chain: Chain, folder: Path, step: int, source: str) -> None:
    """Compare the checkpoint in ``folder`` with its hash-chain line. Add the line if the journal lacks it."""
    if problem := damage(folder):
        chain.problems.append(f"{folder}: is damaged ({problem})")
        chain.wrong[step] = "damaged"
        return
    added = {path.name for path in folder.glob("*.safetensors")} - {*(checksums.read(folder) or ())}
    chain.problems += [f"{folder / name}: was added to the checkpoint" for name in sorted(added)]
    entry, lines = entry_of(folder), [line for line in chain.lines if line.checkpoint == step]
    last = chain.lines[-1] if chain.lines else None
    if lines and entry and lines[-1].link == entry["link"]:
        chain.sound.append(step)
    elif entry and (last is None or last.checkpoint <= step) and entry.get("before") == (last and last.link):
        _follow(chain, entry, str(folder))  # the process was killed or has not written the line yet
        chain.sound.append(step)
    elif lines:
        chain.wrong[step] = "exchanged"
        here = checksums.read(folder) or {}
        names = [name for name, digest in lines[-1].files.items() if here.get(name) != digest]
        chain.problems.append(
            f"{folder}: differs from the record of step {step} in {source} ({', '.join(names) or NAME})"
        )
    elif last is None or step < chain.lines[0].checkpoint:
        if entry:
            chain.problems.append(
                f"{folder}: {source} has no line for this checkpoint, so {source} was changed or truncated"
            )
        else:
            chain.sound.append(step)  # written by an earlier version
    else:
        chain.problems.append(f"{folder}: is missing from the hash chain in {source}, which has later steps")


def _numbers(lines: Sequence[Line], entries: Sequence[Mapping[str, Any]], source: str) -> Iterator[str]:
    """Yield a problem for the first line whose digest does not match the numbers in the journal."""
    numbers, wanted = Numbers(), {line.numbers[0] for line in lines}
    marks = {0: numbers.mark()}
    for entry in entries:
        numbers.add(entry)
        if numbers.count in wanted:
            marks[numbers.count] = numbers.mark()
    before = 0
    for line in lines:
        if marks.get(line.numbers[0]) != line.numbers:
            yield (
                f"{source}: the losses, learning rates or scores of steps {before + 1} to {line.checkpoint} "
                "differ from those recorded with the checkpoint"
            )
            return
        before = line.checkpoint


def _other_files(lines: Sequence[Line], run: RunDirectory) -> Iterator[str]:
    entries, problem = starts.read(run.environment)
    known = {digest_of(starts.facts(entry)) for entry in entries}
    for line in {line.environment: line for line in lines if line.environment not in known}.values():
        why = problem or "it was changed"
        yield f"{run.environment}: does not contain the environment of step {line.checkpoint} ({why})"
    listed = [line for line in lines if line.images]
    if listed and listed[-1].images != sum_of(run.data_sums):
        step = listed[-1].checkpoint
        yield f"{run.data_sums}: differs from the list recorded at step {step}"


def _pointers(chain: Chain, run: RunDirectory, recorded: Container[int]) -> Iterator[str]:
    """Yield a problem if ``last``, ``best`` or one of their links points to an unexpected step.

    ``recorded`` contains the steps with a line in the journal. ``last`` and ``best`` may be older than a
    checkpoint without a line.
    """
    if not chain.sound:
        return
    begin = max((step for step in chain.sound if step in recorded), default=chain.sound[-1])
    newest = [step for step in chain.sound if step >= begin]
    there = set(run.steps())
    files = {step: checksums.read(run.step_directory(step)) or {} for step in chain.sound}
    files |= {line.checkpoint: line.files for line in chain.lines}
    later = {step for step in there | {*files} if step > newest[-1]}  # damaged or removed checkpoints
    states = [read_state(run.step_directory(step))["best"] for step in newest]
    best = {state["step"] if state else None for state in states}
    for name, what, steps in (("last", "newest", {*newest}), ("best", "best", best)):
        known = sorted(step for step in steps if step is not None)
        expected = f"the {what} checkpoint is from step {' or '.join(map(str, known))}"
        expected = expected if known else "no checkpoint is recorded as the best"
        pointed, path = run.pointed(name), run.path / f"{name}.safetensors"
        may_be_none = not steps & there or begin not in recorded
        if pointed not in steps | later and not (pointed is None and may_be_none):
            named = "contains no step" if pointed is None else f"points to step {pointed}"
            yield f"{run.checkpoints / name}: {named}, but {expected}"
        if os.path.lexists(path):
            accepted = {*known, *later} & {*files}
            if not any(_is_weights_of(path, run.step_directory(step), files[step]) for step in accepted):
                yield f"{path}: does not contain the weights of the {what} checkpoint; {expected}"


def _is_weights_of(path: Path, folder: Path, sums: Mapping[str, str]) -> bool:
    name = "ema.safetensors" if "ema.safetensors" in sums else "model.safetensors"
    if path.is_symlink():
        return path.resolve() == (folder / name).resolve()
    return name in sums and sum_of(path) == sums[name]


def sum_of(path: Path) -> str | None:
    """Return the SHA-256 of a file, or None if it cannot be read."""
    with suppress(OSError):
        return checksums.of_file(path)
    return None
