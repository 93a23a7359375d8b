"""Measure what ``check.recompute`` costs: checked steps and others by turns, in one training.

    python benchmarks/recompute.py [--ranks N] [--pairs N] [KEY=VALUE …]

Every second step is checked, so both kinds are measured under the same load, on the CPU. A check costs the
same for every N, so one in N steps costs an Nth of it per step. It computes one more micro-batch on every
rank, and costs most if each rank has only one: ``--ranks 2 batch.micro=6``.
"""

from __future__ import annotations

import argparse
import os

os.environ["RANKLESS_CPU"] = "1"

from loops import rankless
from rankless.launch.opening import with_precision
from rankless.recipe.load import load, to_json
from rankless.tasks import resolve_recipe
from turns import Contender, speed

KEYS = ("model.width=0.25", "model.image_size=128", "data.val=none", "workers=0", "check.recompute=2")
EVERY = (1, 4, 16)


def main() -> None:
    """Train, and print the cost as a fraction of a step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("changes", nargs="*")
    options = parser.parse_args()
    recipe = with_precision(resolve_recipe(load("digits", [*KEYS, *options.changes])))
    with Contender(rankless, to_json(recipe), True, size=options.ranks) as contender:
        contender.steps(2)  # step 1 has warmed up, and these two do as well
        seconds = contender.steps(2 * options.pairs)
    checked, others = seconds[::2], seconds[1::2]  # step 4 is the first of them
    step = min(one.wall for one in others)
    print(f"{options.ranks} ranks, {recipe.batch.micro_batches} micro-batches, {step * 1000:.0f} ms a step")
    print(f"{'N':>4} {'best':>8} {'median':>8} {'CPU':>8} {'1.1 / N':>8}")
    costs = [slower - 1 for slower in speed(others, checked)]
    for every in EVERY:
        print(f"{every:>4} " + " ".join(f"{cost / every:8.3f}" for cost in (*costs, 1.1)))


if __name__ == "__main__":
    main()
