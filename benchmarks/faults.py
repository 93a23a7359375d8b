"""Stress test: meet random faults at random moments, and end with the same bits as an undisturbed run.

    python benchmarks/faults.py --faults 200 --seed 0
    python benchmarks/faults.py --faults 100 --seed 0 --hosts 3    (see benchmarks/faults_on_hosts.py)

A run of a small task meets several faults, one after another; after each it goes on by itself or is resumed
with another number of ranks. At its end it is compared with an undisturbed run: the digests of the weights,
of the averaged weights and of the optimizer's state, the best score, and every number in the journal. Two
such runs go on side by side (``--jobs``). Exits with 1 on a changed digest, a saved step that was lost, a
process left behind, a traceback, or another ending than the fault should have.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import resource
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from rankless.engine.checkpoint import newest
from rankless.runs.directory import RunDirectory
from support.faults.harness import STEPS, OrphansError, Run, finish, kill, outcome, small_disk, undisturbed

CHAIN = 4  # faults that one run meets
MOST = 4  # ranks: one per micro-batch
WORLDS = (1, 1, 2, 2, 2, 3, 4)
WORDS = ("evaluate.every=1 epoch",)  # epochs of five steps
STEP = 0.2  # seconds that a step takes longer, so that a fault finds the run at work
BATCH = 0.1  # … and a batch of an evaluation
FILES = 5  # of a checkpoint
PAGE = 4096  # bytes
PATIENCE = 240.0  # seconds; nothing is measured by it


class Chain:
    """One run and its faults; a start may outlive a fault.

    Args:
        folder: the run directory.
        chance: where the random numbers come from.
        loaders: numbers of loader processes that a start draws from.
    """

    def __init__(self, folder: Path, chance: random.Random, loaders: Sequence[int]) -> None:
        self.folder, self.chance, self.loaders = folder, chance, loaders
        self.run: Run | None = None
        self.runs: list[Run] = []
        self.world, self.workers, self.place = 0, 0, ""
        self.disk: Path | None = None

    def start(self, environment: dict[str, str], *, workers: bool) -> Run:
        """Start the run, or resume it with another number of ranks."""
        self.world = self.chance.choice([size for size in WORLDS if size != self.world])
        self.workers = self.chance.choice(self.loaders) if workers else 0
        words = [*WORDS, f"workers={self.workers}"]
        if (self.folder / "recipe.yaml").exists():
            words.append("--resume")
        slow = {"FAULT_SLEEP": str(STEP * self.world / MOST), "FAULT_PREDICT": str(BATCH)}
        slow["FAULT_RANK"] = str(self.chance.randrange(self.world))
        self.run = Run(self.folder, self.world, *words, environment={**slow, **environment})
        self.runs.append(self.run)
        return self.run

    def ended(self, run: Run) -> int:
        """Wait for the start and all its processes to end, and return the exit code."""
        found = run.wait(PATIENCE)
        self.run = None
        run.gone()
        return found


Act = Callable[[Chain, Run], None]


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    Attributes:
        codes: how the start may end that meets it; none means that it goes on by itself.
        act: what is done to a run that is at work.
        environment: of a start that does it to itself.
        when: what to wait for beside a random moment.
        workers: whether there may be loader processes.
    """

    codes: Sequence[int] = ()
    act: Act | None = None
    environment: Callable[[random.Random], dict[str, str]] | None = None
    when: Callable[[Run], Any] | None = None
    workers: bool = True


def kill_rank(chain: Chain, run: Run) -> None:
    kill(run.pid(f"rank {chain.chance.randrange(chain.world)}"))


def kill_launcher(chain: Chain, run: Run) -> None:
    kill(run.process.pid)


def kill_all(chain: Chain, run: Run) -> None:
    everyone = run.processes()
    chain.chance.shuffle(everyone)
    for process in everyone:
        kill(process.pid)


def kill_and_cut(chain: Chain, run: Run) -> None:
    kill_all(chain, run)
    run.gone()
    steps = run.run.steps()
    if len(steps) > 1:  # with the only one gone there is nothing to fall back to, and it is told
        file = chain.chance.choice(sorted(run.run.step_directory(steps[-1]).iterdir()))
        os.truncate(file, file.stat().st_size // 2)


def kill_in_save(chain: Chain, run: Run) -> None:
    """Kill rank 0 once this many files of the next checkpoint have content."""
    rank, files = run.pid("rank 0"), chain.chance.randint(0, FILES)
    seen, until = False, time.monotonic() + PATIENCE
    while time.monotonic() < until and run.process.poll() is None:
        found = _files_of_save(run.run.checkpoints)
        if found >= files or (seen and found < 0):  # or it was too fast: then just after it
            break
        seen = seen or found >= 0
    kill(rank)


def kill_launcher_in_save(chain: Chain, run: Run) -> None:
    kill_in_save(chain, run)
    kill_launcher(chain, run)


def _files_of_save(checkpoints: Path) -> int:
    """Return the number of files with content in the checkpoint being written; -1 without one."""
    with contextlib.suppress(OSError):
        for folder in checkpoints.iterdir():
            if folder.name.startswith(".step-"):
                return sum(file.stat().st_size > 0 for file in folder.iterdir())
    return -1


def full_disk(chain: Chain, run: Run) -> None:
    """Leave a few pages of the disk, so that chance decides which file does not fit."""
    if chain.disk is None:
        limit_files(chain, run)
        return
    with contextlib.suppress(OSError), (chain.disk / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(PAGE))
        except OSError:
            file.truncate(max(file.tell() - PAGE * chain.chance.randint(0, 12), 0))


def limit_files(chain: Chain, run: Run) -> None:
    """Limit the files of rank 0 to a few more lines of the journal."""
    limit = run.run.journal.stat().st_size + 600
    resource.prlimit(run.pid("rank 0"), resource.RLIMIT_FSIZE, (limit, limit))


def terminate(chain: Chain, run: Run) -> None:
    rank = chain.chance.choice(["launcher", *(f"rank {number}" for number in range(chain.world))])
    kill(run.pid(rank), signal.SIGTERM)


def interrupt(chain: Chain, run: Run) -> None:
    os.killpg(run.process.pid, signal.SIGINT)


def _pass(name: str) -> Callable[[random.Random], dict[str, str]]:
    return lambda chance: {name: str(chance.randint(1, 6))}


KINDS: dict[str, Kind] = {
    "kill -9 of a rank": Kind((), kill_rank),
    "kill -9 of the launcher": Kind((-signal.SIGKILL,), kill_launcher),
    "kill -9 of all": Kind((-signal.SIGKILL,), kill_all),
    "kill -9 of all, checkpoint cut": Kind((-signal.SIGKILL,), kill_and_cut),
    "kill -9 of a rank in evaluation": Kind((), kill_rank, when=Run.is_evaluating),
    "kill -9 of rank 0 in a save": Kind((), kill_in_save),
    "kill -9 of rank 0, launcher in a save": Kind((-signal.SIGKILL,), kill_launcher_in_save),
    "full disk": Kind((2, 0), full_disk),
    "files cannot grow": Kind((2, 0), limit_files, workers=False),  # else their semaphores could not, too
    "SIGTERM": Kind((85,), terminate),
    "SIGTERM in evaluation": Kind((85,), terminate, when=Run.is_evaluating),
    "SIGINT to the group": Kind((130,), interrupt),
    "NaN gradients": Kind((2,), environment=_pass("FAULT_NAN")),
    "unused parameter": Kind((2,), environment=_pass("FAULT_UNUSED")),
    "evaluation fails": Kind((1,), environment=lambda _: {"FAULT_BUG": "score 1"}),
}


@dataclass
class Tally:
    """The outcomes of one kind of fault."""

    tried: int = 0
    changed: int = 0
    lost: int = 0
    orphans: int = 0
    tracebacks: int = 0
    other: int = 0
    seconds: list[float] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> int:
        """Return the number of outcomes that must not happen."""
        return self.changed + self.lost + self.orphans + self.tracebacks + self.other

    def saved_steps(self, place: str, saved: int, went_on: int) -> None:
        """Count the saved steps that a start did not continue from."""
        if went_on < saved:
            self.lost += saved - went_on
            self.told.append(f"{place}: step {saved} was saved, it went on after {went_on}")

    def ending(self, place: str, run: Run, code: int, expected: Sequence[int]) -> None:
        """Record how a start ended and what it printed."""
        if code not in expected:
            self.other += 1
            self.told.append(f"{place}: exit code {code}, expected {expected}:\n{run.text()}")
        said = [line for line in run.noise() if not line.startswith("error: the task ")]
        if said:
            self.tracebacks += 1
            self.told.append(f"{place}: words for nobody: {said}")


Tallies = dict[str, Tally]


class TooLateError(Exception):
    """The run finished before the fault."""


def meet(chain: Chain, name: str, moment: int, tally: Tally) -> None:
    """Let a run meet one fault, until the run has continued or ended.

    Raises:
        TooLateError: the run finished before.
    """
    kind = KINDS[name]
    if chain.run and (kind.environment or not kind.workers):
        kill(chain.run.process.pid, signal.SIGTERM)  # what it needs is decided when it starts
        run = chain.run
        tally.ending(f"SIGTERM before {name}", run, chain.ended(run), (85, 0))
    run = chain.run or begun(chain, name, moment, tally)
    chain.place = f"{name}: {chain.world} ranks, {chain.workers} loader processes, after step {moment}"
    if kind.act:
        wait_for(run, lambda: run.step() >= moment and (not kind.when or kind.when(run)))
        time.sleep(chain.chance.random() * 0.2)
        starts, saved = len(run.starts()), run.run.pointed("last") or 0
        kind.act(chain, run)
        if not kind.codes:
            wait_for(run, lambda: len(run.starts()) > starts)
            tally.saved_steps(chain.place, saved, run.starts()[-1])
            return
    code = chain.ended(run)
    if chain.disk:
        (chain.disk / "ballast").unlink(missing_ok=True)
    tally.ending(chain.place, run, code, (*kind.codes, 0))
    if code == 0 and 0 not in kind.codes:
        raise TooLateError
    if code in kind.codes and code in (
        85,
        130,
        1,
    ):  # all that was done is saved
        tally.saved_steps(f"{chain.place}, left", run.step(), saved_step(run))


def begun(chain: Chain, name: str, moment: int, tally: Tally) -> Run:
    """Return a new start that is training."""
    kind = KINDS[name]
    run = chain.start(kind.environment(chain.chance) if kind.environment else {}, workers=kind.workers)
    before, saved = len(run.starts()), saved_step(run)
    wait_for(run, lambda: len(run.starts()) > before)
    tally.saved_steps(f"before {name}", saved, run.starts()[-1])
    return run


def wait_for(run: Run, condition: Callable[[], Any]) -> None:
    """Wait for an action of a run that has not finished.

    Raises:
        TooLateError: it finished before.
    """
    try:
        run.until(condition, PATIENCE)
    except AssertionError:
        if run.process.poll() == 0:
            raise TooLateError from None
        raise


def saved_step(run: Run) -> int:
    """Return the step of the newest whole checkpoint, or 0."""
    return (newest(run.run, lambda _: None) if run.run.steps() else None) or 0


def one_run(
    kinds: Sequence[str],
    folder: Path,
    chance: random.Random,
    expected: dict[str, Any],
    tallies: Tallies,
    loaders: Sequence[int] = (0, 0, 1),
) -> list[str]:
    """Let one run meet faults of these kinds, and return those that came too late."""
    chain, late, tally, name = Chain(folder / "run", chance, loaders), [], tallies[kinds[0]], kinds[0]
    with small_disk(folder, "4m") if "full disk" in kinds else contextlib.nullcontext(False) as mounted:
        folder.mkdir(parents=True, exist_ok=True)
        chain.disk = folder if mounted else None
        try:
            for number, name in enumerate(kinds):
                tally, began = tallies[name], time.monotonic()
                tally.tried += 1
                try:
                    meet(chain, name, chance.randint(1, 3) + 4 * number, tally)
                except TooLateError:
                    tally.tried -= 1
                    late = list(kinds[number:])
                    break
                tally.seconds.append(time.monotonic() - began)
            result = the_end(chain, tally)
            if parts := [part for part in expected if result[part] != expected[part]]:
                tally.changed += 1
                tally.told.append(f"{', '.join(kinds)}: {', '.join(parts)} differ")
        except OrphansError as error:
            tally.orphans += 1
            tally.told.append(f"{chain.place}: {error}")
        except AssertionError as error:
            tally.other += 1
            tally.told.append(f"{name} in {', '.join(kinds)}: {error}")
        finally:
            for run in chain.runs:
                run.__exit__()
    shutil.rmtree(folder, ignore_errors=True)
    return late


def the_end(chain: Chain, tally: Tally) -> dict[str, Any]:
    """Finish a run and return its results."""
    if run := chain.run:
        tally.ending(f"{chain.place}, to its end", run, chain.ended(run), (0,))
    if newest(RunDirectory(chain.folder), lambda _: None) == STEPS:  # else its last checkpoint may be cut
        return outcome(chain.folder)
    return finish(chain.folder, chain.chance.choice([1, 2, 3]), *WORDS)


def main() -> int:
    """Run the faults, print the tally, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("--kinds", default="", help="only kinds whose name has this in it")
    parser.add_argument("--hosts", type=int, default=0, help="3: machines made of namespaces")
    options = parser.parse_args()
    if options.hosts:
        from faults_on_hosts import stress

        return stress(options.faults, options.seed, options.hosts)
    chosen = [kind for kind in KINDS if options.kinds in kind]
    tallies: Tallies = {kind: Tally() for kind in chosen}
    left = [chosen[number % len(chosen)] for number in range(options.faults)]
    random.Random(options.seed).shuffle(left)
    began, runs = time.monotonic(), itertools.count()
    with (
        tempfile.TemporaryDirectory(prefix="rankless-faults-") as scratch,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        expected = undisturbed(Path(scratch) / "undisturbed", *WORDS)

        def work(kinds: list[str]) -> list[str]:
            number = next(runs)
            chance = random.Random(f"{options.seed} {number}")
            late = one_run(kinds, Path(scratch) / f"{number}", chance, expected, tallies)
            done = sum(tally.tried for tally in tallies.values())
            print(
                f"{done}/{options.faults}  {time.monotonic() - began:.0f} s  {', '.join(kinds)}",
                file=sys.stderr,
            )
            return late

        while left and next(runs) < 10 * options.faults:
            chains = [left[at : at + CHAIN] for at in range(0, len(left), CHAIN)]
            left = [kind for late in pool.map(work, chains) for kind in late]
    print_tally(tallies, time.monotonic() - began)
    return 1 if any(tally.wrong for tally in tallies.values()) else 0


def print_tally(tallies: Tallies, seconds: float) -> None:
    """Print a line for each kind, then the failures."""
    columns = ("tried", "changed", "lost", "orphans", "tracebacks", "other")
    print(f"{'fault':38}" + "".join(f"{column:>11}" for column in columns) + f"{'median s':>10}")
    for kind, tally in tallies.items():
        counts = "".join(f"{getattr(tally, column):>11}" for column in columns)
        print(f"{kind:38}{counts}{statistics.median(tally.seconds or [0]):>10.1f}")
    totals = "".join(f"{sum(getattr(t, column) for t in tallies.values()):>11}" for column in columns)
    print(f"{'all':38}{totals}{seconds:>9.0f}s")
    for tally in tallies.values():
        for sentence in tally.told:
            print(f"WRONG: {sentence}")


if __name__ == "__main__":
    sys.exit(main())
