"""Compare the model of ``rankless plan`` with measurements, and print what it says of published networks.

    python benchmarks/plan.py                 # here, and if root, on hosts with a limited rate
    python benchmarks/plan.py --literature    # ResNet-50 and YOLOv4 on 64 and 1,024 GPUs, with a range

The first form sums the gradients of ResNet-18, 47 MB, as in training. Ranks of this machine do nothing else,
and an exchange takes the difference to a step of the same processes that sums nothing, in turns. Hosts are
network namespaces that send at 1 Gbit/s or 200 Mbit/s; they sum beside a backward pass that only sleeps. The
model gets what ``rankless plan`` gets: an exchange measured between two processes here, or the rate of the
link. Then two hosts train ``digits``; the prediction comes from a step measured before.

Steps on one machine are compared by ``rankless plan digits batch.images=24 --check 1,2,4,8``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torchvision.models import resnet18

from exchange import NETWORK, Sleeper, can_shape, hosts, measured, step, timed
from rankless.launch.opening import with_precision
from rankless.launch.planning.measuring import bucket_sizes, fitted, loopback, opened_steps
from rankless.launch.planning.model import Bucket, Link, Machine, Workload, row
from rankless.launch.planning.plan import LATENCY
from rankless.launch.planning.units import shown_time
from rankless.recipe.load import load
from rankless.recipe.schema import Recipe
from rankless.runs import journal
from rankless.tasks import open_task, resolve_recipe
from rankless.world.exchange import Exchange
from rankless.world.process_group import join
from rankless.world.transport import GroupTransport

RANKS = (1, 2, 4, 8)
HOSTS = ((2, 1000), (4, 1000), (2, 200), (4, 200))  # and Mbit/s
BACKWARD = (0.02, 0.3)  # seconds, on hosts
CORES = 2
ADD = 4e-11  # seconds to add a byte
DIGITS = (
    "model.width=0.5", "model.image_size=96", "data.train_images=192", "data.val_images=4", "batch.images=8",
    "batch.micro=4", "epochs=1",
)  # fmt: skip

# Published figures of NCCL for a machine with eight GPUs: the least and the most. docs/many-machines.md has
# their sources, and the assumptions.
NETWORKS = {
    "8 × 400 Gb/s InfiniBand": (180e9, 360e9),
    "4 × 200 Gb/s InfiniBand": (48e9, 96e9),
    "1 × 100 Gb/s RoCE": (5e9, 9.4e9),
}
HOP = (1.2e-6, 7e-6)  # seconds for a hop of a ring
MODELS = {
    "ResNet-50, 32 images of 224 px": ("imagenet-resnet50", 1000, 32, (0.006, 0.012)),
    "YOLOv4, 8 images of 608 px": ("yolov4", 80, 8, (0.015, 0.050)),
}
DEVICES = (64, 1024)


def rank(backward: Sequence[float], rounds: int) -> None:
    """Run one rank; the first prints the seconds of steps that sum gradients, and of steps that do not."""
    torch.set_num_threads(1)
    shapes = [weight.shape for weight in resnet18().parameters()]
    with join() as world:
        layouts = (
            Exchange(world.size, world.rank, world.size, world.transport),
            Exchange(1, 0, 1, GroupTransport()),
        )
        for seconds in backward:
            steps = [step(Sleeper(shapes, seconds), layout, exact=True) for layout in layouts]
            taken = [[timed(world, one) for one in steps] for _ in range(rounds + 2)]
            if world.is_first:
                print(json.dumps(list(zip(*taken[2:], strict=True))), flush=True)


def steps(
    prefixes: Sequence[Sequence[str]], address: str, backward: Sequence[float], rounds: int
) -> list[Any]:
    """Return the seconds of steps with sums and of steps without, for each duration of the backward pass."""
    words = ["--rounds", str(rounds), "--be-a-rank", *map(str, backward)]
    said = measured(prefixes, address, [sys.executable, __file__, *words])
    return [json.loads(line) for line in said.splitlines()]


def gradients(seconds: float, micro_batches: int) -> Workload:
    """Return the step of a :class:`Sleeper` with the gradients of ResNet-18, without any computing."""
    weights = list(reversed(list(resnet18().parameters())))
    naps = list(itertools.accumulate(weight.dim() > 1 for weight in weights))
    sizes = bucket_sizes([4 * weight.numel() for weight in weights])
    ends = [*itertools.accumulate(sizes)]
    filled = [*itertools.accumulate(4 * weight.numel() for weight in weights)]
    buckets = [
        Bucket(size, naps[filled.index(end)] / naps[-1]) for size, end in zip(sizes, ends, strict=True)
    ]
    return Workload(micro_batches, 1, micro_batches, 0, 0, 0, seconds, 1e-9, ADD, tuple(buckets))


def both(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the best and the median."""
    return min(seconds), statistics.median(seconds)


def show(where: str, predicted: tuple[float, float], found: tuple[float, float]) -> None:
    """Print the best and the median of predicted and measured seconds, and the error of the model."""
    cells = [
        f"{shown_time(p):>9} {shown_time(m):>9} {p / m - 1 if m > 0 else 0:>+6.0%}"
        for p, m in zip(predicted, found, strict=True)
    ]
    print(f"{where:<40}" + "   ".join(cells), flush=True)


def exchange_here(rounds: int) -> None:
    """Compare exchanges through the memory of this machine."""
    links: list[Link] = []
    found: dict[int, tuple[float, float]] = {}
    for count in RANKS:
        links += [fitted([loopback()], ADD) for _ in range(2)]
        ((exact, alone),) = steps([[]] * count, "127.0.0.1", [0.0], 15 * rounds)
        best, median = (max(a - b, 0.0) for a, b in zip(both(exact), both(alone), strict=True))
        found[count] = best, median
    for count in RANKS:
        machines = [Machine(count, CORES, 1.0, link) for link in links]
        predicted = [row(gradients(0.0, count), machine, Link(1, 1), count).network for machine in machines]
        show(f"exchange, {count} ranks on {CORES} cores", both(predicted), found[count])


def exchange_on_hosts(rounds: int) -> None:
    """Compare backward passes with their exchange on hosts whose links have a limited rate."""
    for count, rate in HOSTS:
        with hosts(count, f"{rate}mbit") as (prefixes, _):
            taken = steps(prefixes, f"{NETWORK}.1", BACKWARD, 2 * rounds)
        link = Link(rate * 1e6 / 8, LATENCY, in_parts=True)
        for seconds, (exact, alone) in zip(BACKWARD, taken, strict=True):
            predicted = [one + row(gradients(one, count), Machine(1), link, count).network for one in alone]
            show(f"{1e3 * seconds:.0f} ms, {count} hosts at {rate:,} Mbit/s", both(predicted), both(exact))


def steps_on_hosts(rounds: int) -> None:
    """Compare steps of a training on two hosts."""
    recipe = with_precision(resolve_recipe(load("digits", DIGITS)))
    for rate in (1000, 200):
        predicted, found = [], []
        for _ in range(rounds):
            with opened_steps(recipe, 2) as pages:
                pages.measure(2)
                work, contention = pages.measured()
            times = {
                name: getattr(work, name) * contention
                for name in ("load", "forward", "backward", "last", "update")
            }
            link = Link(rate * 1e6 / 8, LATENCY, in_parts=True)
            predicted.append(row(replace(work, **times), Machine(1), link, 2).step)
            with hosts(2, f"{rate}mbit") as (prefixes, _), tempfile.TemporaryDirectory() as folder:
                words = ["-m", "rankless", "train", "digits", *DIGITS]
                measured(prefixes, f"{NETWORK}.1", [sys.executable, *words, "--run", f"{folder}/run"])
                seconds = journal.step_seconds(Path(folder, "run", "journal.jsonl"))
            found.append(statistics.median(seconds[4:]))
        show(f"step of digits, 2 hosts at {rate:,} Mbit/s", both(predicted), both(found))


def workload(recipe: Recipe, classes: int, images: int, seconds: float) -> Workload:
    """Return the step of one micro-batch on one GPU; a third of it is the forward pass."""
    model = open_task(recipe, [f"{number}" for number in range(classes)]).model()
    sizes = bucket_sizes([4 * p.numel() for p in reversed(list(model.parameters()))])
    ready = [end / sum(sizes) for end in itertools.accumulate(sizes)]
    buckets = tuple(Bucket(size, end) for size, end in zip(sizes, ready, strict=True))
    totals = 8 * sum(b.numel() for b in model.buffers())
    third = seconds / 3
    return Workload(1, images, 1, 0, third, 2 * third, 2 * third, 0, 2e-12, buckets, totals)


def literature() -> Iterator[str]:
    """Yield the lines of the table for published networks."""
    head = f"{'each GPU':<32}{'8 GPUs share':<25}{'GPUs':>6}{'batch':>8}"
    yield f"{head}{'step':>14}{'images/s':>18}{'efficiency':>12}"
    for name, (recipe, classes, images, seconds) in MODELS.items():
        works = [workload(load(recipe), classes, images, one) for one in seconds]
        for (network, rates), count in itertools.product(NETWORKS.items(), DEVICES):
            found = [
                row(work, Machine(8), Link(rate, hop), count)
                for work, rate, hop in itertools.product(works, rates, HOP)
            ]

            def span(values: Sequence[float], scale: float = 1.0) -> str:
                least, most = (float(f"{f(values) * scale:.2g}") for f in (min, max))
                return f"{least:,.0f}–{most:,.0f}"

            times, speeds = [r.step for r in found], [r.images_per_second for r in found]
            cells = f"{name:<32}{network:<25}{count:>6,}{found[0].batch:>8,}{span(times, 1e3):>11} ms"
            yield f"{cells}{span(speeds):>18}{span([r.efficiency for r in found], 100):>10} %"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--literature", action="store_true", help="measure nothing")
    parser.add_argument("--be-a-rank", type=float, nargs="+", metavar="SECONDS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda which, _: sys.exit(128 + which))  # takes the namespaces away first
    if options.be_a_rank:
        rank(options.be_a_rank, options.rounds)
        return 0
    if options.literature:
        print("\n".join(literature()))
        return 0
    print(f"{'':<40}{'best':^26}   {'median':^26}\n{'':<40}" + "   ".join(["predicted  measured  error"] * 2))
    exchange_here(options.rounds)
    if not can_shape():
        print("hosts with a limited rate need root, ip and tc")
        return 0
    exchange_on_hosts(options.rounds)
    steps_on_hosts(options.rounds)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
