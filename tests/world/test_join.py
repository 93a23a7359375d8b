"""The ranks of a run: what they say to each other, and how many may share a step."""

from __future__ import annotations

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from rankless.errors import UserError
from rankless.world import process_group
from rankless.world.process_group import World, is_lost_peer, join
from rankless.world.rendezvous import join_store, meet
from support.process_server import SERVER


def test_a_process_that_nobody_launched_is_a_world_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANKLESS_CPU", "1")
    for _ in range(2):  # it leaves nothing behind
        with join() as world:
            assert (world.rank, world.size, world.device) == (0, 1, torch.device("cpu"))
            assert world.is_first and world.gather("x") == ["x"] and world.broadcast(7) == 7
        assert not dist.is_initialized()


def test_more_ranks_than_micro_batches_are_refused() -> None:
    cpu = torch.device("cpu")
    assert World(7, 8, cpu).own_micro_batches(8) == range(7, 8)
    with pytest.raises(UserError, match=r"a step has only 8 micro-batches for 9 devices.*use at most 8"):
        World(0, 9, cpu).own_micro_batches(8)


def met(store: dist.Store, *ranks: tuple[int, int]) -> list[dist.Store | str]:
    def one(rank: int, size: int) -> dist.Store | str:
        try:
            return meet(store, rank, size, timedelta(seconds=20))
        except UserError as error:
            return str(error)

    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(lambda each: one(*each), ranks))


def test_a_start_meets_in_a_store_of_its_own_whatever_earlier_ones_left() -> None:
    kept = dist.HashStore()
    for size in (3, 2, 3):
        stores = met(kept, *((rank, size) for rank in range(size)))
        assert not [store for store in stores if isinstance(store, str)], stores
        first, *others = stores
        assert isinstance(first, dist.Store) and not first.check(["mine"]), "nothing of an earlier start"
        first.set("mine", str(size))
        assert [other.get("mine") for other in others] == [str(size).encode()] * (size - 1)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("cards", "backend"),
    [
        (("a", "b", "c"), "cpu:gloo,cuda:nccl"),  # also where each rank sees its card as the only one
        (("a", "a", "b"), "gloo"),
    ],
)
def test_nccl_is_used_where_each_rank_has_its_own_card(cards: tuple[str, ...], backend: str) -> None:
    store = dist.HashStore()
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda rank: process_group._backend(store, rank, 3, cards[rank]), range(3)))
    assert found == [backend] * 3
    assert process_group._backend(store, 0, 3, "") == "gloo"


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2)])
def test_ranks_that_were_given_different_numbers_are_refused(sizes: tuple[int, int]) -> None:
    reasons = met(dist.HashStore(), (0, sizes[0]), (1, sizes[1]))
    expected = f"WORLD_SIZE is {sizes[0]} on rank 0, but {sizes[1]} on rank 1; expected the same number"
    assert all(isinstance(reason, str) and reason.startswith(expected) for reason in reasons), reasons


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711"), True),
        (dist.DistNetworkError("the socket is gone"), True),
        (RuntimeError("a trainable parameter took no part in the loss of a micro-batch"), False),
        (ValueError("Timed out"), False),
    ],
)
def test_a_lost_peer_is_reported_from_an_error(error: Exception, lost: bool) -> None:
    assert is_lost_peer(error) == lost


def test_what_listens_and_is_no_store_is_named() -> None:
    """PyTorch's own client waits for an answer to its greeting without end."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(
            UserError, match=rf"127\.0\.0\.1:{port}: a program at this address does not respond"
        ):
            join_store("127.0.0.1", port, timedelta(seconds=20), patience=0.05)


@pytest.mark.processes
def test_a_rank_that_waits_for_the_first_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        place = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "RANKLESS_CPU": "1"}
        words = ["-m", "rankless", "train", "digits", "--run", str(tmp_path / "run")]
        environment = {**os.environ, **place, "MASTER_PORT": str(silent.getsockname()[1])}
        with Path(os.devnull).open("wb") as nowhere:
            process = SERVER.start(words, environment=environment, cwd=tmp_path, output=nowhere)
        try:
            with silent.accept()[0]:
                process.send_signal(signal.SIGTERM)
                assert process.wait(20) == 85
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
