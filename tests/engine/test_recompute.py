"""Ranks recompute micro-batches of one another: who computes which, and what two attempts show."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rankless.engine.loop import update
from rankless.engine.recompute import Checks, SilentErrorCheck, Votes, differing_results, judge
from rankless.engine.state import TrainingState
from rankless.engine.totals import Compared, Flags
from rankless.errors import UserError
from rankless.models.weights_files.weights import digest
from rankless.recipe.load import load
from rankless.recipe.schema import Batch, Check, Recipe
from rankless.world.process_group import World
from rankless.world.tree import own_micro_batches
from support import networks_that_branch
from support.networks_that_branch import NETWORKS, images

LEAVES = 6
Opinion = tuple[tuple[int, int], str]
"""Step and micro-batch, and the digest of its loss and gradients."""
RECIPE = Recipe(batch=Batch(2 * LEAVES, 2), check=Check(recompute=3))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_another_rank_checks_every_rank_and_over_time_all_ranks_check_all_computations(size: int) -> None:
    checks, ranks = Checks(RECIPE, size), range(size)
    assert [step for step in range(10) if checks.is_due(step)] == [2, 5, 8]
    seen = set()
    for step in range(300):
        others = [[checks.other(step, rank, attempt) for rank in ranks] for attempt in (0, 1)]
        assert all(sorted(one) == [*ranks] for one in others), "each is recomputed by one"
        if size > 1:
            assert all(one[rank] != rank for one in others for rank in ranks)
        if size > 2:
            assert all(first != second for first, second in zip(*others, strict=True)), "a third opinion"
        for rank in ranks:
            compared = checks.compared(step, rank, 0)
            assert compared.own in own_micro_batches(LEAVES, rank, size)
            assert compared.other == checks.compared(step, others[0][rank], 0).own
            seen.add((rank, compared.other))
    expected = {(a, leaf) for a in ranks for b in ranks for leaf in own_micro_batches(LEAVES, b, size)}
    foreign = {
        (a, leaf) for a, leaf in expected if size == 1 or leaf not in own_micro_batches(LEAVES, a, size)
    }
    assert seen == foreign


@pytest.mark.parametrize(
    ("first", "again", "ranks", "certain", "repeated_well"),
    [
        # One error that does not repeat, of the rank that adds or of the one that recomputes.
        ("0x 1a", "0a 1a", [0], True, True),
        ("0a 1x", "0a 1a", [1], True, True),
        # The same error again: of three ranks two agree, of two ranks none has a majority.
        ("0x 1a", "0x 2a", [0], True, False),
        ("0a 1x", "0a 2a", [1], True, True),
        ("0x 1a", "0x 1a", [0, 1], False, False),
        # Another error each time.
        ("0x 1a", "0y 2a", [0], True, False),
        ("0x 1a", "0y 1a", [0, 1], False, False),
        ("0x 1y", "0a 1a", [0, 1], True, True),
        # A rank alone.
        ("0x 0a", "0a 0a", [0], False, True),
        ("0x 0a", "0x 0a", [0], False, False),
        # The third could not read the images.
        ("0x 1a", "0x", [0, 1], False, True),
    ],
)
def test_the_result_of_most_ranks_is_right(
    first: str, again: str, ranks: list[int], certain: bool, repeated_well: bool
) -> None:
    def votes(text: str) -> Votes:
        return {7: [(int(one[0]), one[1]) for one in text.split()], 4: [(0, "b"), (1, "b")]}

    assert differing_results(votes(first)) == [7]
    found = judge(votes(first), votes(again))
    assert (found.what, found.ranks, found.certain, found.repeated_well) == (
        [7],
        ranks,
        certain,
        repeated_well,
    )


def trained(world: World, recipe: Recipe, block: Any, *, compares: bool) -> tuple[str, list[Opinion]]:
    """The digest of what three steps train, and this rank's opinions."""
    task: Any = networks_that_branch.Task(recipe)
    task.blocks = (block,)
    state, own = TrainingState(task, recipe, world, 100), world.own_micro_batches(LEAVES)
    state.scaler.load_state_dict({**state.scaler.state_dict(), "scale": 8.0})
    state.training_mode()
    found = []
    for step in range(3):
        compared = Compared(own[(step + 1) % len(own)], (1, 2, 5)[step]) if compares else None
        state.begin(step)
        drawn = (images(step, leaf) for leaf in ([compared.other] if compared else []) + [*own])
        totals = state.compute(step, drawn, Flags(), compared)
        update(state, step, totals)
        if compared:
            found += [
                ((step, compared.own), totals.opinions[0]),
                ((step, compared.other), totals.opinions[1]),
            ]
    return digest(state.model.state_dict()), found


def opinions(world: World, precision: str) -> dict[str, list[Opinion]]:
    recipe = Recipe(batch=RECIPE.batch, find_unused_parameters=True, precision=precision)
    found = {}
    for block in NETWORKS[::3]:
        weights, found[block.__name__] = trained(world, recipe, block, compares=True)
        assert weights == trained(world, recipe, block, compares=False)[0]
    return found


@pytest.mark.processes
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_all_ranks_have_the_same_opinion_of_a_micro_batch(ranks: Any, precision: str) -> None:
    """Whether it is added first, to a sibling, last, or not at all; the networks leave parameters unused."""
    for network in (every := [*ranks(1, opinions, precision), *ranks(3, opinions, precision)])[0]:
        told = [opinion for found in every for opinion in found[network]]
        assert len(told) == 4 * 6
        known = dict(told)
        assert all(seen == known[what] for what, seen in told)
        assert len(set(known.values())) == len(known) < len(told) / 2, "micro-batches are told apart"


def test_what_was_recomputed_and_what_has_no_effect_is_reported() -> None:
    said: list[Any] = []

    def alarm(exclude: bool, can_exclude: bool) -> SilentErrorCheck:
        checks, unused = Checks(Recipe(check=Check(recompute=3, exclude=exclude)), 1), cast(Any, None)
        report = lambda *event: said.append(event)  # noqa: E731
        return SilentErrorCheck(checks, unused, unused, report, can_exclude=can_exclude, start=4)

    found = alarm(True, True)
    assert not alarm(False, False).summary() and not said
    found.compared = 12
    assert found.summary() == "; results were recomputed in 12 steps, and all agreed"
    alarm(True, False)
    ((name, step, text),) = said
    assert (name, step) == ("warning", 4) and text.startswith(
        "check.exclude has an effect only with several "
    )


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("check: {exclude: true}", "'check.exclude' is true, but check.recompute is 0"),
        (
            "{check: {recompute: 5}, reduce: fast, batch_norm: sync}",
            r"batch_norm is 'sync' \(micro-batches cannot be computed separately\) and reduce is 'fast' \(",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path: Any, keys: str, said: str) -> None:
    (tmp_path / "r.yaml").write_text(keys)
    with pytest.raises(UserError, match=said):
        load(tmp_path / "r.yaml")
