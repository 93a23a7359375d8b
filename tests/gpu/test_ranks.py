"""Ranks with a pretended GPU each: what they send each other over NCCL, and the memory that they ask for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from support.pretended_gpu import HERE, PretendedGpu

pytestmark = pytest.mark.processes

FOUR_CARDS = {"PRETENDED_GPU_CARDS": "4"}
IMAGES = "digits model.image_size=64 data.train_images=24"
SMALL = f"{IMAGES} model.width=0.125 batch.images=12 batch.micro=3"  # four micro-batches
SIXTEEN = f"{IMAGES} batch.images=16 batch.micro=1"
HIDDEN = f"digits task={HERE / 'hides_a_shortage.py'}:HidesAShortage batch.images=8 batch.micro=4"
RUNS: dict[str, tuple[int, str, dict[str, str]]] = {
    **{f"{size} ranks": (size, SMALL, FOUR_CARDS) for size in (1, 2, 3, 4)},
    "sync batch norm": (3, f"{SMALL} batch_norm=sync", FOUR_CARDS),
    "recompute": (3, f"{SMALL} check.recompute=2", FOUR_CARDS),
    "fast": (2, f"{SMALL} reduce=fast", FOUR_CARDS),
    "too many": (3, f"{IMAGES} batch.images=12 batch.micro=6", FOUR_CARDS),
    "one card": (2, SMALL, {}),
    "one of four cards": (2, SMALL, {**FOUR_CARDS, "CUDA_VISIBLE_DEVICES": "2"}),
    "two of four cards": (2, SMALL, {**FOUR_CARDS, "CUDA_VISIBLE_DEVICES": "2,3"}),
    "one dies": (3, SMALL, {**FOUR_CARDS, "DIES": "1"}),
    "tree": (1, SIXTEEN, {}),
    "plain": (1, f"{SIXTEEN} reduce=fast", {}),
    "hidden shortage": (1, HIDDEN, {}),
    "hidden shortage, fast": (1, f"{HIDDEN} reduce=fast", {}),
}
Group = tuple[str, tuple[tuple[str, int, int, int], ...]]
"""One collective: its name, or ``messages``, with the name, number, type and peer of each call."""


@pytest.fixture(scope="module")
def runs(pretended_gpu: PretendedGpu, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the ranks of each run did."""
    jobs = [(size, recipe.split(), more) for size, recipe, more in RUNS.values()]
    found = pretended_gpu.answers("train_ranks.py", jobs, tmp_path_factory.mktemp("ranks"))
    return dict(zip(RUNS, found, strict=True))


def collectives(lines: Sequence[str]) -> list[Group]:
    """Read the log of a rank, in which messages are between ``begin`` and ``end``."""
    found: list[Group] = []
    messages: list[tuple[str, int, int, int]] | None = None
    for line in lines:
        name, *numbers = line.split()
        number, kind, peer = map(int, numbers)
        if name == "begin":
            messages = []
        elif name == "end":
            found.append(("messages", tuple(messages or ())))
            messages = None
        elif messages is None:
            found.append((name, ((name, number, kind, peer),)))
        else:
            messages.append((name, number, kind, peer))
    return found


def unanswered(ranks: Sequence[list[Group]]) -> list[tuple[int, str]]:
    """Return the calls that at least one rank does not make, or makes otherwise, by their position."""
    found = []
    for position, calls in enumerate(zip(*ranks, strict=True)):
        names = {name for name, _ in calls}
        if names != {"messages"}:
            found += [(position, str(calls))] if len(set(calls)) > 1 else []
            continue
        for rank, (_, messages) in enumerate(calls):
            for name, number, kind, peer in messages:
                other = "receive" if name == "send" else "send"
                if (other, number, kind, rank) not in calls[peer][1]:
                    found.append((position, f"rank {rank}: {name} {number} to or from rank {peer}"))
    return found


@pytest.mark.parametrize(
    "name", ["2 ranks", "3 ranks", "4 ranks", "sync batch norm", "recompute", "fast", "two of four cards"]
)
def test_all_ranks_make_the_same_nccl_calls(name: str, runs: dict[str, Any]):
    ranks = [collectives(rank["calls"]) for rank in runs[name]]
    assert [rank.get("finished") for rank in runs[name]] == [True] * len(ranks), runs[name]
    assert {rank["backend"] for rank in runs[name]} == {"cpu:gloo,cuda:nccl"}
    assert len({len(rank) for rank in ranks}) == 1
    assert len(ranks[0]) > 6
    assert unanswered(ranks) == []


def test_a_call_that_one_rank_does_not_make_is_found():
    first = collectives(["begin 0 0 -1", "send 4 7 1", "receive 3 7 1", "end 0 0 -1", "all-gather 4 7 -1"])
    second = collectives(["begin 0 0 -1", "send 3 7 0", "receive 4 7 0", "end 0 0 -1", "all-gather 5 7 -1"])
    assert [position for position, _ in unanswered([first, second])] == [1]
    third = collectives(["begin 0 0 -1", "send 2 7 0", "receive 4 7 0", "end 0 0 -1", "all-gather 4 7 -1"])
    assert [position for position, _ in unanswered([first, third])] == [0, 0]


def test_one_rank_calls_nothing(runs: dict[str, Any]):
    assert runs["1 ranks"][0]["finished"]
    assert runs["1 ranks"][0]["calls"] == []


def test_more_ranks_than_micro_batches_are_refused_before_the_first_call(runs: dict[str, Any]):
    for rank in runs["too many"]:
        assert rank["problems"] == [
            "a step has only 2 micro-batches for 3 devices; use at most 2 devices, a larger batch.images or "
            "a smaller batch.micro"
        ]
        assert rank["calls"] == []


@pytest.mark.parametrize("name", ["one card", "one of four cards"])
def test_ranks_that_share_a_card_do_not_use_nccl(name: str, runs: dict[str, Any]):
    for rank in runs[name]:
        assert rank.get("finished"), rank
        assert "nccl" not in rank["backend"]
        assert rank["calls"] == []


def test_the_others_end_with_a_rank_that_dies(runs: dict[str, Any]):
    first, dead, last = runs["one dies"]
    assert first.get("lost") and last.get("lost"), (first, last)
    assert "finished" not in dead


def test_the_tree_needs_log2_n_minus_1_sums_more_than_plain_accumulation(runs: dict[str, Any]):
    [tree], [plain] = runs["tree"], runs["plain"]
    assert (tree["memory"] - plain["memory"]) / tree["weights"] == pytest.approx(math.log2(16) - 1, abs=0.1)


def test_memory_that_pytorch_does_without_is_an_error_because_its_other_algorithm_has_other_bits(
    runs: dict[str, Any],
):
    [rank] = runs["hidden shortage"]
    assert rank["problems"] == [
        "the GPU is out of memory for the fastest algorithm of a layer; others need less memory, but their "
        "results have other bits"
    ]
    assert runs["hidden shortage, fast"][0].get("finished"), runs["hidden shortage, fast"]
