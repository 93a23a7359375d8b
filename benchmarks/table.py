"""The output of the benchmarks: the machine in words, a table, and notes."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from turns import Seconds, speed


@dataclass(frozen=True)
class Row:
    """One comparison.

    Attributes:
        what: the comparison, A / B.
        a_ms, b_ms: the median step of each, in milliseconds.
        best, median, cpu: the speed of A relative to B; see :class:`turns.Speed`.
        demand: the least ``best`` that is accepted; None for information.
    """

    what: str
    a_ms: float
    b_ms: float
    best: float
    median: float
    cpu: float
    demand: float | None = None

    @property
    def is_met(self) -> bool:
        """Return whether the demand is met, if there is one."""
        return self.demand is None or self.best >= self.demand


@dataclass
class Report:
    """The results of one benchmark.

    Attributes:
        machine: in words.
        rows: the comparisons.
        notes: further figures by name, each a sentence.
        figures: the same for programs.
    """

    machine: str
    rows: list[Row] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)

    def compare(
        self, what: str, one: Sequence[Seconds], other: Sequence[Seconds], *, demand: float | None = None
    ) -> None:
        """Add a row."""
        a, b = (1000 * median(t.wall for t in times) for times in (one, other))
        self.rows.append(Row(what, a, b, *speed(one, other), demand))

    def note(self, name: str, figure: Any, sentence: str) -> None:
        """Add a figure."""
        self.figures[name], self.notes[name] = figure, sentence

    @property
    def is_met(self) -> bool:
        """Return whether every demand is met."""
        return all(row.is_met for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        """Return the report for programs."""
        return {
            "machine": self.machine,
            "ok": self.is_met,
            "comparisons": [asdict(row) for row in self.rows],
            "figures": self.figures,
        }

    def show(self) -> None:
        """Print the report."""
        print(self.machine, end="\n\n")
        width = max((len(row.what) for row in self.rows), default=0)
        demands = "  demand" if any(row.demand is not None for row in self.rows) else ""
        titles = f"{'A ms':>8}  {'B ms':>8}  {'best':>5}  {'median':>6}  {'CPU':>5}{demands}"
        print(f"{'A beside B':{width}}  {titles}")
        for row in self.rows:
            demand = "" if row.demand is None else f"≥ {row.demand:.2f} {'met' if row.is_met else 'MISSED'}"
            line = (
                f"{row.what:{width}}  {row.a_ms:8.1f}  {row.b_ms:8.1f}  {row.best:5.2f}  {row.median:6.2f}  "
                f"{row.cpu:5.2f}  {demand}"
            )
            print(line.rstrip())
        print(
            "\nA's speed beside B's, 1 is as fast: of the best steps, the median of paired steps, and of the"
        )
        print("processor's time, which other load on the machine hardly touches.\n")
        for sentence in self.notes.values():
            print(sentence)


def machine() -> str:
    """Describe this machine in words."""
    cores = len(os.sched_getaffinity(0))
    words = [f"{cores}-core {platform.machine()} CPU"]
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        flags = set()
    instructions = {
        "avx2": "AVX2",
        "avx512f": "AVX-512",
        "avx512_bf16": "AVX512-BF16",
        "amx_bf16": "AMX-BF16",
    }
    if found := [name for flag, name in instructions.items() if flag in flags]:
        words.append(f"with {found[-1]}")
    words.append(f"and one {torch.cuda.get_device_name()}" if torch.cuda.is_available() else "and no GPU")
    return f"{' '.join(words)}; Python {platform.python_version()}, PyTorch {torch.__version__}"
