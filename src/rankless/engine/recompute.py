"""Detect silent errors (``check.recompute``): ranks recompute each other's micro-batches.

Any rank can compute any micro-batch with the same bits. If two results differ, a device has computed a wrong
result, or a bit in memory has flipped. In a check, each rank recomputes one micro-batch of another rank. If
any results differ, the step is repeated with images that are read again. For a third opinion, each rank then
recomputes a micro-batch of a different rank.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rankless.data.loader import MicroBatches
from rankless.engine.divergence import DivergedError
from rankless.engine.soundness import checksums
from rankless.engine.state import TrainingState
from rankless.engine.totals import Compared, Flags, Totals
from rankless.errors import counted
from rankless.randomness import key
from rankless.recipe.schema import Recipe
from rankless.world.bits import digest
from rankless.world.process_group import World
from rankless.world.tree import own_micro_batches

_WEIGHTS = -1
"""Key of the weights in :data:`Votes`."""

Votes = Mapping[int, Sequence[tuple[int, str]]]
"""Maps each micro-batch, and :data:`_WEIGHTS`, to pairs of a rank and the digest of its result."""


class LeftOutError(Exception):
    """Raised on every rank if the run should continue without the devices of ``ranks``."""

    def __init__(self, text: str, ranks: Sequence[int]) -> None:
        super().__init__(text)
        self.ranks = ranks


@dataclass(frozen=True)
class Checks:
    """Chooses the steps to check and, at random for each step, the micro-batches that ranks recompute."""

    recipe: Recipe
    size: int

    def is_due(self, step: int) -> bool:
        """Check whether ranks recompute micro-batches in the step with index ``step``."""
        every = self.recipe.check.recompute
        return bool(every) and (step + 1) % every == 0

    def other(self, step: int, rank: int, attempt: int) -> int:
        """Return the rank whose micro-batch ``rank`` recomputes.

        The second attempt uses a different rank unless there are only two ranks. A single rank recomputes its
        own micro-batch.
        """
        if self.size == 1:
            return rank
        return (rank + 1 + (self._key(step) + attempt) % (self.size - 1)) % self.size

    def micro_batch(self, step: int, rank: int) -> int:
        """Return the micro-batch of ``rank`` that another rank recomputes."""
        own = own_micro_batches(self.recipe.batch.micro_batches, rank, self.size)
        return own[(self._key(step) >> 64) % len(own)]

    def compared(self, step: int, rank: int, attempt: int) -> Compared:
        """Return the micro-batches whose results ``rank`` compares."""
        other = self.other(step, rank, attempt)
        return Compared(self.micro_batch(step, rank), self.micro_batch(step, other))

    def extra(self, step: int, rank: int, attempt: int) -> list[int]:
        """Return the micro-batches that ``rank`` loads before its own."""
        return [self.compared(step, rank, attempt).other] if self.is_due(step) else []

    def votes(self, step: int, attempt: int, gathered: Sequence[Sequence[str]]) -> Votes:
        """Return the digests of all ranks by micro-batch, and those of the weights."""
        found: dict[int, list[tuple[int, str]]] = {_WEIGHTS: []}
        for rank, (own, other, weights) in enumerate(gathered):
            compared = self.compared(step, rank, attempt)
            for what, seen in ((compared.own, own), (compared.other, other), (_WEIGHTS, weights)):
                if seen:  # otherwise, the rank could not read the images, which is reported elsewhere
                    found.setdefault(what, []).append((rank, seen))
        return found

    def _key(self, step: int) -> int:
        return key(self.recipe.seed, "recompute", step)


def differing_results(votes: Votes) -> list[int]:
    """Return the micro-batches with differing results, and :data:`_WEIGHTS` if the weights differ."""
    return [what for what, seen in sorted(votes.items()) if len({result for _, result in seen}) > 1]


@dataclass(frozen=True)
class Finding:
    """The conclusion from two attempts at a step.

    Attributes:
        what: the micro-batches with differing results, and :data:`_WEIGHTS` if the weights differ.
        ranks: the ranks with wrong results if ``certain``, otherwise the ranks that may have wrong results.
        repeated_well: whether all results of the second attempt agree, so that training can continue.
    """

    what: Sequence[int]
    ranks: Sequence[int]
    certain: bool
    repeated_well: bool

    def sentence(self, step: int, names: Sequence[str]) -> str:
        """Return a sentence about the finding, given the name of each rank."""
        leaves = ", ".join(str(what) for what in self.what if what != _WEIGHTS)
        parts = [f"micro-batch{'es' * (',' in leaves)} {leaves}"] * bool(leaves)
        what = " and ".join(parts + ["the weights"] * (_WEIGHTS in self.what))
        if len(names) == 1:
            text = f"computed {what} twice and got different bits"
        elif self.certain:
            text = f"differs from other ranks in the bits of {what}"
        else:
            text = f"differ in the bits of {what}"
        again = (
            "the difference disappeared when the step was repeated"
            if self.repeated_well
            else "the results also differed when the step was repeated"
        )
        return f"step {step + 1}: {self.who(names)} {text}; {again}"

    def who(self, names: Sequence[str]) -> str:
        """Return the names of the ranks that have, or may have, wrong results."""
        return " and ".join(names[rank] for rank in self.ranks)


def judge(first: Votes, again: Votes) -> Finding:
    """Find the ranks with wrong results, assuming that the most common result of both attempts is correct."""
    both = {what: [*first.get(what, ()), *again.get(what, ())] for what in {**first, **again}}
    what, wrong, unclear = differing_results(both), set[int](), set[int]()
    for votes in (both[one] for one in what):
        ranks = {result: {rank for rank, seen in votes if seen == result} for _, result in votes}
        right, second = sorted(ranks, key=lambda result: -len(ranks[result]))[:2]
        is_clear = len(ranks[right]) > len(ranks[second])
        wrong |= {rank for rank, seen in votes if is_clear and seen != right}
        unclear |= set() if is_clear else {rank for rank, _ in votes}
    certain = bool(wrong) and unclear <= wrong
    return Finding(what, sorted(wrong if certain else wrong | unclear), certain, not differing_results(again))


class SilentErrorCheck:
    """Runs the steps that are checked for silent errors.

    ``again`` loads the batches of a step for a second attempt. ``report`` is called on every rank with an
    event's name, the number of completed steps, and a text. ``can_exclude`` tells whether the launcher can
    continue with fewer ranks.
    """

    def __init__(
        self,
        checks: Checks,
        state: TrainingState,
        again: Callable[[int], MicroBatches[Any]],
        report: Callable[[str, int, str], None],
        *,
        can_exclude: bool,
        start: int,
    ) -> None:
        self.checks, self.state, self.again, self.report = checks, state, again, report
        self.can_exclude = can_exclude
        self.agreed = start
        self.compared = self.differed = 0
        if checks.recipe.check.exclude and not can_exclude:
            text = (
                "check.exclude has an effect only with several ranks that Rankless starts itself; remove it"
            )
            report("warning", start, text)

    def run(self, step: int, batches: Iterator[Any], flags: Flags) -> Totals:
        """Run a step like ``state.compute``. If the results of ranks differ, repeat the step and report it.

        Raises:
            LeftOutError: the run should continue without some ranks.
            DivergedError: the results of the second attempt also differ.
        """
        self.compared += 1
        totals, first = self._attempt(step, batches, flags, 0)
        if not differing_results(first):
            self.agreed = step + 1
            return totals
        self.differed += 1
        self.state.statistics.undo()
        with self.again(step) as drawn:
            totals, again = self._attempt(step, drawn, flags, 1)
        self._act(step, judge(first, again))
        return totals

    def summary(self) -> str:
        """Return a clause with the number of checked steps, or "" if no step was checked."""
        steps = counted(self.compared, "step")
        if self.differed:
            return f"; results were recomputed in {steps} and differed in {self.differed:,} of them"
        return f"; results were recomputed in {steps}, and all agreed" if self.compared else ""

    def _attempt(self, step: int, batches: Iterator[Any], flags: Flags, attempt: int) -> tuple[Totals, Votes]:
        weights = digest(checksums(self.state.weights()))  # before a forward pass changes statistics
        world = self.state.world
        compared = self.checks.compared(step, world.rank, attempt)
        totals = self.state.compute(step, batches, flags, compared)
        gathered = world.all_gather([*totals.opinions, weights])
        return totals, self.checks.votes(step, attempt, gathered)

    def _act(self, step: int, finding: Finding) -> None:
        """Report a finding, and raise an error if the run cannot continue with the same ranks."""
        world = self.state.world
        names = world.all_gather(_name(world))
        text, who = finding.sentence(step, names), finding.who(names)
        excludes = self.checks.recipe.check.exclude and finding.certain
        can_exclude = self.can_exclude and len(finding.ranks) < world.size
        if finding.repeated_well and not excludes:
            self.report("silent error", step, f"{text}, so training continues")
            return
        self.report("silent error", step, text)
        if excludes and can_exclude:
            raise LeftOutError(f"{who} is excluded after a silent error in step {step + 1}", finding.ranks)
        error = f"step {step + 1} was not applied, because {self._advice(finding, who)}"
        raise DivergedError(error, is_whole=False, repeats=False)

    def _advice(self, finding: Finding, who: str) -> str:
        weights = "all weights of this run may also be wrong"
        if self.agreed:
            weights = f"all results last agreed in step {self.agreed}, so later weights may also be wrong"
        if finding.certain:
            return (
                f"the results of {who} are wrong; {weights}; test that device, and continue without it "
                "(--devices, --hosts) from a checkpoint"
            )
        return (
            f"it is unknown which results of {who} are correct; {weights}; continue from a checkpoint on "
            "other devices, or on at least three, so that two can outvote the third (if it happens again, "
            "the task depends on more than its inputs: run `rankless verify`)"
        )


def _name(world: World) -> str:
    device = "CPU"
    if world.device.type == "cuda":
        card = torch.cuda.get_device_properties(world.device)
        device = f"GPU {world.device.index}, {card.name}, {card.uuid}"
    return f"rank {world.rank} on {os.uname().nodename} ({device})"
