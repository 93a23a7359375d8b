"""Measure the start of ranks, forked or as new interpreters, and the wait for a command's first result.

    python benchmarks/start.py [--ranks 2] [--repeats 5]

First two ranks, forked by the command and as new interpreters from Python, in turn. Then the seconds on the
clock from a command to its first result, and importing torch for comparison: the help, the first step of
``digits``, the next step of a resumed run, the end of ``predict`` on one scene. These need a quiet machine.
"""

from __future__ import annotations

import argparse
import compileall
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rankless.runs import journal

CHANGES = [
    "epochs=1",
    "data.train_images=24",
    "data.val_images=8",
    "batch.images=8",
    "batch.micro=4",
    "model.image_size=64",
    "model.width=0.125",
    "precision=fp32",
]
API = "import rankless as r, sys; sys.exit(r.train(r.load_recipe('digits', {0!r}), {1!r}, devices={2}))"


def measured(command: list[str]) -> tuple[float, float]:
    """Return the CPU seconds of the launcher and all its processes, and the seconds on the clock."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after, took = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, took


def until_step(step: int, run: Path, *more: str) -> float:
    """Return the seconds until the journal of a training has ``step``, and stop the training."""
    command = [sys.executable, "-m", "rankless", "train", "--run", str(run), *more]
    began, path = time.perf_counter(), run / "journal.jsonl"
    training = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (path.exists() and max(map(journal.step_of, journal.read(path)), default=0) >= step):
        if training.poll() is not None:
            raise SystemExit(f"the training ended with {training.returncode}")
        time.sleep(0.01)
    took = time.perf_counter() - began
    training.send_signal(signal.SIGTERM)  # which saves
    training.wait()
    return took


def last_step(run: Path) -> int:
    """Return the last step in the run's journal."""
    return max(map(journal.step_of, journal.read(run / "journal.jsonl")))


def waits(repeats: int) -> None:
    """Print the best and the median seconds until each command's first result."""

    def command(*words: str) -> Callable[[Path], float]:
        return lambda run: measured([sys.executable, "-m", "rankless", *words])[1]

    def predicted(run: Path) -> float:
        words = ("predict", str(run), "digits:val:0", "--out", str(run / f"predicted-{time.time_ns()}"))
        return command(*words)(run)

    compileall.compile_dir(Path(journal.__file__).parents[1], quiet=1)  # as an installation does
    ways: dict[str, Callable[[Path], float]] = {
        "import torch alone": lambda run: measured([sys.executable, "-c", "import torch"])[1],
        "--help": command("--help"),
        "the first step of digits": lambda run: until_step(1, run, "digits"),
        "resumed: the next step": lambda run: until_step(last_step(run) + 1, run, "--resume"),
        "predict, one scene": predicted,
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(prefix="rankless-start-") as scratch:
            for way, wait in ways.items():
                seconds[way].append(wait(Path(scratch) / "run"))
    for way, each in seconds.items():
        print(f"{way:<25} {min(each):5.2f} s at best, {statistics.median(each):5.2f} s as the median")


def main() -> None:
    """Print the medians of both kinds of ranks, their ratio, and the waits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    seconds: dict[str, list[tuple[float, float]]] = {"new interpreters": [], "forked": []}
    with tempfile.TemporaryDirectory(prefix="rankless-start-") as scratch:
        for number in range(options.repeats):
            for way, found in seconds.items():
                run = str(Path(scratch) / f"{way}-{number}")
                command = ["-m", "rankless", "train", "digits", *CHANGES]
                command += ["--devices", str(options.ranks), "--run", run]
                if way != "forked":
                    command = ["-c", API.format(CHANGES, run, options.ranks)]
                found.append(measured([sys.executable, *command]))
    medians = {
        way: [statistics.median(one) for one in zip(*each, strict=True)] for way, each in seconds.items()
    }
    for way, (processor, clock) in medians.items():
        print(f"{way:<17} {processor:5.1f} s of the processor  {clock:5.1f} s")
    ratios = [b / a for a, b in zip(*medians.values(), strict=True)]
    print(f"{'forked / new':<17} {ratios[0]:5.2f}                     {ratios[1]:5.2f}")
    waits(options.repeats)


if __name__ == "__main__":
    main()
