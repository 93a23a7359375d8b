"""Stress test of several machines: meet random faults at random moments, and keep the same bits.

    python benchmarks/faults.py --hosts 3 --faults 100 --seed 0

The machines are namespaces with a network, files, processes and an SSH server each. A training of a small
task over all of them meets several faults, one after another. At its end every copy of the run is compared
with an undisturbed run of one process: digests of weights, average and optimizer, the best score, and every
number in the journal. A fault is noticed when the command prints a warning; the seconds to the next step
include starting the ranks again and reading the checkpoint.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from rankless.runs import journal
from support.faults.harness import undisturbed
from support.machines.harness import HostsRun, machines
from support.machines.rig import CLIENT, Rig, why_not

CHAIN = 4  # faults that one run meets
WORDS = ("epochs=30", "checkpoint.every=3")  # 150 steps
LAST = 130  # the step after which no fault comes any more
BETWEEN = 4  # steps that are done between two faults: at least one checkpoint
PATIENCE = 120.0
SHORT = 5.0  # seconds that a cable is out, unnoticed


@dataclass
class Result:
    """The outcomes of one kind of fault.

    Attributes:
        noticed, resumed: seconds to the warning and to the next step of each fault; faults without a
            warning have no ``noticed``.
        wrong: failures, in words.
    """

    count: int = 0
    noticed: list[float] = field(default_factory=list)
    resumed: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class Chain:
    """One training and its faults."""

    def __init__(self, rig: Rig, name: str, rng: random.Random) -> None:
        self.rig, self.name, self.rng = rig, name, rng
        self.hosts = [name for name in rig.numbers if name != CLIENT]
        rng.shuffle(self.hosts)
        self.spec = ",".join(f"{host}:1" for host in self.hosts)
        self.run = self.start()
        self.away: list[str] = []

    def start(self, *more: str) -> HostsRun:
        """Start the training, or resume it."""
        return HostsRun(self.rig, self.name, self.spec, "small.yaml", *WORDS, *more)

    def step(self) -> tuple[float, int]:
        """Return when a journal was last written, and its last step."""
        newest = (0.0, 0)
        for host in self.hosts:
            path = self.rig.files(host) / "runs" / self.name / "journal.jsonl"
            with suppress(OSError):
                steps = [journal.step_of(entry) for entry in journal.read(path)]
                newest = max(newest, (path.stat().st_mtime, max(steps, default=0)))
        return newest

    def lead(self) -> str:
        """Return the host of rank 0."""
        return str(self.run.until(lambda: next((h for h in self.hosts if "rank 0" in self._names(h)), "")))

    def _names(self, host: str) -> dict[str, int]:
        return self.run.processes(host) if host in self.rig.holders else {}

    def someone(self, *, lead: bool = False) -> str:
        """Return a host that has ranks."""
        first = self.lead()
        if lead:
            return first
        others = [h for h in self.hosts if h != first and any(n.startswith("rank ") for n in self._names(h))]
        return self.rng.choice(others or [first])

    def kill(self, host: str, name: str) -> None:
        """Kill a process of a host."""
        pid = self.run.supervisor(host) if name == "supervisor" else self._names(host).get(name)
        if name == "rank":
            pid = self.rng.choice([p for n, p in self._names(host).items() if n.startswith("rank ")])
        if pid is None:
            raise LookupError(f"no {name} on {host}")
        os.kill(pid, signal.SIGKILL)

    def until_a_step(self) -> None:
        """Wait for the next step."""
        before = self.step()
        self.run.until(lambda: self.step()[0] > before[0] and self.step()[1] != before[1], PATIENCE)

    def until_step(self, step: int) -> None:
        """Wait until this many steps are done."""
        self.run.until(lambda: self.step()[1] >= step, PATIENCE)

    def until_back(self, host: str) -> None:
        """Wait until the command reports that a lost host is back."""
        returned = f"{host} is back"
        before = self.run.text().count(returned)
        self.run.until(lambda: self.run.text().count(returned) > before, PATIENCE)

    def restart(self) -> None:
        """Resume after the command itself has ended."""
        self.run.gone(40)
        self.run.__exit__(None, None, None)
        self.run = self.start("--resume")


def _kill_rank(chain: Chain) -> None:
    chain.kill(chain.someone(), "rank")


def _kill_first_rank(chain: Chain) -> None:
    chain.kill(chain.lead(), "rank 0")


def _kill_host_process(chain: Chain) -> None:
    chain.kill(chain.someone(), "rankless host")


def _kill_supervisor(chain: Chain) -> None:
    chain.kill(chain.someone(lead=chain.rng.random() < 0.5), "supervisor")


def _power_off(chain: Chain) -> None:
    host = chain.someone()
    chain.rig.power_off(host)
    chain.away.append(host)


def _power_off_first(chain: Chain) -> None:
    host = chain.lead()
    chain.rig.power_off(host)
    chain.away.append(host)


def _cut(chain: Chain) -> None:
    host = chain.someone(lead=chain.rng.random() < 0.5)
    chain.rig.cut(host)
    chain.away.append(host)


def _cut_for_a_moment(chain: Chain) -> None:
    host = chain.someone(lead=chain.rng.random() < 0.5)
    chain.rig.cut(host)
    time.sleep(SHORT)
    chain.rig.heal(host)


def _kill_coordinator(chain: Chain) -> None:
    os.kill(chain.run.coordinator(), signal.SIGKILL)
    chain.run.process.wait()
    chain.restart()


def _ask(number: int, code: int) -> Callable[[Chain], None]:
    def ask(chain: Chain) -> None:
        os.kill(chain.run.coordinator(), number)
        found = chain.run.wait(PATIENCE)
        if found != code:
            raise AssertionError(f"ended with {found}, not {code}: {chain.run.text()}")
        chain.restart()

    return ask


def _damage(chain: Chain) -> None:
    """Change a byte of the newest checkpoint of one host, then lose a rank."""
    host = chain.someone(lead=chain.rng.random() < 0.5)
    folders = sorted((chain.rig.files(host) / "runs" / chain.name / "checkpoints").glob("step-*"))
    if folders:
        with suppress(OSError), (folders[-1] / "model.safetensors").open("r+b") as file:
            file.seek(-5, os.SEEK_END)
            byte = file.read(1)
            file.seek(-5, os.SEEK_END)
            file.write(bytes([byte[0] ^ 1]))
    chain.kill(host, "rank")


# Kind: what it does, and whether a warning is to be expected.
FAULTS: dict[str, tuple[Callable[[Chain], None], bool]] = {
    "kill -9 of a rank": (_kill_rank, True),
    "kill -9 of rank 0": (_kill_first_rank, True),
    "kill -9 of a host's agent": (_kill_host_process, True),
    "kill -9 of a supervisor": (_kill_supervisor, True),
    "kill -9 of the coordinator, resumed": (_kill_coordinator, False),
    "Ctrl-C, resumed": (_ask(signal.SIGINT, 130), False),
    "SIGTERM, resumed": (_ask(signal.SIGTERM, 85), False),
    "power off a host": (_power_off, True),
    "power off rank 0's host": (_power_off_first, True),
    "link cut for good": (_cut, True),
    f"link cut for {SHORT:.0f} s": (_cut_for_a_moment, False),
    "damaged checkpoint on a host, rank lost": (_damage, True),
}


def _one(chain: Chain, kind: str, result: Result) -> None:
    fault, is_noticed = FAULTS[kind]
    warnings = chain.run.text().count("warning: ")
    result.count += 1
    began = time.monotonic()
    run = chain.run
    fault(chain)
    if is_noticed:
        chain.run.until(lambda: chain.run.text().count("warning: ") > warnings, PATIENCE)
        result.noticed.append(time.monotonic() - began)
    if chain.run is run and (not is_noticed and "cut" in kind):
        began = time.monotonic()  # the cable is in again
    chain.until_a_step()
    result.resumed.append(time.monotonic() - began)
    for host in chain.away:
        if host not in chain.rig.holders:
            chain.rig.power_on(host)
        else:
            chain.rig.heal(host)
        chain.until_back(host)
    chain.away = []


def stress(faults: int, seed: int, count: int) -> int:
    """Let runs meet this many faults, print a table, and return 1 if a failure occurred."""
    if reason := why_not():
        print(f"machines cannot be made here: {reason}")
        return 2
    rng = random.Random(seed)
    kinds = [kind for _ in range(-(-faults // len(FAULTS))) for kind in FAULTS][:faults]
    rng.shuffle(kinds)
    results = {kind: Result() for kind in FAULTS}
    began, ends = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="rankless-hosts-") as folder:
        alone = undisturbed(Path(folder) / "alone", *WORDS)
        with machines(Path(folder) / "rig", count) as rig:
            for number, start in enumerate(range(0, len(kinds), CHAIN)):
                mine = kinds[start : start + CHAIN]
                chain = Chain(rig, f"run-{number}", rng)
                kind = ""
                try:
                    chain.until_step(2)
                    for kind in mine:
                        chain.until_step(chain.step()[1] + BETWEEN)
                        time.sleep(rng.uniform(0, 1.5))
                        if chain.step()[1] < LAST:
                            _one(chain, kind, results[kind])
                    _finish(chain, alone)
                    ends += 1
                except (AssertionError, LookupError, OSError) as error:
                    results[kind or mine[0]].wrong.append(f"{mine}: {error}")
                    print(f"WRONG after {kind}: {error}", flush=True)
                finally:
                    with suppress(OSError, ProcessLookupError):
                        chain.run.__exit__(None, None, None)
                    for host in chain.hosts:
                        if host not in rig.holders:
                            rig.power_on(host)
                        rig.heal(host)
                    with suppress(AssertionError):
                        chain.run.gone(40)
                done = min(start + CHAIN, len(kinds))
                print(f"{done} of {len(kinds)} faults, {time.monotonic() - began:.0f} s", flush=True)
    return _print(results, ends, time.monotonic() - began)


def _finish(chain: Chain, alone: dict[str, object]) -> None:
    code = chain.run.wait(PATIENCE)
    assert code == 0, f"ended with {code}: {chain.run.text()}"
    assert "Traceback" not in chain.run.text(), chain.run.text()
    chain.run.gone(30)
    for host in chain.hosts:
        found = chain.run.outcome(host)
        different = [name for name in alone if found[name] != alone[name]]
        assert not different, f"{host} differs in {different}: {chain.run.text()}"


def _print(results: dict[str, Result], ends: int, seconds: float) -> int:
    print(f"\n{'fault':42}{'times':>6}{'noticed after, s':>22}{'next step after, s':>22}{'wrong':>7}")
    for kind, result in results.items():
        print(
            f"{kind:42}{result.count:>6}{_spread(result.noticed):>22}{_spread(result.resumed):>22}"
            f"{len(result.wrong):>7}"
        )
    wrong = sum(len(result.wrong) for result in results.values())
    total = sum(result.count for result in results.values())
    print(
        f"{total} faults, {ends} runs with the undisturbed run's bits on every host, {wrong} wrong, "
        f"{seconds:.0f} s"
    )
    return 1 if wrong else 0


def _spread(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{statistics.median(values):.1f} (most {max(values):.1f})"
