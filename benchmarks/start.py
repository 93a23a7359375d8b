"""What it costs to start ranks: forked by the command, and as new interpreters from Python, in turn."""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
    """Seconds of the processor, of the launcher and every process that it started, and of the clock."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after, took = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, took


def main() -> None:
    """Print both ways' medians, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
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


if __name__ == "__main__":
    main()
