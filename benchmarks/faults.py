"""Stress test: meet random faults at random moments, and end with the same bits as an undisturbed run.

    python benchmarks/faults.py --faults 200 --seed 0
    python benchmarks/faults.py --faults 100 --seed 0 --hosts 3

A run of a small task meets several faults, one after another. After each it goes on by itself or is resumed
with another number of ranks; two such runs go on side by side (``--jobs``). With ``--hosts`` it trains on
machines made of namespaces, with a network, files, processes and an SSH server each; the seconds are until
the command's warning and until the next step. At its end a run (with hosts, every copy) is compared with an
undisturbed run: the digests of the weights, of the averaged weights and of the optimizer's state, the best
score, and every number in the journal. Exits with 1 on a changed digest, a saved step that was lost, a
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
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from rankless.engine.checkpoint import newest
from rankless.runs import journal
from rankless.runs.directory import RunDirectory
from support.faults.harness import STEPS, OrphansError, Run, finish, kill, outcome, small_disk, undisturbed
from support.machines.harness import HostsRun, machines
from support.machines.rig import CLIENT, Rig, why_not

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
        found = int(run.wait(PATIENCE))
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


WRONG = ("changed", "lost", "orphans", "tracebacks", "other")


@dataclass
class Tally:
    """The outcomes of one kind of fault.

    Attributes:
        tried: how many faults.
        wrong: how many outcomes of each kind that must not happen.
        told: the same in words.
        seconds: durations by name.
    """

    tried: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def tell(self, kind: str, text: str, count: int = 1) -> None:
        """Record what must not happen."""
        self.wrong[kind] += count
        self.told.append(text)

    def saved_steps(self, place: str, saved: int, went_on: int) -> None:
        """Count the saved steps that a start did not continue from."""
        if went_on < saved:
            self.tell("lost", f"{place}: step {saved} was saved, it went on after {went_on}", saved - went_on)

    def ending(self, place: str, run: Run, code: int, expected: Sequence[int]) -> None:
        """Record how a start ended and what it printed."""
        if code not in expected:
            self.tell("other", f"{place}: exit code {code}, expected {expected}:\n{run.text()}")
        said = [line for line in run.noise() if not line.startswith("error: the task ")]
        if said:
            self.tell("tracebacks", f"{place}: words for nobody: {said}")


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
    if code in kind.codes and code in (85, 130, 1):  # all that was done is saved
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
                tally.seconds["until the next"].append(time.monotonic() - began)
            result = the_end(chain, tally)
            if parts := [part for part in expected if result[part] != expected[part]]:
                tally.tell("changed", f"{', '.join(kinds)}: {', '.join(parts)} differ")
        except OrphansError as error:
            tally.tell("orphans", f"{chain.place}: {error}")
        except AssertionError as error:
            tally.tell("other", f"{name} in {', '.join(kinds)}: {error}")
        finally:
            for run in chain.runs:
                run.__exit__()
    shutil.rmtree(folder, ignore_errors=True)
    return late


def the_end(chain: Chain, tally: Tally) -> dict[str, Any]:
    """Finish a run and return its results."""
    if run := chain.run:
        tally.ending(f"{chain.place}, to its end", run, chain.ended(run), (0,))
    is_whole = newest(RunDirectory(chain.folder), lambda _: None) == STEPS  # else its last one may be cut
    world = 0 if is_whole else chain.chance.choice([1, 2, 3])
    found: dict[str, Any] = finish(chain.folder, world, *WORDS) if world else outcome(chain.folder)
    return found


def on_one_machine(left: list[str], options: argparse.Namespace, tallies: Tallies) -> None:
    """Let runs meet these faults, several at a time; what comes too late is tried again."""
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
            say(sum(tally.tried for tally in tallies.values()), options.faults, began)
            return late

        while left and next(runs) < 10 * options.faults:
            chains = [left[at : at + CHAIN] for at in range(0, len(left), CHAIN)]
            left = [kind for late in pool.map(work, chains) for kind in late]


# Several machines.

LONG = ("epochs=30", "checkpoint.every=3")  # 150 steps
LAST = 130  # the step after which no fault comes any more
BETWEEN = 4  # steps that are done between two faults: at least one checkpoint
SHORT = 5.0  # seconds that a cable is out, unnoticed


class HostsChain:
    """One training on several machines and its faults.

    Attributes:
        away: hosts that are switched off or cut from the network.
    """

    def __init__(self, rig: Rig, name: str, chance: random.Random) -> None:
        self.rig, self.name, self.chance = rig, name, chance
        self.hosts = [name for name in rig.numbers if name != CLIENT]
        chance.shuffle(self.hosts)
        self.away: list[str] = []
        self.run = self.start()

    def start(self, *more: str) -> HostsRun:
        """Start the training, or resume it."""
        spec = ",".join(f"{host}:1" for host in self.hosts)
        return HostsRun(self.rig, self.name, spec, "small.yaml", *LONG, *more)

    def step(self) -> tuple[float, int]:
        """Return when a journal was last written, and its last step."""
        newest = (0.0, 0)
        for host in self.hosts:
            path = self.rig.files(host) / "runs" / self.name / "journal.jsonl"
            with contextlib.suppress(OSError):
                steps = [journal.step_of(entry) for entry in journal.read(path)]
                newest = max(newest, (path.stat().st_mtime, max(steps, default=0)))
        return newest

    def until_step(self, step: int) -> None:
        """Wait until this many steps are done."""
        self.until(lambda: self.step()[1] >= step)

    def names(self, host: str) -> dict[str, int]:
        """Return the processes of a host by their names."""
        return self.run.processes(host) if host in self.rig.holders else {}

    def lead(self) -> str:
        """Return the host of rank 0."""
        return str(self.run.until(lambda: next((h for h in self.hosts if "rank 0" in self.names(h)), "")))

    def someone(self, *, lead: float = 0.0) -> str:
        """Return a host with ranks: that of rank 0 with the probability ``lead``."""
        first = self.lead()
        if self.chance.random() < lead:
            return first
        others = [h for h in self.hosts if h != first and any(n.startswith("rank ") for n in self.names(h))]
        return str(self.chance.choice(others or [first]))

    def kill(self, host: str, name: str) -> None:
        """Kill a process of a host: the supervisor, one by its name, or any rank."""
        if name == "supervisor":
            pids = [self.run.supervisor(host)]
        else:
            pids = [p for n, p in self.names(host).items() if n == name or n.startswith(f"{name} ")]
        if not pids:
            raise LookupError(f"no {name} on {host}")
        os.kill(self.chance.choice(pids), signal.SIGKILL)

    def power_off(self, host: str) -> None:
        """Take a host away."""
        self.rig.power_off(host)
        self.away.append(host)

    def cut(self, host: str, seconds: float = 0.0) -> None:
        """Unplug a host's cable, for some seconds or for good."""
        self.rig.cut(host)
        if seconds:
            time.sleep(seconds)
            self.rig.heal(host)
        else:
            self.away.append(host)

    def end(self, number: signal.Signals, code: int) -> None:
        """Send the coordinator a signal, check how it ends, and resume."""
        os.kill(self.run.coordinator(), number)
        found = self.run.wait(PATIENCE)
        assert found == code, f"ended with {found}, not {code}: {self.run.text()}"
        self.run.gone(40)
        self.run.__exit__(None, None, None)
        self.run = self.start("--resume")

    def damage(self, host: str) -> None:
        """Change a byte of the newest checkpoint of a host, then lose a rank."""
        folders = sorted((self.rig.files(host) / "runs" / self.name / "checkpoints").glob("step-*"))
        for file in (folder / "model.safetensors" for folder in folders[-1:]):
            with contextlib.suppress(OSError):
                content = file.read_bytes()
                file.write_bytes(content[:-5] + bytes([content[-5] ^ 1]) + content[-4:])
        self.kill(host, "rank")

    def bring_back(self) -> None:
        """Bring the lost hosts back, and wait until the command reports them."""
        away, self.away = self.away, []
        for host in away:
            said = self.said(f"{host} is back")
            self.repair(host)
            self.until(partial(self.said, f"{host} is back", said))

    def said(self, text: str, more_than: int = -1) -> int:
        """Return how often the command has printed a text, or 0 unless that is more than ``more_than``."""
        count = self.run.text().count(text)
        return count if count > more_than else 0

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for something."""
        self.run.until(condition, PATIENCE)

    def repair(self, host: str) -> None:
        """Switch a host on and plug its cable in."""
        if host not in self.rig.holders:
            self.rig.power_on(host)
        else:
            self.rig.heal(host)


# What each fault does, and whether a warning is to be expected.
ON_HOSTS: dict[str, tuple[Callable[[HostsChain], None], bool]] = {
    "kill -9 of a rank": (lambda chain: chain.kill(chain.someone(), "rank"), True),
    "kill -9 of rank 0": (lambda chain: chain.kill(chain.lead(), "rank 0"), True),
    "kill -9 of a host's agent": (lambda chain: chain.kill(chain.someone(), "rankless host"), True),
    "kill -9 of a supervisor": (lambda chain: chain.kill(chain.someone(lead=0.5), "supervisor"), True),
    "kill -9 of the coordinator, resumed": (lambda chain: chain.end(signal.SIGKILL, -signal.SIGKILL), False),
    "Ctrl-C, resumed": (lambda chain: chain.end(signal.SIGINT, 130), False),
    "SIGTERM, resumed": (lambda chain: chain.end(signal.SIGTERM, 85), False),
    "power off a host": (lambda chain: chain.power_off(chain.someone()), True),
    "power off rank 0's host": (lambda chain: chain.power_off(chain.lead()), True),
    "link cut for good": (lambda chain: chain.cut(chain.someone(lead=0.5)), True),
    f"link cut for {SHORT:.0f} s": (lambda chain: chain.cut(chain.someone(lead=0.5), SHORT), False),
    "damaged checkpoint, rank lost": (lambda chain: chain.damage(chain.someone(lead=0.5)), True),
}


def meet_on_hosts(chain: HostsChain, kind: str, tally: Tally) -> None:
    """Let a training meet one fault, until the next step and until all hosts are back."""
    chain.until_step(chain.step()[1] + BETWEEN)
    time.sleep(chain.chance.uniform(0, 1.5))
    if chain.step()[1] >= LAST:
        return
    act, is_noticed = ON_HOSTS[kind]
    warnings = chain.said("warning: ")
    tally.tried += 1
    began = time.monotonic()
    act(chain)
    if is_noticed:
        chain.until(lambda: chain.said("warning: ", warnings))
        tally.seconds["noticed after"].append(time.monotonic() - began)
    elif "cut" in kind:
        began = time.monotonic()  # the cable is in again
    before = chain.step()
    chain.until(lambda: chain.step()[0] > before[0] and chain.step()[1] != before[1])
    tally.seconds["next step after"].append(time.monotonic() - began)
    chain.bring_back()


def on_hosts(kinds: list[str], options: argparse.Namespace, tallies: Tallies) -> None:
    """Let trainings on several machines meet these faults, one training after another."""
    chance, began = random.Random(options.seed), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rankless-hosts-") as folder:
        alone = undisturbed(Path(folder) / "alone", *LONG)
        with machines(Path(folder) / "rig", options.hosts) as rig:
            for start in range(0, len(kinds), CHAIN):
                chain, kind = HostsChain(rig, f"run-{start}", chance), kinds[start]
                try:
                    chain.until_step(2)
                    for kind in kinds[start : start + CHAIN]:
                        meet_on_hosts(chain, kind, tallies[kind])
                    code = chain.run.wait(PATIENCE)
                    assert code == 0, f"ended with {code}: {chain.run.text()}"
                    assert "Traceback" not in chain.run.text(), chain.run.text()
                    chain.run.gone(30)
                    for host in chain.hosts:
                        found = chain.run.outcome(host)
                        if different := [name for name in alone if found[name] != alone[name]]:
                            tallies[kind].tell("changed", f"{host} differs in {different}")
                except (AssertionError, LookupError, OSError) as error:
                    tallies[kind].tell("other", f"{kind}: {error}")
                finally:
                    with contextlib.suppress(OSError, ProcessLookupError):
                        chain.run.__exit__(None, None, None)
                    for host in chain.hosts:
                        chain.repair(host)
                    with contextlib.suppress(AssertionError):
                        chain.run.gone(40)
                say(min(start + CHAIN, len(kinds)), len(kinds), began)


def say(done: int, faults: int, began: float) -> None:
    """Print progress."""
    print(f"{done} of {faults} faults, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def main() -> int:
    """Run the faults, print the tally, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, on one machine")
    parser.add_argument("--kinds", default="", help="only kinds whose name has this in it")
    parser.add_argument("--hosts", type=int, default=0, help="3: machines made of namespaces")
    parser.add_argument("--tiny", action="store_true", help="two faults, to see that the script works")
    options = parser.parse_args()
    if options.tiny:
        options.faults = 2
    if options.hosts and (reason := why_not()):
        print(f"error: machines cannot be made here: {reason}", file=sys.stderr)
        return 2
    chosen = [kind for kind in (ON_HOSTS if options.hosts else KINDS) if options.kinds in kind]
    tallies: Tallies = {kind: Tally() for kind in chosen}
    faults = [chosen[number % len(chosen)] for number in range(options.faults)]
    random.Random(options.seed).shuffle(faults)
    began = time.monotonic()
    (on_hosts if options.hosts else on_one_machine)(faults, options, tallies)
    print_tally(tallies, time.monotonic() - began)
    return 1 if any(tally.wrong for tally in tallies.values()) else 0


def print_tally(tallies: Tallies, seconds: float) -> None:
    """Print a line for each kind, with the median and the largest of the seconds, then the failures."""
    print(f"{'fault':38}" + "".join(f"{column:>11}" for column in ("tried", *WRONG)) + "   seconds")
    for kind, tally in tallies.items():
        counts = "".join(f"{tally.wrong[column]:>11}" for column in WRONG)
        spread = (
            f"{name} {statistics.median(each):.1f} ({max(each):.1f})" for name, each in tally.seconds.items()
        )
        print(f"{kind:38}{tally.tried:>11}{counts}   {', '.join(spread)}")
    every = list(tallies.values())
    totals = "".join(f"{sum(tally.wrong[column] for tally in every):>11}" for column in WRONG)
    print(f"{'all':38}{sum(tally.tried for tally in every):>11}{totals}   {seconds:.0f} in all")
    for text in (text for tally in every for text in tally.told):
        print(f"WRONG: {text}")


if __name__ == "__main__":
    sys.exit(main())
