"""Restore all ranks of a run from the newest complete checkpoint on any machine.

If every rank can access that checkpoint, each reads it from its own directory. Otherwise, its tensors are
sent as plain bytes, and machines that lack it or the best checkpoint write their own copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from torch import Tensor

from rankless.engine import checkpoint
from rankless.engine.checkpoint import Snapshot
from rankless.engine.mirrors import Mirrors
from rankless.errors import UserError, counted, listed, shell_word
from rankless.files import checksums
from rankless.files.writing import sweep
from rankless.models.weights_files import weights
from rankless.recipe.load import deciding, from_json, to_json
from rankless.recipe.schema import Recipe
from rankless.runs.directory import RunDirectory, damage
from rankless.runs.journal import Journal, soundness

_PARTS = ("model", "ema", "training")


@dataclass(frozen=True)
class Restored:
    """The newest complete checkpoint, or None, with warnings and messages about copied checkpoints."""

    snapshot: Snapshot | None
    warnings: list[str]
    copied: list[str]


@dataclass
class _Report:
    """The newest complete checkpoint in a rank's copy of the run directory.

    ``step`` is -1 if there is none, and ``sums`` is the digest of its checksum file. ``problems`` is not
    empty if all checkpoints are damaged.
    """

    path: str
    step: int = -1
    sums: str = ""
    recipe: str = ""
    classes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def restore(mirrors: Mirrors, run: RunDirectory, recipe: Recipe, class_names: Sequence[str]) -> Restored:
    """Load the newest complete checkpoint of all copies. All ranks must call this."""
    reports = dict(enumerate(mirrors.world.all_gather(_look(mirrors, run))))
    reports = {rank: reports[rank] for rank in mirrors.writers}
    warnings = [mirrors.label(rank, text) for rank, one in reports.items() for text in one.warnings]
    problems = [mirrors.label(rank, text) for rank, one in reports.items() for text in one.problems]
    if mirrors.several and (others := _other_runs(mirrors, reports, recipe)):
        raise UserError(others)
    step = max(one.step for one in reports.values())
    if step < 0:
        if problems:
            raise UserError(problems)
        return Restored(None, warnings, [])
    source = next(rank for rank, one in reports.items() if one.step == step)
    _refuse_other_classes(run, reports[source].classes, class_names)
    holders = {rank for rank, one in reports.items() if (one.step, one.sums) == (step, reports[source].sums)}
    if all(keeper in holders for keeper in mirrors.keepers):
        snapshot = checkpoint.load(run, step)
    else:
        snapshot = _send(
            mirrors, checkpoint.load(run, step) if mirrors.world.rank == source else None, source
        )
    if not mirrors.several:
        return Restored(snapshot, warnings, [])
    copies = _Copies(mirrors, run, class_names)
    copies.copy_best(snapshot)
    lacking = [rank for rank in mirrors.writers if rank not in holders]
    copies.write(snapshot, from_json(reports[source].recipe), lacking, source)
    warnings += [*problems, *mirrors.gather_messages(copies.warnings)]
    return Restored(snapshot, warnings, copies.copied)


def _look(mirrors: Mirrors, run: RunDirectory) -> _Report:
    report = _Report(str(run.path))
    if not mirrors.is_writer:
        return report
    if not mirrors.world.is_first:  # on rank 0, the launcher has already done this
        sweep(run.path)
        sweep(run.checkpoints)
    try:
        step = checkpoint.newest(run, report.warnings.append)
        if step is not None:
            folder = run.step_directory(step)
            report.recipe = to_json(weights.recipe_in(folder / "model.safetensors"))
            report.classes = list(weights.class_names_in(folder / "model.safetensors"))
            report.step, report.sums = step, checksums.of_file(folder / checksums.NAME)
    except UserError as error:
        report.problems = list(error.problems)
    return report


def _other_runs(mirrors: Mirrors, reports: Mapping[int, _Report], recipe: Recipe) -> list[str]:
    """Return an error for each machine whose checkpoint has a different recipe. ``data.root`` may differ."""
    errors = []
    for rank, report in reports.items():
        different = deciding(from_json(report.recipe), recipe) if report.step >= 0 else []
        if keys := [key for key, _, _ in different if key != "data.root"]:
            errors.append(
                f"{mirrors.name(rank)}: {report.path} contains a run whose recipe has other values of "
                f"{', '.join(keys)}; remove that run, or use another --run"
            )
    return errors


def _refuse_other_classes(run: RunDirectory, before: Sequence[str], now: Sequence[str]) -> None:
    """Raise an error if a class has another number than in the run. A task may have no class names."""
    if not before or not now or list(before) == list(now):
        return
    pairs = enumerate(zip_longest(map(repr, before), map(repr, now), fillvalue="missing"))
    number, (old, new) = next((number, pair) for number, pair in pairs if pair[0] != pair[1])
    raise UserError(
        f"{run.path} cannot continue with other classes: the run has {listed(before)}, but the data now has "
        f"{listed(now)} (class {number} was {old} and is now {new}); restore the class names of the data and "
        f"their order, or start a new run from these weights with model.pretrained={shell_word(run.path)}, "
        "which matches classes by name"
    )


def _send(mirrors: Mirrors, snapshot: Snapshot | None, source: int) -> Snapshot:
    """Send the ``snapshot`` of rank ``source`` to every rank, tensor by tensor."""
    world = mirrors.world
    head: Any = None
    mine: dict[str, Mapping[str, Tensor]] = {}
    if snapshot is not None:
        mine = {part: value for part in _PARTS if (value := getattr(snapshot, part)) is not None}
        names = {part: list(value) for part, value in mine.items()}
        head = [snapshot.step, dict(snapshot.state), names, dict(snapshot.links)]
    step, state, names, links = world.broadcast(head, source)
    tensors: dict[str, dict[str, Tensor]] = {
        part: {name: world.broadcast(mine[part][name] if mine else None, source) for name in names[part]}
        for part in names
    }
    return Snapshot(step, tensors["model"], tensors.get("ema"), tensors["training"], state, links)


class _Copies:
    """Writes checkpoints to machines that lack them.

    ``warnings`` are about this machine, and ``copied`` contains the same messages on every rank.
    """

    def __init__(self, mirrors: Mirrors, run: RunDirectory, class_names: Sequence[str]) -> None:
        self.mirrors, self.run, self.class_names = mirrors, run, class_names
        self.warnings: list[str] = []
        self.copied: list[str] = []

    def copy_best(self, snapshot: Snapshot) -> None:
        """Copy the best checkpoint of ``snapshot``, if there is one, to machines that lack it."""
        best = snapshot.state["best"]
        if best is None or best["step"] == snapshot.step:
            return
        folder = self.run.step_directory(best["step"])
        is_whole = self.mirrors.world.all_gather(self.mirrors.is_writer and damage(folder) is None)
        lacking = [rank for rank in self.mirrors.writers if not is_whole[rank]]
        if not lacking or len(lacking) == len(self.mirrors.writers):
            return
        source, world = is_whole.index(True), self.mirrors.world
        mine, recipe, last = None, "", self.run.pointed("last")
        if world.rank == source:
            mine = checkpoint.load(self.run, best["step"])
            # It may have been trained with another recipe, such as one with fewer epochs.
            recipe = to_json(weights.recipe_in(folder / "model.safetensors"))
        recipe = world.broadcast(recipe, source)
        self.write(_send(self.mirrors, mine, source), from_json(recipe), lacking, source)
        if world.rank in lacking and last is not None and self.run.pointed("last") != last:
            self.run.point("last", last)

    def write(self, snapshot: Snapshot, recipe: Recipe, lacking: Sequence[int], source: int) -> None:
        if not lacking:
            return
        hosts = ", ".join(self.mirrors.name(rank) for rank in lacking)
        self.copied.append(
            f"the checkpoint of step {snapshot.step} was copied from {self.mirrors.name(source)} to {hosts}"
        )
        if self.mirrors.world.rank in lacking:
            try:
                checkpoint.save(self.run, snapshot, recipe, self.class_names)
            except OSError as error:
                self.warnings.append(f"the checkpoint of step {snapshot.step} cannot be written ({error})")


def open_journal(
    mirrors: Mirrors, run: RunDirectory, start: int, *, unscored: bool
) -> tuple[Journal | None, list[str]]:
    """Open this rank's copy of the journal, after making all copies equal up to step ``start``.

    All ranks must call this. Returns the journal (None if this rank does not write a copy) and warnings.
    """
    journal: Journal | None = None
    said: list[str] = []
    try:
        # At the first start, rank 0's journal is used, because the launcher may have written to it.
        has_numbers = start and mirrors.several and mirrors.is_writer
        said += mirrors.send_best(
            run.journal, soundness(run.journal, start, unscored=unscored) if has_numbers else []
        )
        if mirrors.is_writer:
            journal = Journal(run.journal, start, unscored=unscored)
            if journal.left_out:
                said.append(
                    f"{run.journal}: removed {counted(journal.left_out, 'damaged line')}; the original file "
                    f"is now {journal.original}"
                )
    except OSError as error:
        if not mirrors.several:
            with run.writing(run.journal):
                raise
        said.append(
            f"{run.journal} cannot be written ({error}), so this copy of the journal stays incomplete"
        )
    return journal, mirrors.gather_messages(said)
