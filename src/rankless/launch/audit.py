"""An audit of a run: intervals between its checkpoints are trained again and compared bit for bit."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankless.engine import checkpoint
from rankless.engine.checkpoint import Snapshot
from rankless.engine.data_sums import common_folder, sums_of
from rankless.engine.environment import describe, label
from rankless.engine.settings import computes_like
from rankless.errors import INTERRUPTED, UserError, counted, listed
from rankless.files.reading import read_text
from rankless.launch import local
from rankless.launch.opening import device
from rankless.models.checkpoints import weights
from rankless.recipe.load import changed, differences, dump, load
from rankless.recipe.schema import Recipe
from rankless.runs import chain, starts
from rankless.runs.chain import Chain
from rankless.runs.directory import RunDirectory, read_state
from rankless.tasks import open_task, resolve_recipe
from rankless.tasks.capabilities import capabilities
from rankless.tasks.custom import absolute, refuse_unasked

MAY_CHANGE = ("data.root", "data.folder", "model.pretrained", "workers")
"""Keys of the recipe that say where something is, or change no number."""
_PLACES = ("data.root", "data.folder")
_LONGEST_LIST = 1 << 30  # bytes of the list of the data's files
_SHOWN = 8  # changed files that are named
_LATER = 10**8  # steps, after which the copy would save on its own
_GENERATED = ("", "timm")  # values of model.pretrained that are no file


@dataclass(frozen=True)
class Interval:
    """The steps after the checkpoint of step ``first`` (0: the beginning) up to that of step ``last``."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}–{self.last}"

    def __len__(self) -> int:
        return self.last - self.first


@dataclass(frozen=True)
class Result:
    """The result of training an interval again.

    Attributes:
        interval: the interval.
        images: number of images trained on, counted as often as they were.
        tensors: number of tensors compared.
        difference: the first tensor that differs; None if all are equal.
        seconds: duration.
    """

    interval: Interval
    images: int
    tensors: int
    difference: str | None
    seconds: float


@dataclass
class AuditReport:
    """The result of :func:`audit`.

    Attributes:
        seed: seed of the draw.
        link: the last link of the run's chain; None if it has none.
        problems: sentences on what is not as it was recorded.
        notes: sentences on what was not recorded.
        results: one per interval trained again.
        not_shown: the other intervals, each with the reason.
    """

    seed: int
    link: str | None
    problems: list[str]
    notes: list[str]
    results: list[Result] = field(default_factory=list)
    not_shown: list[tuple[Interval, str]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether everything compared is equal, and nothing was found changed."""
        return not self.problems and all(one.difference is None for one in self.results)

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain data for JSON."""
        not_shown = [{"interval": asdict(one), "reason": reason} for one, reason in self.not_shown]
        return {"ok": self.ok, **asdict(self), "not_shown": not_shown}


def examined(run: RunDirectory) -> Chain:
    """Return a run's chain, compared with its files and its ``recipe.yaml``; nothing is trained.

    Raises:
        UserError: the directory has no checkpoint.
    """
    if not run.steps():
        raise UserError(f"{run.path}: has no checkpoints; expected the directory of a run that has saved")
    found = chain.read(run)
    if not found.sound:
        return found
    step = found.sound[-1]
    saved = weights.recipe_in(run.step_directory(step) / "model.safetensors")
    try:
        found.problems += [
            f"{run.recipe}: {key} is {now}, but {before} in the checkpoint of step {step}"
            for key, before, now in differences(saved, load(run.recipe))
            if key not in _PLACES
        ]
    except UserError as error:
        found.problems += error.problems
    return found


def audit(
    path: Path,
    overrides: Sequence[str],
    *,
    task: str | None,
    steps: int | None,
    seed: int,
    devices: int | Sequence[int] | None,
    echo: Callable[[str], None],
) -> AuditReport:
    """Train intervals of a run again, and compare weights, average and optimizer with its checkpoints.

    The run's directory is only read.

    Args:
        path: the run directory.
        overrides: changes to the recipe, of the keys in :data:`MAY_CHANGE`.
        task: the custom task of the run, whose code is run; None for a built-in one.
        steps: draw intervals until they have this many steps; None takes all.
        seed: seed of the draw.
        devices: as for :func:`rankless.launch.local.train`.
        echo: receives the report line by line.
    """
    with tempfile.TemporaryDirectory(prefix="rankless-audit-") as folder:
        return _Audit(RunDirectory(path), overrides, task, Path(folder)).run(steps, seed, devices, echo)


class _Audit:
    """An audit of ``run``, whose copies lie in ``folder``."""

    def __init__(self, run: RunDirectory, overrides: Sequence[str], task: str | None, folder: Path) -> None:
        self.run_directory, self.overrides, self.task, self.folder = run, overrides, task, folder
        self.chain = examined(run)
        if not self.chain.sound:
            raise UserError([*self.chain.problems, f"{run.path}: has no complete checkpoint to start from"])
        self.starts, _ = starts.read(run.environment)
        self.recipe = self._recipe_of(self.chain.sound[-1])
        with computes_like(self.recipe):  # which sets variables, as in a rank
            self.here = starts.facts(describe(device()))

    def run(
        self,
        steps: int | None,
        seed: int,
        devices: int | Sequence[int] | None,
        echo: Callable[[str], None],
    ) -> AuditReport:
        link = self.chain.lines[-1].link if self.chain.lines else None
        report = AuditReport(seed, link, self.chain.problems, self.chain.notes)
        intervals = [Interval(*pair) for pair in pairwise([0, *self.chain.sound])]
        refused = {one: reason for one in intervals if (reason := self._refusal(one))}
        possible = [one for one in intervals if one not in refused]
        if not possible and not report.problems:
            raise UserError(
                f"{self.run_directory.path}: steps {text}" for text in _by_reason(list(refused.items()))
            )
        report.problems += self._problems_of_data() if possible else []
        for text in (*report.notes, *(f"DIFFERENT: {problem}" for problem in report.problems)):
            echo(text)
        drawn = _drawn(possible, steps, seed)
        echo(f"seed {seed}: {len(drawn)} of {counted(len(intervals), 'interval')} between checkpoints")
        echo(f"{'steps':>15}  {'images':>10}  {'seconds':>8}  result") if drawn else None
        for one in drawn:
            report.results.append(result := self._repeat(one, devices))
            said = f"equal ({result.tensors} tensors)" if result.difference is None else "DIFFERENT: "
            echo(f"{one!s:>15}  {result.images:>10}  {result.seconds:>8.1f}  {said}{result.difference or ''}")
        rest = [one for one in intervals if one not in drawn]
        report.not_shown = [(one, refused.get(one, "not drawn")) for one in rest]
        last = self.run_directory.steps()[-1]
        if last > self.chain.sound[-1]:
            lost = Interval(self.chain.sound[-1], last)
            report.not_shown.append((lost, "the checkpoint at its end is not the recorded one"))
        for text in _conclusions(report):
            echo(text)
        return report

    def _recipe_of(self, step: int) -> Recipe:
        """Return the recipe that led to the checkpoint of ``step``, with the data's place here."""
        saved = weights.recipe_in(self.run_directory.step_directory(step) / "model.safetensors")
        recipe = changed(saved, self.overrides) if self.overrides else saved
        if wrong := [key for key, _, _ in differences(saved, recipe) if key not in MAY_CHANGE]:
            raise UserError(
                f"{key}: an audit keeps the recipe of the run; expected one of {listed(MAY_CHANGE)}; leave "
                "it out"
                for key in wrong
            )
        if self.task is None:
            refuse_unasked(recipe.task, self.run_directory.path)
        recipe = replace(recipe, task=absolute(self.task or recipe.task))
        saving = replace(recipe.checkpoint, every=_LATER, name="")
        return replace(recipe, data=replace(recipe.data, cache="none"), checkpoint=saving)

    def _refusal(self, interval: Interval) -> str | None:
        """Return why an interval cannot be trained again here; None if it can."""
        lines = self.chain.between(interval.first, interval.last)
        for line in reversed(lines):
            for what in ("recipe", "data", "images"):
                values = {getattr(line, what), getattr(lines[-1], what)}
                if len(values - {None} if what == "images" else values) > 1:
                    gone = f"the {what} changed after step {line.checkpoint}"
                    return f"{gone}, and the checkpoint of that step is no longer there"
        if lines:
            known = {chain.digest_of(starts.facts(entry)): entry for entry in self.starts}
            used = [known.get(line.environment) for line in lines]
        else:
            used = list(_starts_within(self.starts, interval)) or [None]
        for start in used:
            if start is None:
                return f"{self.run_directory.environment} does not have its environment"
            if other := _other_facts(starts.facts(start), self.here, self.recipe):
                return f"other bits are to be expected here, so they are not repeated: {'; '.join(other)}"
        pretrained = self.recipe.model.pretrained
        if not interval.first and pretrained not in _GENERATED and not Path(pretrained).exists():
            return f"model.pretrained is '{pretrained}', which is not there; add model.pretrained=FILE"
        return None

    def _problems_of_data(self) -> Iterator[str]:
        """Yield what differs between the data here and the data of the run's last start."""
        recipe = resolve_recipe(self.recipe)
        data = capabilities(open_task(recipe).training_data())
        step = self.chain.sound[-1]
        before = read_state(self.run_directory.step_directory(step)).get("data")
        if None not in (before, data.digest) and before != data.digest:
            yield f"data.root={recipe.data.root}: classes, boxes or image sizes are not those of the run"
        files, sums = data.files(), self.run_directory.data_sums
        if not files or not sums.exists():
            return
        lines = read_text(sums, _LONGEST_LIST, errors="surrogateescape").split("\n")
        recorded = {name: digest for digest, _, name in (line.partition("  ") for line in lines) if name}
        here, root = dict(sums_of(files)), Path(common_folder(files))
        wrong = [name for name in {**recorded, **here} if recorded.get(name) != here.get(name)]
        for name in wrong[:_SHOWN]:
            what = "is not the file that the run was trained on"
            if name not in here or name not in recorded:
                what = "is not there" if name in recorded else "was not in the data of the run"
            yield f"{root / name}: {what}"
        if len(wrong) > _SHOWN:
            yield f"{root}: the same holds for {counted(len(wrong) - _SHOWN, 'more file')}"

    def _repeat(self, interval: Interval, devices: int | Sequence[int] | None) -> Result:
        """Train an interval in a copy that begins with the checkpoint before it."""
        began, run = time.monotonic(), self.run_directory
        recipe = resolve_recipe(self._recipe_of(interval.last))
        copy = RunDirectory(self.folder / str(interval))
        if interval.first:
            start = checkpoint.load(run, interval.first)
            names = weights.load(run.step_directory(interval.first) / "model.safetensors", checked=True)
            copy.path.mkdir()
            copy.environment.write_bytes(run.environment.read_bytes())
            copy.recipe.write_text(dump(recipe), encoding="utf-8")
            start = replace(start, state={**start.state, "unscored": False})
            checkpoint.save(copy, start, recipe, names.class_names)
        code = local.train(
            recipe,
            copy.path,
            devices=devices,
            resume=interval.first > 0,
            dry_run_steps=interval.last,
            dry_run_images=0,
            inline=devices == 1,  # without the start of another process
        )
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        if code:
            raise UserError(f"steps {interval} could not be trained again (code {code})")
        tensors, difference = compare(
            checkpoint.load(run, interval.last), checkpoint.load(copy, interval.last)
        )
        images = len(interval) * recipe.batch.images
        return Result(interval, images, tensors, difference, round(time.monotonic() - began, 1))


def _conclusions(report: AuditReport) -> Iterator[str]:
    """Yield sentences on what the audit has shown, and what it has not."""
    shown: list[Interval] = []
    for one in (result.interval for result in report.results if result.difference is None):
        joins = bool(shown) and shown[-1].last == one.first
        shown[-1:] = [Interval(shown[-1].first, one.last)] if joins else [*shown[-1:], one]
    for one in shown:
        start = f"the checkpoint of step {one.first}" if one.first else "the beginning"
        yield f"shown: from {start}, this data and recipe give the checkpoint of step {one.last}, bit for bit"
    if report.not_shown:
        yield f"not shown: steps {'; '.join(_by_reason(report.not_shown))}"


def _by_reason(intervals: Sequence[tuple[Interval, str]]) -> Iterator[str]:
    """Yield each reason once, after the intervals that it explains."""
    for reason in dict.fromkeys(reason for _, reason in intervals):
        yield f"{', '.join(str(one) for one, why in intervals if why == reason)}: {reason}"


def _drawn(possible: Sequence[Interval], steps: int | None, seed: int) -> list[Interval]:
    """Draw intervals until they have ``steps`` steps; return them in order."""
    order = list(possible)
    random.Random(seed).shuffle(order)
    drawn: list[Interval] = []
    while order and (steps is None or sum(map(len, drawn)) < steps):
        drawn.append(order.pop())
    return sorted(drawn, key=lambda one: one.first)


def _starts_within(entries: Sequence[dict[str, Any]], interval: Interval) -> Iterator[dict[str, Any]]:
    """Yield the starts that may have trained a part of an interval that has no chain."""
    yield from [entry for entry in entries if entry.get("after_step", 0) <= interval.first][-1:]
    yield from (entry for entry in entries if interval.first < entry.get("after_step", 0) < interval.last)


def _other_facts(recorded: dict[str, str], here: dict[str, str], recipe: Recipe) -> list[str]:
    """Return the facts that differ between the run and this machine, and can change bits."""
    found = []
    for name in {**recorded, **here}:
        section, _, key = name.partition(".")
        is_known = section == "variables" or (name in recorded and name in here)
        is_free = name == "hardware.CPU" and recipe.cpu_isa != "native"
        if is_known and not is_free and recorded.get(name) != here.get(name):
            was, has = recorded.get(name, "not set"), here.get(name, "not set")
            found.append(f"{label(section, key)} is {was} in the run, {has} here")
    return found


def compare(one: Snapshot, other: Snapshot) -> tuple[int, str | None]:
    """Compare two training states bit for bit.

    Returns:
        The number of tensors, and the first one that differs, with its file; None if all are equal.
    """
    count, first = 0, None
    for part in ("model", "ema", "training"):
        ours, theirs = getattr(one, part) or {}, getattr(other, part) or {}
        names = {**ours, **theirs}
        count += len(names)
        differing = [name for name in names if not _same_bits(ours.get(name), theirs.get(name))]
        if differing and first is None:
            more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
            first = f"{differing[0]}{more} in {part}.safetensors"
    if first is None and one.state.get("scaler") != other.state.get("scaler"):
        first = "the loss scale in state.json"
    return count, first


def _same_bits(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(*(value.contiguous().reshape(-1).view(torch.uint8) for value in (one, other)))
