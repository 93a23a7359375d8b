"""Audit a run: retrain intervals between its checkpoints, and compare the results bit for bit."""

from __future__ import annotations

import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rankless.data.path_checks import missing_data
from rankless.engine import checkpoint
from rankless.engine.checkpoint import Snapshot
from rankless.engine.data_sums import common_folder, sums_of
from rankless.engine.environment import describe, label
from rankless.errors import INTERRUPTED, STOPPED, UserError, counted, listed
from rankless.files.reading import read_text
from rankless.hardware.compute_device import compute_device
from rankless.hardware.computing import computes_like
from rankless.launch import local
from rankless.launch.requests import Requests
from rankless.models.weights_files import weights
from rankless.recipe.familiar import is_by_name
from rankless.recipe.load import changed, differences, dump, load
from rankless.recipe.schema import Recipe
from rankless.runs import chain, starts
from rankless.runs.chain import Chain
from rankless.runs.directory import RunDirectory, read_state, similar_run
from rankless.task_kinds import BUILT_IN
from rankless.tasks import open_task, resolve_recipe
from rankless.tasks.capabilities import capabilities
from rankless.tasks.custom import refuse_unasked, with_absolute_names

_PLACES = ("data.root", "data.folder")
_MAY_CHANGE = (*_PLACES, "model.pretrained", "workers")
_CODE = ("task", "model.name", "data.format")  # may be given again to allow the code that they name
_LONGEST_LIST = 1 << 30  # bytes in the list of data files
_SHOWN = 8  # maximum number of changed files to list
_LATER = 10**8  # steps between checkpoints, so that a copy saves only at its end


class Interval(NamedTuple):
    """The steps after ``first`` (0 for the start of the run), up to and including ``last``."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}–{self.last}"


@dataclass(frozen=True)
class Result:
    """The result of retraining an interval."""

    interval: Interval
    images: int
    tensors: int
    difference: str | None  # the first tensor that differs
    seconds: float


@dataclass
class AuditReport:
    """The result of an audit."""

    seed: int
    link: str | None  # last link of the run's chain
    problems: list[str]  # differences from the recorded run
    notes: list[str]  # missing records
    results: list[Result] = field(default_factory=list)
    not_shown: list[tuple[Interval, str]] = field(default_factory=list)  # not retrained, with the reason
    stopped: int = 0  # number of the signal

    @property
    def ok(self) -> bool:
        """Whether all compared states are equal and there are no problems."""
        return not self.problems and all(one.difference is None for one in self.results)

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain data for JSON."""
        not_shown = [{"interval": one, "reason": reason} for one, reason in self.not_shown]
        return {"ok": self.ok, **asdict(self), "not_shown": not_shown}


def examine(run: RunDirectory) -> Chain:
    """Check a run's hash chain against its files and ``recipe.yaml`` without training; return the chain."""
    if not run.steps():
        what = "has no checkpoints" if run.path.exists() else "no such directory"
        raise UserError(
            f"{run.path}: {what}; expected a run directory with checkpoints{similar_run(run.path)}"
        )
    found = chain.read(run)
    if found.sound:
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


class Audit:
    """An audit of a run. It only reads the run directory.

    ``overrides`` sets the paths of the data and of the pretrained weights. ``task`` is the run's custom task,
    whose code will be executed. ``echo`` receives the report line by line.
    """

    def __init__(
        self,
        path: Path,
        overrides: Sequence[str],
        task: str | None,
        devices: int | Sequence[int] | None,
        echo: Callable[[str], None],
    ) -> None:
        self.run, self.overrides, self.task, self.devices = RunDirectory(path), overrides, task, devices
        self.echo, self.chain = echo, examine(self.run)
        if not self.chain.sound:
            raise UserError([*self.chain.problems, f"{path}: has no complete checkpoint to start from"])
        self.recipe = self._recipe_of(self.chain.sound[-1])
        if self.recipe.task in BUILT_IN and (missing := missing_data(self.recipe.data.root)):
            raise UserError(f"{text}; set data.root=FOLDER" for text in missing)
        with computes_like(self.recipe):  # sets environment variables, as in a rank
            self.here = starts.facts(describe(compute_device()))
        self.starts = [starts.facts(entry) for entry in starts.read(self.run.environment)[0]]

    def repeat(self, steps: int | None, seed: int) -> AuditReport:
        """Retrain random intervals with at least ``steps`` steps in total, or all intervals if it is None."""
        link = self.chain.lines[-1].link if self.chain.lines else None
        report = AuditReport(seed, link, self.chain.problems, self.chain.notes)
        intervals = [Interval(*pair) for pair in pairwise([0, *self.chain.sound])]
        refused = {one: reason for one in intervals if (reason := self._refusal(one))}
        if len(refused) == len(intervals) and not report.problems:
            raise UserError(f"{self.run.path}: steps {text}" for text in _by_reason(refused.items()))
        drawn = _sample([one for one in intervals if one not in refused], steps, seed)
        unfit = list(self._data_mismatches()) if drawn else []
        report.problems += [*unfit, *self._data_problems(unfit)] if drawn else []
        if unfit:
            refused |= dict.fromkeys(drawn, "cannot be retrained with this data")
            drawn = []
        for text in (*report.notes, *(f"DIFFERENT: {problem}" for problem in report.problems)):
            self.echo(text)
        self.echo(f"seed {seed}: {len(drawn)} of {counted(len(intervals), 'interval')} between checkpoints")
        self._retrain(drawn, report)
        if report.stopped:
            done = [result.interval for result in report.results]
            them = f": steps {', '.join(map(str, done))}" if done else ""
            by = signal.Signals(report.stopped).name
            self.echo(f"stopped by {by}; {len(done)} of {counted(len(drawn), 'interval')} compared{them}")
            refused |= {one: f"stopped by {by}" for one in drawn if one not in done}
            drawn = done
        report.not_shown = [(one, refused.get(one, "not selected")) for one in intervals if one not in drawn]
        if (last := self.run.steps()[-1]) > intervals[-1].last:
            report.not_shown.append(
                (Interval(intervals[-1].last, last), "its checkpoint differs from the recorded one")
            )
        for text in _conclusions(report):
            self.echo(text)
        return report

    def _retrain(self, drawn: Sequence[Interval], report: AuditReport) -> None:
        with Requests() as requests:
            for one in drawn:
                if one == drawn[0]:
                    self.echo(f"{'steps':>15}  {'images':>10}  {'seconds':>8}  result")
                try:
                    result = self._result(one)
                except (KeyboardInterrupt, UserError):  # a signal may have stopped the interval
                    if not requests.first:
                        raise
                    break
                report.results.append(result)
                text = f"equal, {result.tensors} tensors"
                text = f"DIFFERENT: {result.difference}" if result.difference else text
                self.echo(f"{one!s:>15}  {result.images:>10}  {result.seconds:>8.1f}  {text}")
                if requests.first:
                    break
            report.stopped = requests.first or 0

    def _recipe_of(self, step: int) -> Recipe:
        saved = weights.recipe_in(self.run.step_directory(step) / "model.safetensors")
        recipe = changed(saved, self.overrides) if self.overrides else saved
        refuse_unasked(recipe, self.run.path, self.overrides, self.task)
        recipe = with_absolute_names(replace(recipe, task=self.task or recipe.task))
        if wrong := [key for key, _, _ in differences(saved, recipe) if key not in (*_MAY_CHANGE, *_CODE)]:
            expected = f"expected one of {listed(_MAY_CHANGE)}"
            raise UserError(
                f"{key}: an audit uses the recipe of the run; {expected}; remove {key}" for key in wrong
            )
        return replace(
            recipe,
            data=replace(recipe.data, cache="none"),  # a cache may hold outdated images
            checkpoint=replace(recipe.checkpoint, every=_LATER, name=""),
        )

    def _refusal(self, interval: Interval) -> str | None:
        """Return the reason why an interval cannot be retrained on this machine, or None if it can."""
        lines = self.chain.between(*interval)
        for line in reversed(lines):
            for what in ("recipe", "data", "images"):
                values = {getattr(line, what), getattr(lines[-1], what)}
                if len(values - {None} if what == "images" else values) > 1:
                    gone = f"the {what} changed after step {line.checkpoint}"
                    return f"{gone}, and the checkpoint of that step no longer exists"
        used = {line.environment for line in lines}
        known = [one for one in self.starts if not used or chain.digest_of(one) in used]
        if len(known) < len(used) or not known:
            return f"the environment of this training is not recorded in {self.run.environment}"
        if other := [text for one in known for text in other_facts(one, self.here, self.recipe)]:
            return f"this machine may compute different bits: {'; '.join(dict.fromkeys(other))}"
        pretrained = self.recipe.model.pretrained
        if not interval.first and not is_by_name(pretrained) and not Path(pretrained).exists():
            return f"model.pretrained is '{pretrained}', which does not exist; add model.pretrained=FILE"
        return None

    def _data_mismatches(self) -> Iterator[str]:
        task, folder = open_task(resolve_recipe(self.recipe)), self.run.step_directory(self.chain.sound[-1])
        root, count = f"data.root={self.recipe.data.root}", len(task.training_data())
        names = tuple(weights.load(folder / "model.safetensors", checked=True).class_names)
        if names != tuple(task.class_names):
            here, before = listed(task.class_names) or "none", listed(names) or "none"
            yield f"{root}: the classes are {here}, but the run has {before}"
        if (images := read_state(folder)["images"]) != count:
            yield f"{root}: has {counted(count, 'image')}, but the run was trained on {images:,}"

    def _data_problems(self, unfit: Sequence[str]) -> Iterator[str]:
        recipe = resolve_recipe(self.recipe)
        data = capabilities(open_task(recipe).training_data())
        before = read_state(self.run.step_directory(self.chain.sound[-1])).get("data")
        if not unfit and None not in (before, data.digest) and before != data.digest:
            yield f"data.root={recipe.data.root}: classes, boxes or image sizes differ from those of the run"
        files = data.files()
        if not files or not self.run.data_sums.exists():
            return
        sums = [line.images for line in self.chain.lines if line.images]
        if sums and sums[-1] != chain.sum_of(self.run.data_sums):
            return  # the check of the chain reports this; the list cannot be trusted
        lines = read_text(self.run.data_sums, _LONGEST_LIST, errors="surrogateescape").split("\n")
        recorded = {name: digest for digest, _, name in (line.partition("  ") for line in lines) if name}
        here, root = dict(sums_of(files)), Path(common_folder(files))
        wrong = [name for name in {**recorded, **here} if recorded.get(name) != here.get(name)]
        for name in wrong[:_SHOWN]:
            what = "differs from the file that the run was trained on"
            if name not in here or name not in recorded:
                what = "is missing" if name in recorded else "was not part of the run's data"
            yield f"{root / name}: {what}"
        if len(wrong) > _SHOWN:
            yield f"{root}: {counted(len(wrong) - _SHOWN, 'more file')} changed as well"

    def _result(self, interval: Interval) -> Result:
        began, recipe = time.monotonic(), resolve_recipe(self._recipe_of(interval.last))
        with tempfile.TemporaryDirectory(prefix="rankless-audit-") as folder:
            copy = RunDirectory(Path(folder) / "run")
            if interval.first:
                self._copy_checkpoint(copy, interval.first, recipe)
            code = local.train(
                recipe,
                copy.path,
                devices=self.devices,
                resume=interval.first > 0,
                dry_run_steps=interval.last,
                dry_run_images=0,
                inline=self.devices == 1,  # without starting another process
            )
            if code in (INTERRUPTED, STOPPED):
                raise KeyboardInterrupt
            if code:
                raise UserError(f"steps {interval} could not be retrained (exit code {code})")
            ours, theirs = (checkpoint.load(run, interval.last) for run in (self.run, copy))
            tensors, difference = compare(ours, theirs)
        images = (interval.last - interval.first) * recipe.batch.images
        return Result(interval, images, tensors, difference, round(time.monotonic() - began, 1))

    def _copy_checkpoint(self, copy: RunDirectory, step: int, recipe: Recipe) -> None:
        start = checkpoint.load(self.run, step)
        start = replace(start, state={**start.state, "unscored": False})
        names = weights.load(self.run.step_directory(step) / "model.safetensors", checked=True).class_names
        checkpoint.save(copy, start, recipe, names)
        copy.recipe.write_text(dump(recipe), encoding="utf-8")
        copy.environment.write_bytes(self.run.environment.read_bytes())  # marks the folder as a run


def _conclusions(report: AuditReport) -> Iterator[str]:
    shown: list[Interval] = []
    for one in (result.interval for result in report.results if result.difference is None):
        first = shown.pop().first if shown and shown[-1].last == one.first else one.first
        shown.append(Interval(first, one.last))
    for one in shown:
        start = f"the checkpoint of step {one.first}" if one.first else "the beginning"
        yield f"shown: from {start}, this data and recipe reproduce the checkpoint of step {one.last} exactly"
    if report.not_shown:
        yield f"not shown: steps {'; '.join(_by_reason(report.not_shown))}"
    if not report.ok:
        wrong = len(report.problems) + sum(result.difference is not None for result in report.results)
        yield f"{counted(wrong, 'problem')} found: see DIFFERENT above"


def _by_reason(intervals: Iterable[tuple[Interval, str]]) -> Iterator[str]:
    found: dict[str, list[str]] = {}
    for one, reason in intervals:
        found.setdefault(reason, []).append(str(one))
    return (f"{', '.join(them)}: {reason}" for reason, them in found.items())


def _sample(possible: Sequence[Interval], steps: int | None, seed: int) -> list[Interval]:
    order, drawn = random.Random(seed).sample(possible, len(possible)), list[Interval]()
    while order and (steps is None or sum(last - first for first, last in drawn) < steps):
        drawn.append(order.pop())
    return sorted(drawn)


def other_facts(recorded: Mapping[str, str], here: Mapping[str, str], recipe: Recipe) -> Iterator[str]:
    """Yield differences between this machine and the run's machine that may change the results."""
    for name in {**recorded, **here}:
        section, _, key = name.partition(".")
        # An unset variable may change the results, too; a missing package cannot.
        counts = section == "variables" or (name in recorded and name in here)
        is_free = name == "hardware.CPU" and recipe.cpu_isa != "native"
        was, has = recorded.get(name, "not set"), here.get(name, "not set")
        if counts and not is_free and was != has:
            yield f"{label(section, key)} was {was} in the run and is {has} here"


def compare(one: Snapshot, other: Snapshot) -> tuple[int, str | None]:
    """Compare two snapshots, and return the number of tensors and the first difference (None if equal)."""
    count, first = 0, None
    for part in ("model", "ema", "training"):
        ours, theirs = getattr(one, part) or {}, getattr(other, part) or {}
        names = {**ours, **theirs}
        count += len(names)
        wrong = [name for name in names if not _same_bits(ours.get(name), theirs.get(name))]
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        first = first or (f"{wrong[0]}{more} in {part}.safetensors" if wrong else None)
    if one.state.get("scaler") != other.state.get("scaler"):
        first = first or "the loss scale in state.json"
    return count, first


def _same_bits(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return torch.equal(*(value.contiguous().reshape(-1).view(torch.uint8) for value in (one, other)))
