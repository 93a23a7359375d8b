"""Measure the size, speed and score of a model's exports on this machine."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankless.engine import evaluate as engine
from rankless.errors import UserError, counted, nearest, one_of
from rankless.hardware.compute_device import compute_device
from rankless.hardware.computing import computes_like
from rankless.interop import speed
from rankless.interop.export import PROGRAMS, write_checked
from rankless.interop.export_plan import ExportOptions, Plan, plan_export
from rankless.tasks import open_task
from rankless.world.process_group import World, join

PYTORCH, CPU = "pytorch", "CPU"
_HALF = ("onnx", "openvino")  # also measured in float16; PyTorch gains nothing from it on a CPU


@dataclass(frozen=True)
class Row:
    """The measurements of one export."""

    format: str
    precision: str
    megabytes: float | None = None
    images_per_second: float | None = None  # network and decoding, without image reading and NMS
    score: float | None = None  # None if the data cannot be read
    difference: float | None = None  # largest deviation of a prediction score from PyTorch's
    problem: str = ""  # why the measurement failed


@dataclass(frozen=True)
class Benchmark:
    """The measurements of all exports."""

    weights: Path
    score_name: str
    batch: int
    size: tuple[int, int]  # height, width in pixels
    device: str
    threads: int
    data: str  # empty if it cannot be read; then ``notes`` contains the reason
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def table(self) -> Iterator[str]:
        """Yield the lines of a table with at most 80 columns."""
        height, width = self.size
        threads = counted(self.threads, "thread")
        yield f"{self.weights}, {width} × {height} pixels, {counted(self.batch, 'image')} at a time"
        where = "the CPU"
        if self.device != CPU:
            where = f"{self.device} (exports on the CPU, except ONNX with onnxruntime-gpu)"
        yield f"on {where} with {threads}, not counting image reading and NMS"
        yield ""
        yield f"{'format':<12}{'precision':<10}{'MB':>8}{'images/s':>10}{self.score_name:>9}  difference"
        for row in self.rows:
            if row.problem:
                yield f"{row.format:<12}{row.precision:<10}  {row.problem}"
                continue
            columns = (
                f"{_shown(row.megabytes, '.1f'):>8}",
                f"{_shown(row.images_per_second, '.1f'):>10}",
                f"{_shown(row.score, '.4f'):>9}",
                f"{_shown(row.difference, '.1e'):>12}",
            )
            yield f"{row.format:<12}{row.precision:<10}{''.join(columns)}"
        yield ""
        about = "difference: the largest deviation of a prediction score from PyTorch's"
        yield f"{self.score_name} on {self.data}; {about}" if self.data else about

    def as_json(self) -> dict[str, Any]:
        """Return the benchmark as plain data for JSON."""
        return {**asdict(self), "weights": str(self.weights)}


def benchmark(
    target: Path,
    *,
    overrides: Sequence[str] = (),
    formats: Sequence[str] = (),
    batch: int = 1,
    seconds: float = 3.0,
    note: Callable[[str], None] = lambda _: None,
) -> Benchmark:
    """Export a model to ``formats``, by default to all of them, and measure each export.

    ``target`` is a weights file or a run directory, whose best weights are exported. Each measurement takes
    ``seconds``. Before each one, ``note`` is called with the name of the export.
    """
    unknown = [name for name in formats if name not in PROGRAMS]
    if unknown:
        raise UserError(
            f"--formats contains '{name}': expected {one_of(PROGRAMS)}{nearest(name, PROGRAMS)}"
            for name in unknown
        )
    plan = plan_export(target, ExportOptions(batch=batch), overrides)
    notes: list[str] = []
    with (
        computes_like(plan.facts.recipe),
        join(inline=True) as world,
        tempfile.TemporaryDirectory(prefix="rankless-benchmark-") as folder,
    ):
        note("pytorch")
        bench = _Bench(plan, speed.inputs(plan, batch), seconds, Path(folder), world)
        try:
            score: float | None = bench.score(copy.deepcopy(plan.model))  # the copy may move to a GPU
        except UserError as error:
            score = None
            notes.append(f"no scores: {error.problems[0]}")
        rows = [Row(PYTORCH, "fp32", None, speed.of_pytorch(plan.portable(), bench.inputs, seconds), score)]
        for name in formats or PROGRAMS:
            for each in (plan, plan.in_half())[: 1 + (name in _HALF)]:
                note(f"{name} {each.facts.recipe.precision}")
                rows.append(bench.row(name, each, scored=score is not None))
    data = plan.facts.recipe.data
    return Benchmark(
        plan.source,
        plan.task.score_name,
        batch,
        plan.facts.size,
        torch.cuda.get_device_name() if compute_device().type == "cuda" else CPU,
        torch.get_num_threads(),
        "" if score is None else f"{data.root} ({data.val})",
        tuple(rows),
        tuple(notes),
    )


@dataclass(frozen=True)
class _Bench:
    plan: Plan
    inputs: torch.Tensor
    seconds: float
    folder: Path
    world: World

    def row(self, format: str, plan: Plan, *, scored: bool) -> Row:
        precision = plan.facts.recipe.precision
        folder = self.folder / f"{format}-{precision}"
        folder.mkdir()
        try:
            done = write_checked(plan, format, folder)
            rate = speed.of_session(done.session, self.inputs, self.seconds)
            classes = len(plan.facts.class_names)
            model = plan.facts.kind.run_export(done.session, "the export", classes)
            score = self.score(model, exported=True) if scored else None
        except UserError as error:
            return Row(format, precision, problem=error.problems[0])
        size = sum(file.stat().st_size for file in done.files) / 1e6
        return Row(format, precision, size, rate, score, done.agreement.scores)

    def score(self, model: nn.Module, *, exported: bool = False) -> float:
        facts = self.plan.facts
        task = open_task(facts.recipe, facts.class_names, exported=exported)
        scores = engine.evaluate(task, model.to(self.world.device), facts.recipe, self.world)
        return float(scores[task.score_name])


def _shown(number: float | None, format: str) -> str:
    return "–" if number is None else f"{number:{format}}"
