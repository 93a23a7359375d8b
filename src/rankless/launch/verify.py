"""Check that a recipe gives the same bits on this machine with different numbers of ranks."""

from __future__ import annotations

import json
import statistics
import tempfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rankless.errors import INTERRUPTED, UserError, counted
from rankless.launch import local
from rankless.launch.hosts.channel import Access
from rankless.launch.hosts.coordinator import Coordinator
from rankless.launch.hosts.names import Host
from rankless.launch.job import Wanted
from rankless.launch.requests import Requests
from rankless.launch.sharing import refuse_idle
from rankless.models.weights_files.weights import digest_file
from rankless.recipe.schema import Recipe
from rankless.runs import journal
from rankless.runs.directory import RunDirectory

Trace = list[dict[str, Any]]

_WARM_UP = 2  # steps that are excluded from the speed


@dataclass(frozen=True)
class WorldResult:
    """The result of training with a given number of ranks."""

    world: int
    digest: str  # of the weights after the last step
    images_per_second: float  # median
    difference: str | None  # the first one, between the ranks or from the first world size


@dataclass(frozen=True)
class VerifyReport:
    """The results for each number of ranks, in the given order."""

    steps: int
    worlds: list[WorldResult] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every step was bit-identical for every number of ranks."""
        return all(result.difference is None for result in self.worlds)

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain data for JSON."""
        return {"ok": self.ok, **asdict(self)}


def verify(recipe: Recipe, worlds: Sequence[int], steps: int, echo: Callable[[str], None]) -> VerifyReport:
    """Train the first steps with each number of ranks, and compare every tensor after every step.

    The comparison covers the weights, their average, the running statistics, the optimizer state, and the
    scores of two evaluations on a few images. The ranks of one training run are also compared with each
    other. ``echo`` receives the table line by line.
    """
    refuse_idle("--worlds has {}", worlds, recipe)
    if len(worlds) < 2:
        raise UserError(
            f"--worlds is {worlds[0]}: expected at least two numbers of ranks to compare, as in 1,2"
        )

    def train(world: int, first: Trace) -> tuple[WorldResult, Trace]:
        with tempfile.TemporaryDirectory(prefix="rankless-verify-") as name:
            folder, run = Path(name), RunDirectory(Path(name) / "run")
            code = local.train(recipe, run.path, devices=world, dry_run_steps=steps, traces=folder)
            last = run.pointed("last")
            if code or last is None:
                raise UserError(f"training with world size {world} did not finish (exit code {code})")
            traces = [(folder / f"trace-{rank}.jsonl").read_text(encoding="utf-8") for rank in range(world)]
            digest = digest_file(run.step_directory(last) / "model.safetensors")
            return _result(recipe, traces, digest, journal.step_seconds(run.journal), first)

    return compare([partial(train, world) for world in worlds], steps, echo)


def verify_on_hosts(
    recipe: Recipe, hosts: Sequence[Host], steps: int, access: Access, echo: Callable[[str], None]
) -> VerifyReport:
    """Train the first steps on all hosts, then on one device of the first host, and compare every tensor."""

    def train(there: Sequence[Host], first: Trace) -> tuple[WorldResult, Trace]:
        run = Path("runs") / f".verify-{uuid.uuid4().hex[:12]}"
        wanted = Wanted(recipe, "", run=run, least=len(there), dry_run_steps=steps)
        with Requests() as requests:
            coordinator = Coordinator(wanted, there, access, requests)
            code = coordinator.train()
            if code == INTERRUPTED:
                raise KeyboardInterrupt
            if code:
                raise UserError(f"training on {', '.join(map(str, there))} did not finish (exit code {code})")
        outcome, traces = coordinator.outcome, coordinator.traces
        return _result(coordinator.training.recipe, traces, outcome.digest, outcome.seconds, first)

    # Train on all hosts first, so that an unusable host is found before anything is trained.
    worlds = (list(hosts), [replace(hosts[0], devices=1)])
    return compare([partial(train, there) for there in worlds], steps, echo)


def compare(
    worlds: Sequence[Callable[[Trace], tuple[WorldResult, Trace]]], steps: int, echo: Callable[[str], None]
) -> VerifyReport:
    """Train with each number of ranks in turn, and report the differences.

    The first function in ``worlds`` receives an empty trace; the others receive the trace of the first.
    """
    report = VerifyReport(steps)
    echo(f"{'ranks':>5}  {'SHA-256 of the weights':<64}  {'img/s':>7}")
    first: Trace = []
    for train in worlds:
        result, trace = train(first)
        first = first or trace
        report.worlds.append(result)
        echo(f"{result.world:>5}  {result.digest:<64}  {result.images_per_second:>7.1f}")
    for result in report.worlds:
        if result.difference:
            echo(f"DIFFERENT: world size {result.world}: {result.difference}")
    if report.ok:
        echo(f"the same bits in every tensor after each step ({steps}), and the same scores")
    return report


def _result(
    recipe: Recipe, texts: Sequence[str], digest: str, seconds: Sequence[float], first: Trace
) -> tuple[WorldResult, Trace]:
    traces = [[json.loads(line) for line in text.splitlines()] for text in texts]
    difference = None
    for rank, trace in enumerate(traces[1:], 1):
        difference = difference or _first_difference(traces[0], trace, f"rank {rank} compared with rank 0")
    if first:
        difference = difference or _first_difference(first, traces[0], "compared with the first world size")
    speed = recipe.batch.images / statistics.median(seconds[_WARM_UP:] or seconds)
    return WorldResult(len(traces), digest, round(speed, 1), difference), traces[0]


def _first_difference(one: Trace, other: Trace, who: str) -> str | None:
    for a, b in zip(one, other, strict=False):
        both = {**a["tensors"], **b["tensors"]}
        names = [name for name in both if a["tensors"].get(name) != b["tensors"].get(name)]
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            return f"step {a['step']}, {names[0]}{more} ({who})"
        if a["scores"] != b["scores"]:
            return f"the scores after step {a['step']} ({who})"
    return None if len(one) == len(other) else f"{counted(len(other), 'step')} instead of {len(one)} ({who})"
