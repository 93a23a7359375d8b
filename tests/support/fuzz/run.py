"""Many cases of every kind in processes of their own, and a table: ``make fuzz FUZZ=--help``.

A process that dies (a crash, or a wait that no signal ends) is a finding, and another goes on in its place.
Equal seeds give equal cases. What is wrong is kept, to be run again with ``--again FILE``.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import json
import os
import pickle
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from support.fuzz import inputs_data, inputs_models, inputs_recipes, inputs_runs, inputs_words, limits
from support.fuzz.case import Case
from support.fuzz.judge import FINE, Judge

KINDS: dict[str, Callable[[], st.SearchStrategy[Case]]] = {
    "cfg": inputs_models.cfgs,
    "darknet weights": inputs_models.darknet_weights,
    "checkpoint, zip": lambda: inputs_models.checkpoints_zipped,
    "checkpoint, legacy": lambda: inputs_models.checkpoints_legacy,
    "safetensors": inputs_models.safetensors,
    "weights' metadata": inputs_models.hostile_metadata,
    "recipe": inputs_recipes.recipes,
    "override": inputs_recipes.overrides,
    **inputs_data.ALL,
    "run directory": inputs_runs.runs,
    "strange folder": inputs_runs.strange_folders,
    "output place": inputs_words.output_places,
    "command line": inputs_words.command_lines,
}
STUCK = 180
"""Seconds after which a process that answers to no signal is ended."""
MOST_DEATHS = 20
"""Of one kind; the rest of it is left out then."""


def kept(kind: str, folder: Path, number: int | str) -> Path:
    name = re.sub(r"\W+", "-", kind)
    return folder / f"{name}-{number}.pickle"


def generate(kind: str, count: int, start: int, folder: Path, skip: int) -> None:
    """Run cases of one kind; a line of JSON on the standard output after each, and the memory at the end."""
    judge, done = Judge(), 0
    current = kept(kind, folder, "current")

    def report(*what: Any) -> None:
        sys.__stdout__.write(json.dumps(what) + "\n")
        sys.__stdout__.flush()

    @seed(start)
    @settings(
        max_examples=count, deadline=None, database=None, phases=[Phase.generate], print_blob=False,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(KINDS[kind]())
    def one(case: Case) -> None:
        nonlocal done
        done += 1
        if done <= skip:
            return
        current.write_bytes(pickle.dumps(case))
        faulthandler.dump_traceback_later(STUCK, exit=True)
        began = time.process_time()
        verdict = judge(case)
        faulthandler.cancel_dump_traceback_later()
        if not verdict.fine:
            current.rename(found := kept(kind, folder, done))
            text = f"{verdict.outcome}\n{case.words}\n{verdict.detail}\n"
            found.with_suffix(".txt").write_text(text, errors="replace")
        report(verdict.outcome, round(time.process_time() - began, 3))

    try:
        one()
    finally:
        judge.close()
    current.unlink(missing_ok=True)
    report("end", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


class Tally:
    def __init__(self, kind: str) -> None:
        self.kind, self.slowest, self.peak = kind, 0.0, 0
        self.outcomes: collections.Counter[str] = collections.Counter()

    def row(self) -> str:
        wrong = (f"{n} {name}" for name, n in self.outcomes.items() if name not in FINE)
        numbers = [self.outcomes.total(), *(self.outcomes[name] for name in FINE), ", ".join(wrong) or "0"]
        cells = (self.kind, *numbers, f"{self.slowest:.1f}", self.peak // 1024)
        return f"| {' | '.join(map(str, cells))} |"


def supervise(kind: str, count: int, start: int, folder: Path) -> Tally:
    """Run a kind's cases in a process, and in another one where that dies."""
    tally, ended = Tally(kind), False
    while not ended:
        words = ["--kinds", kind, "--cases", str(count), "--seed", str(start), "--findings", str(folder)]
        words += ["--child", str(tally.outcomes.total())]
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "support.fuzz.run", *words],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            assert process.stdout is not None
            for outcome, value in map(json.loads, process.stdout):
                if outcome == "end":
                    ended, tally.peak = True, value
                else:
                    tally.outcomes[outcome] += 1
                    tally.slowest = max(tally.slowest, value)
            if code := process.wait():
                errors.seek(0)
                said = errors.read()
                if code > 0 and "Timeout (" not in said:
                    raise RuntimeError(f"{kind}: an error of the harness's own\n{said}")
                tally.outcomes["died"] += 1
                found = kept(kind, folder, tally.outcomes.total())
                kept(kind, folder, "current").rename(found)
                found.with_suffix(".txt").write_text(f"died {code}\n{said[-5000:]}")
                ended = tally.outcomes["died"] > MOST_DEATHS
    print(f"{kind}: {dict(tally.outcomes)}", file=sys.stderr, flush=True)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="how many at least, of all kinds together")
    parser.add_argument("--seed", type=int, default=0, help="another number makes other cases")
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="only these", metavar="KIND"
    )
    parser.add_argument(
        "--findings", type=Path, default=Path("build/fuzz"), help="where what is wrong is kept"
    )
    parser.add_argument("--again", type=Path, nargs="+", help="run kept cases again", metavar="FILE")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.again:
        judge = Judge()
        verdicts = [judge(pickle.loads(file.read_bytes())) for file in chosen.again]
        judge.close()
        for file, verdict in zip(chosen.again, verdicts, strict=True):
            print(f"{file}: {verdict.outcome}" + ("" if verdict.fine else f"\n{verdict.detail}"))
        return 0 if all(verdict.fine for verdict in verdicts) else 1
    chosen.findings.mkdir(parents=True, exist_ok=True)
    if chosen.child is not None:
        generate(*chosen.kinds, chosen.cases, chosen.seed, chosen.findings, chosen.child)
        return 0
    began, each = time.monotonic(), -(-chosen.cases // len(chosen.kinds))
    processes = min(len(os.sched_getaffinity(0)), len(chosen.kinds))
    with ThreadPoolExecutor(processes) as pool:
        run = pool.map(lambda kind: supervise(kind, each, chosen.seed, chosen.findings), chosen.kinds)
        tallies = list(run)
    print("| input | cases | accepted | reported | refused | wrong | slowest, s | peak, MiB |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    print("\n".join(tally.row() for tally in tallies))
    print(
        f"\n{time.monotonic() - began:.0f} s with {processes} processes; a case may take "
        f"{limits.MEMORY >> 20} MiB of memory, {limits.PROCESSOR:g} s of the processor "
        f"and {limits.CLOCK:g} s of waiting"
    )
    if wrong := sum(n for tally in tallies for name, n in tally.outcomes.items() if name not in FINE):
        print(f"{wrong} are wrong: see {chosen.findings}, and run them again with --again FILE ...")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
