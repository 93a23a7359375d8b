"""Measure the wait for a command's first result.

    python benchmarks/start.py [--repeats 5]

The seconds on the clock, on a quiet machine: importing torch for comparison, the help, the first step of
``digits``, the next step of a resumed run, the end of ``predict`` on one scene.
"""

from __future__ import annotations

import argparse
import compileall
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rankless.runs import journal

RANKLESS = (sys.executable, "-m", "rankless")


def command(*words: str | Path) -> float:
    """Return the seconds until a program ends."""
    began = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def last_step(run: Path) -> int:
    """Return the last step in the run's journal, or 0."""
    path = run / "journal.jsonl"
    return max(map(journal.step_of, journal.read(path)), default=0) if path.exists() else 0


def next_step(run: Path, *words: str) -> float:
    """Return the seconds until a training has done a step, and stop the training."""
    before, began = last_step(run), time.perf_counter()
    quiet = subprocess.DEVNULL
    training = subprocess.Popen([*RANKLESS, "train", "--run", run, *words], stdout=quiet, stderr=quiet)
    while last_step(run) <= before:
        if training.poll() is not None:
            raise SystemExit(f"the training ended with {training.returncode}")
        time.sleep(0.01)
    took = time.perf_counter() - began
    training.send_signal(signal.SIGTERM)  # which saves
    training.wait()
    return took


def predicted(run: Path) -> float:
    """Return the seconds until boxes are drawn in a scene."""
    return command(*RANKLESS, "predict", run, "digits:val:0", "--out", run / f"predicted-{time.time_ns()}")


WAITS: dict[str, Callable[[Path], float]] = {
    "import torch alone": lambda run: command(sys.executable, "-c", "import torch"),
    "--help": lambda run: command(*RANKLESS, "--help"),
    "the first step of digits": lambda run: next_step(run, "digits"),
    "resumed: the next step": lambda run: next_step(run, "--resume"),
    "predict, one scene": predicted,
}


def main() -> int:
    """Print the best and the median seconds until each command's first result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="once, without training")
    options = parser.parse_args()
    compileall.compile_dir(Path(journal.__file__).parents[1], quiet=1)  # as an installation does
    waits = dict(list(WAITS.items())[: 2 if options.tiny else None])
    seconds: dict[str, list[float]] = {name: [] for name in waits}
    for _ in range(1 if options.tiny else options.repeats):
        with tempfile.TemporaryDirectory(prefix="rankless-start-") as scratch:
            for name, wait in waits.items():
                seconds[name].append(wait(Path(scratch) / "run"))
    for name, each in seconds.items():
        print(f"{name:<25} {min(each):5.2f} s at best, {statistics.median(each):5.2f} s as the median")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
