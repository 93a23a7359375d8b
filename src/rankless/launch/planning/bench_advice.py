"""Advice on training a recipe faster on this machine, based on ``rankless benchmark``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rankless.recipe.schema import Recipe

_WAITING, _NETWORK, _OTHER = 0.05, 0.15, 0.15
"""Smallest fractions of a step's time that cause advice."""
_WORTH = 1.05
"""Smallest speedup that is worth a change."""
_BUILT_IN = "digits"


@dataclass(frozen=True)
class Shares:
    """The parts of rank 0's step, as fractions of its time.

    Attributes:
        compute: forward and backward passes.
        waiting: waiting for images.
        network: exchanging with other ranks, including the wait for them.
        other: the optimizer, the average, the journal.
    """

    compute: float
    waiting: float
    network: float
    other: float


@dataclass(frozen=True)
class Measured:
    """The measurements behind the advice.

    Attributes:
        recipe: the recipe with its precision resolved.
        ranks, workers: number of ranks, and of loader processes per rank.
        cores: number of usable cores of this machine.
        shares: the parts of a step.
        best: speed of the plain loop by (images at a time, precision), relative to ``whole``.
        whole: the largest batch that the plain loop can train, and the recipe's precision.
    """

    recipe: Recipe
    ranks: int
    workers: int
    cores: int
    shares: Shares
    best: Mapping[tuple[int, str], float]
    whole: tuple[int, str]


def advice(found: Measured) -> list[tuple[str, str]]:
    """Return pairs of a recipe key or option and a sentence, the most useful first."""
    return [*_images(found), *_micro(found), *_precision(found), *_network(found), *_other(found)]


def _images(found: Measured) -> Iterator[tuple[str, str]]:
    share, data = found.shares.waiting, found.recipe.data
    if share < _WAITING:
        return
    idle = found.cores - found.ranks * found.recipe.threads
    more = max(found.workers + 1, 2 * found.workers)
    cores = f"{idle} of {found.cores} cores are" if idle > 0 else "no core is"
    yield (
        "workers",
        f"{share:.0%} of a step is spent waiting for images, with {found.workers} loader processes for each "
        f"device; try workers={more} ({cores} left for loaders)",
    )
    if data.cache == "none" and data.root != _BUILT_IN:
        yield "data.cache", "ram or disk decodes every image only once; the weights stay the same"


def _micro(found: Measured) -> Iterator[tuple[str, str]]:
    batch, (images, precision) = found.recipe.batch, found.whole
    gain = 1 / found.best.get((batch.micro, precision), 1.0)
    largest = batch.images // found.ranks
    if gain < _WORTH or largest <= batch.micro:
        return
    sizes = (size for size in range(batch.micro + 1, largest + 1) if batch.images % size == 0)
    larger = next(sizes, None)
    if larger is None or batch.images // larger < found.ranks:
        return
    sees = "" if found.recipe.batch_norm != "micro" else "; batch norm then sees as many: other weights"
    yield (
        "batch.micro",
        f"{images} images at a time are {gain:.2f} times as fast as {batch.micro}: try batch.micro={larger} "
        f"(`rankless fit` finds the largest){sees}",
    )


def _precision(found: Measured) -> Iterator[tuple[str, str]]:
    images, now = found.whole
    for (size, precision), speed in found.best.items():
        if size == images and precision != now and speed >= _WORTH:
            yield (
                "precision",
                f"the plain loop is {speed:.2f} times as fast in {precision} as in {now}: try "
                f"precision={precision}, which changes the weights",
            )


def _network(found: Measured) -> Iterator[tuple[str, str]]:
    if found.shares.network >= _NETWORK:
        yield (
            "--devices",
            f"{found.shares.network:.0%} of a step is spent waiting for the other devices: fewer devices, or "
            "a larger batch.images, may be better; `rankless plan` predicts it",
        )


def _other(found: Measured) -> Iterator[tuple[str, str]]:
    if found.shares.other >= _OTHER:
        yield (
            "batch.images",
            f"{found.shares.other:.0%} of a step is the optimizer and other work done once a step: a larger "
            "batch needs fewer steps, which changes the weights",
        )
