"""Stress: random faults at random moments, and whether the run ends with the same bits as an undisturbed one.

    python benchmarks/faults.py --faults 30 --seed 0

Each fault hits a run of a small task with a random number of ranks; what is left is resumed with another
number. Compared with an undisturbed run: the digests of the weights, the averaged weights and the optimiser's
state, the best score, and every number in the journal. Exits with 1 on any difference, orphan, hang or
unexpected word.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "faults"))
from harness_for_faults import STEPS, Run, finish, kill, outcome, undisturbed

SLOW = {"FAULT_SLEEP": "0.05"}  # seconds a micro-batch takes longer, so that a fault finds the run at work
MOST = 4  # ranks: one per micro-batch


@dataclass
class Tally:
    """What became of the faults of one kind."""

    tried: int = 0
    same: int = 0
    seconds: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def kill_rank(run: Run, world: int, chance: random.Random) -> None:
    kill(run.pid(f"rank {chance.randrange(world)}"))


def kill_launcher(run: Run, world: int, chance: random.Random) -> None:
    kill(run.pid("launcher"))


def kill_all(run: Run, world: int, chance: random.Random) -> None:
    everyone = run.processes()
    chance.shuffle(everyone)
    for process in everyone:
        kill(process.pid)


def cut_checkpoint(run: Run, world: int, chance: random.Random) -> None:
    kill_all(run, world, chance)
    run.gone()
    steps = run.run.steps()
    if len(steps) > 1:  # with the only one gone there is nothing to fall back to, and it is told
        files = sorted(run.run.step_directory(steps[-1]).iterdir())
        file = chance.choice(files)
        os.truncate(file, file.stat().st_size // 2)


def full_disk(run: Run, world: int, chance: random.Random) -> None:
    # A stand-in that comes at any moment: no file of rank 0 may grow beyond a few more lines of the journal.
    limit = run.run.journal.stat().st_size + 600
    resource.prlimit(run.pid("rank 0"), resource.RLIMIT_FSIZE, (limit, limit))


def terminate_launcher(run: Run, world: int, chance: random.Random) -> None:
    kill(run.pid("launcher"), signal.SIGTERM)


def terminate_rank(run: Run, world: int, chance: random.Random) -> None:
    kill(run.pid(f"rank {chance.randrange(world)}"), signal.SIGTERM)


def interrupt(run: Run, world: int, chance: random.Random) -> None:
    os.killpg(run.process.pid, signal.SIGINT)


KINDS: dict[str, tuple[Callable[[Run, int, random.Random], None], int]] = {
    "kill -9 of a rank": (kill_rank, 0),
    "kill -9 of the launcher": (kill_launcher, -signal.SIGKILL),
    "kill -9 of all": (kill_all, -signal.SIGKILL),
    "kill -9 of all, checkpoint cut": (cut_checkpoint, -signal.SIGKILL),
    "no room on the disk": (full_disk, 2),
    "SIGTERM to the launcher": (terminate_launcher, 85),
    "SIGTERM to a rank": (terminate_rank, 85),
    "SIGINT to the group": (interrupt, 130),
}


def one(kind: str, folder: Path, chance: random.Random, expected: dict[str, Any], tally: Tally) -> None:
    """One fault, and what it changed."""
    act, code = KINDS[kind]
    world, workers = chance.randint(1, MOST), chance.choice([0, 0, 1])
    if act is full_disk:
        workers = 0  # the stand-in would forbid their semaphores, too
    moment, delay = chance.randint(1, STEPS - 5), chance.random() * 0.2
    words = (f"workers={workers}",)
    place = f"{kind}: {world} ranks, {workers} loader processes, after step {moment} and {delay:.2f} s"
    with Run(folder, world, *words, environment=SLOW) as run:
        run.until(lambda: run.step() >= moment, 120)
        time.sleep(delay)
        starts, began = len(run.events("start") + run.events("resume")), time.monotonic()
        act(run, world, chance)
        if act is kill_rank and chance.random() < 0.7:
            step = run.step()
            run.until(lambda: len(run.events("start") + run.events("resume")) > starts and run.step() >= step)
            tally.back.append(time.monotonic() - began)
            if chance.random() < 0.5:
                kill_launcher(run, world, chance)
                code = -signal.SIGKILL
        found = run.wait(120)
        run.gone()
        if found != code:
            tally.wrong.append(f"{place}: exit code {found}, expected {code}:\n{run.text()}")
        if noise := run.noise():
            tally.wrong.append(f"{place}: words for nobody: {noise}")
    if found == 0:
        result = outcome(folder)
    else:
        result = finish(folder, chance.choice([n for n in range(1, MOST + 1) if n != world]), *words)
    if result == expected:
        tally.same += 1
    else:
        parts = [part for part in expected if result[part] != expected[part]]
        tally.wrong.append(f"{place}: {', '.join(parts)} differ")


def main() -> int:
    """Run the faults and print the tally; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    tallies: dict[str, Tally] = defaultdict(Tally)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rankless-faults-") as scratch:
        expected = undisturbed(Path(scratch) / "undisturbed")
        for number in range(options.faults):
            kind = list(KINDS)[number % len(KINDS)]
            tally, folder, started = tallies[kind], Path(scratch) / f"run-{number}", time.monotonic()
            tally.tried += 1
            try:
                one(kind, folder, chance, expected, tally)
            except AssertionError as error:
                tally.wrong.append(f"{kind}: {error}")
            tally.seconds.append(time.monotonic() - started)
            print(f"{number + 1}/{options.faults}  {kind}  {tally.seconds[-1]:.0f} s", file=sys.stderr)
            shutil.rmtree(folder, ignore_errors=True)
    print_tally(tallies, time.monotonic() - began)
    return 1 if any(tally.wrong for tally in tallies.values()) else 0


def print_tally(tallies: dict[str, Tally], seconds: float) -> None:
    """One line a kind, then what went wrong."""
    print(f"{'fault':32}{'tried':>6}{'same':>6}{'seconds (median)':>18}")
    for kind, tally in tallies.items():
        print(f"{kind:32}{tally.tried:>6}{tally.same:>6}{statistics.median(tally.seconds):>18.1f}")
    tried, same = sum(t.tried for t in tallies.values()), sum(t.same for t in tallies.values())
    print(f"{'all':32}{tried:>6}{same:>6}{seconds:>11.0f} in all")
    if back := [s for tally in tallies.values() for s in tally.back]:
        median = statistics.median(back)
        print(f"from a killed rank to being where it was: {median:.1f} s, at most {max(back):.1f} s")
    for tally in tallies.values():
        for sentence in tally.wrong:
            print(f"WRONG: {sentence}")


if __name__ == "__main__":
    sys.exit(main())
