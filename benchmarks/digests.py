"""Compare the weights of different numbers of devices.

    python benchmarks/digests.py [RECIPE KEY=VALUE …]

Train a recipe on one device, on two and on three, and once more on three, kill all processes (SIGKILL) and
resume on one. Print a table in Markdown. The exit code is 1 if two rows differ.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rankless import digest_file, evaluate

SMALL = ["digits", "epochs=1"]  # the default
TINY = [*SMALL, "data.train_images=120", "data.val_images=8", "model.width=0.125", "model.image_size=64"]


def command(words: Sequence[str], run: Path, devices: int) -> list[str]:
    return [sys.executable, "-m", "rankless", "train", *words, "--run", str(run), "--devices", str(devices)]


def train(words: Sequence[str], run: Path, devices: int) -> None:
    subprocess.run(command(words, run, devices), check=True, stdout=sys.stderr)


def train_and_kill(words: Sequence[str], run: Path, devices: int, checkpoint: int) -> None:
    """Train until the first checkpoint is written and three more steps are done, then kill every process."""
    process = subprocess.Popen(
        command([*words, f"checkpoint.every={checkpoint}"], run, devices),
        stdout=sys.stderr,
        start_new_session=True,
    )
    try:
        while last_step(run) < checkpoint + 3:
            if process.poll() is not None:
                raise SystemExit(f"the run ended before step {checkpoint + 3}: give it more images or epochs")
            time.sleep(0.05)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def last_step(run: Path) -> int:
    """Return the last step in the journal, or 0."""
    journal = run / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True) if journal.exists() else []
    return max((json.loads(one).get("step", 0) for one in lines if one.endswith("\n")), default=0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("words", nargs="*", help="a recipe and KEY=VALUE; digits epochs=1 if not given")
    parser.add_argument("--tiny", action="store_true", help="a tiny recipe, to see that the script works")
    options = parser.parse_args()
    words: list[str] = TINY if options.tiny else options.words or SMALL
    rows: list[tuple[str, Path]] = []
    with tempfile.TemporaryDirectory(prefix="digests-") as folder:
        for devices in (1, 2, 3):
            run = Path(folder, f"on-{devices}")
            train(words, run, devices)
            rows.append((str(devices), run))
        run = Path(folder, "killed")
        train_and_kill(words, run, 3, checkpoint=last_step(rows[0][1]) // 2)
        train(["--resume"], run, 1)
        rows.append(("3, all killed halfway, resumed on 1", run))
        digests = [digest_file(run / "last.safetensors") for _, run in rows]
        scores = [evaluate(run, devices=1) for _, run in rows]
    name = "AP" if "AP" in scores[0] else "top1"
    print(f"| devices | {name} | SHA-256 of the weights |\n|---|---|---|")
    for (how, _), digest, score in zip(rows, digests, scores, strict=True):
        print(f"| {how} | {score[name]!r} | `{digest}` |")
    return int(len(set(digests)) > 1 or len({repr(score[name]) for score in scores}) > 1)


if __name__ == "__main__":
    sys.exit(main())
