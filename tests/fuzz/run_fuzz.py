"""Many cases of every kind in processes of their own, and a table: ``python tests/fuzz/run_fuzz.py --help``.

A process that dies (a crash, or a wait that no signal ends) is a finding, and another goes on in its place.
Equal seeds give equal cases. What is wrong is kept as JSON, to be run again with ``--again FILE``.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import faulthandler
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import fuzz_limits
from fuzz_case import Case, from_json, to_json
from fuzz_judge import FINE, Judge
from fuzz_kinds import KINDS
from hypothesis import HealthCheck, Phase, given, seed, settings

STUCK = 180
"""Seconds after which a process that answers to no signal is ended."""
MOST_DEATHS = 20
"""Of one kind; the rest of it is left out then."""


def generate(kind: str, count: int, start: int, folder: Path, judge: Judge, skip: int) -> None:
    """Run cases of one kind; a line of JSON on the standard output after each."""
    done = 0
    current = folder / f"{_file_name(kind)}-{start}-current.json"

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
        text = to_json(case)
        current.write_text(text)
        faulthandler.dump_traceback_later(STUCK, exit=True)
        began = time.process_time()
        verdict = judge(case)
        faulthandler.cancel_dump_traceback_later()
        if not verdict.fine:
            kept = folder / f"{_file_name(kind)}-{start}-{done}.json"
            kept.write_text(text)
            kept.with_suffix(".txt").write_text(
                f"{verdict.outcome}\n{case.words}\n{verdict.detail}\n", errors="replace"
            )
        report(kind, verdict.outcome, round(time.process_time() - began, 3))

    one()
    current.unlink(missing_ok=True)
    report(kind, "end", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def report(*what: Any) -> None:
    """A line for the process that started this one."""
    sys.__stdout__.write(json.dumps(what) + "\n")
    sys.__stdout__.flush()


def _file_name(kind: str) -> str:
    return re.sub(r"\W+", "-", kind)


class Tally:
    """What came of one kind."""

    def __init__(self) -> None:
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.slowest = 0.0
        self.peak = 0
        self.ended = False

    def add(self, outcome: str, value: float) -> None:
        """One case, or the end of all and the memory that the process had at its most, in KiB."""
        if outcome == "end":
            self.ended, self.peak = True, int(value)
        else:
            self.outcomes[outcome] += 1
            self.slowest = max(self.slowest, value)


def supervise(kinds: list[str], count: int, start: int, folder: Path) -> dict[str, Tally]:
    """Run some kinds' cases in a process, and in another one where that dies."""
    found = {kind: Tally() for kind in kinds}
    for kind in kinds:
        while not found[kind].ended:
            left = [each for each in kinds if not found[each].ended]
            skip = sum(found[kind].outcomes.values())
            words = ["--kinds", *left, "--cases", str(count), "--seed", str(start), "--skip", str(skip)]
            words += ["--findings", str(folder), "--child"]
            with tempfile.TemporaryFile("w+") as errors:
                process = subprocess.Popen(
                    [sys.executable, __file__, *words], stdout=subprocess.PIPE, stderr=errors, text=True
                )
                assert process.stdout is not None
                for line in process.stdout:
                    name, outcome, value = json.loads(line)
                    found[name].add(outcome, value)
                    if outcome == "end":
                        print(f"{name}: {dict(found[name].outcomes)}", file=sys.stderr, flush=True)
                if process.wait():
                    errors.seek(0)
                    current = next(each for each in left if not found[each].ended)
                    _died(current, found[current], start, folder, process.returncode, errors.read())
    return found


def _died(kind: str, tally: Tally, start: int, folder: Path, code: int, errors: str) -> None:
    """Count a process's death as an outcome of the case that it was at."""
    if code > 0 and "Timeout (" not in errors:
        print(errors, file=sys.stderr, flush=True)
        raise RuntimeError(f"{kind}: an error of the harness's own")
    tally.add("died", 0)
    current = folder / f"{_file_name(kind)}-{start}-current.json"
    kept = folder / f"{_file_name(kind)}-{start}-{sum(tally.outcomes.values())}.json"
    current.rename(kept)
    kept.with_suffix(".txt").write_text(f"died {code}\n{errors[-5000:]}")
    tally.ended = tally.outcomes["died"] > MOST_DEATHS


def table(tallies: dict[str, Tally]) -> str:
    """Kinds and outcomes, as Markdown."""
    lines = ["| input | cases | accepted | reported | refused | wrong | slowest, s | peak, MiB |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|---:|")
    whole: collections.Counter[str] = collections.Counter()
    for kind, tally in tallies.items():
        whole += tally.outcomes
        wrong = {name: n for name, n in tally.outcomes.items() if name not in FINE}
        named = ", ".join(f"{n} {name}" for name, n in wrong.items()) or "0"
        numbers = " | ".join(str(tally.outcomes[name]) for name in FINE)
        peak = tally.peak // 1024
        cases = sum(tally.outcomes.values())
        lines.append(f"| {kind} | {cases} | {numbers} | {named} | {tally.slowest:.1f} | {peak} |")
    wrong_in_all = sum(n for name, n in whole.items() if name not in FINE)
    numbers = " | ".join(str(whole[name]) for name in FINE)
    lines.append(f"| all | {sum(whole.values())} | {numbers} | {wrong_in_all} | | |")
    return "\n".join(lines)


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
    parser.add_argument("--skip", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.again:
        return _again(chosen.again)
    chosen.findings.mkdir(parents=True, exist_ok=True)
    if chosen.child:
        judge = Judge()
        try:
            for number, kind in enumerate(chosen.kinds):
                generate(
                    kind, chosen.cases, chosen.seed, chosen.findings, judge, 0 if number else chosen.skip
                )
        finally:
            judge.close()
        return 0
    began = time.monotonic()
    each, processes = (
        -(-chosen.cases // len(chosen.kinds)),
        min(len(os.sched_getaffinity(0)), len(chosen.kinds)),
    )
    with concurrent.futures.ThreadPoolExecutor(processes) as pool:
        shares = [chosen.kinds[number::processes] for number in range(processes)]
        done = list(pool.map(lambda kinds: supervise(kinds, each, chosen.seed, chosen.findings), shares))
    found = {kind: tally for share in done for kind, tally in share.items()}
    print(table({kind: found[kind] for kind in chosen.kinds}))
    print(
        f"\n{time.monotonic() - began:.0f} s with {processes} processes; a case may take "
        f"{fuzz_limits.MEMORY >> 20} MiB of memory, {fuzz_limits.PROCESSOR:g} s of the processor "
        f"and {fuzz_limits.CLOCK:g} s of waiting"
    )
    wrong = sum(n for tally in found.values() for name, n in tally.outcomes.items() if name not in FINE)
    if wrong:
        print(f"{wrong} are wrong: see {chosen.findings}, and run them again with --again FILE ...")
    return 1 if wrong else 0


def _again(files: list[Path]) -> int:
    judge = Judge()
    try:
        verdicts = [judge(from_json(file.read_text())) for file in files]
    finally:
        judge.close()
    for file, verdict in zip(files, verdicts, strict=True):
        print(f"{file}: {verdict.outcome}" + ("" if verdict.fine else f"\n{verdict.detail}"))
    return 0 if all(verdict.fine for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
