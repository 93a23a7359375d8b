"""Who knows the secret is a rank; who has only connected, or written into the store, is none."""

from __future__ import annotations

import os
import socket
import stat
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from rankless.errors import UserError
from rankless.world import process_group, secret
from rankless.world.process_group import LostPeerError, join
from rankless.world.rendezvous import job_store, meet, private_store

WORDS = struct.Struct("<6q")  # of gloo's messages: bytes in all, kind, slot, offset, length, offset there
DATA, OFFERED, WANTED = 1, 2, 3  # kinds: what follows, what could, and what is waited for


def records(file: Path) -> Iterator[tuple[str, bytes]]:
    data, at = file.read_bytes() if file.exists() else b"", 0
    while at < len(data):
        pair = []
        for _ in range(2):
            length = int.from_bytes(data[at : at + 4], "little")
            pair.append(data[at + 4 : at + 4 + length])
            at += 4 + length
        yield pair[0].decode(), pair[1]


class Stranger(threading.Thread):
    """Waits for rank 0 to listen and connects before rank 1, which is honest but comes late.

    Args:
        meeting: where the two ranks meet. The stranger uses nothing of it but what every user can see or
            guess, the port and the sequence number; for rank 1 it says where that could be reached.
        answers: whether what rank 0 waits for is sent, all of it zeros.
    """

    def __init__(self, meeting: Path, *, answers: bool) -> None:
        super().__init__(daemon=True)
        self.meeting, self.answers, self.sent = meeting, answers, 0
        self.ended, self.connections = threading.Event(), list[socket.socket]()

    def run(self) -> None:
        seen = set[str]()
        while not self.ended.wait(0.005):
            for key, value in records(self.meeting):
                if key.endswith("/0/0") and key not in seen:
                    seen.add(key)
                    self._take_the_place(key, value)

    def _take_the_place(self, key: str, value: bytes) -> None:
        """Connect as rank 1, given what rank 0 has published: a host's name, an address, and numbers."""
        address = 16 + int.from_bytes(value[:8], "little")
        (port,) = struct.unpack(">H", value[address + 2 : address + 4])
        connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        connection.sendall(value[-8:])  # of its numbers the last is for rank 1
        self.connections.append(connection)
        if self.answers:
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()
        # Of two ranks that with the lower port listens.
        late = value[: address + 2] + struct.pack(">H", 65535) + value[address + 4 :]
        dist.FileStore(str(self.meeting), 2).set(f"{key[1:-1]}1", late)

    def _answer(self, connection: socket.socket) -> None:
        with suppress(OSError):
            while len(head := connection.recv(WORDS.size, socket.MSG_WAITALL)) == WORDS.size:
                _, kind, slot, _, length, _ = WORDS.unpack(head)
                if kind == DATA:
                    connection.recv(length, socket.MSG_WAITALL)
                elif kind == OFFERED:
                    connection.sendall(WORDS.pack(WORDS.size, WANTED, slot, 0, length, 0))
                elif kind == WANTED:
                    connection.sendall(
                        WORDS.pack(WORDS.size + length, DATA, slot, 0, length, 0) + bytes(length)
                    )
                    self.sent += 1

    def end(self) -> None:
        self.ended.set()
        self.join()
        for connection in self.connections:
            connection.close()


@pytest.fixture
def rank_0_of_2(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANKLESS_CPU": "1"}.items():
        monkeypatch.setenv(name, text)


@pytest.mark.slow
@pytest.mark.usefixtures("rank_0_of_2")
@pytest.mark.parametrize("answers", [True, False])
def test_who_connects_first_in_the_place_of_a_rank_is_refused(
    tmp_path: Path, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret, "_PATIENCE", timedelta(seconds=60 if answers else 1))
    stranger = Stranger(tmp_path / "store", answers=answers)
    stranger.start()
    expected = (
        (UserError, "rank of this job, so another user") if answers else (LostPeerError, "another user")
    )
    try:
        with pytest.raises(expected[0], match=expected[1]), join(tmp_path / "store") as world:
            received = torch.ones(3)
            world.transport.all_to_all(received, torch.ones(2), [1, 2], [1, 1]).wait()
            pytest.fail(f"a stranger's numbers are added: {received}")
    finally:
        stranger.end()
    assert len(stranger.connections) == 1 and bool(stranger.sent) == answers
    assert not dist.is_initialized()


@pytest.fixture
def job_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(secret.VARIABLE, "of this job")


def both(store: dist.Store) -> list[dist.Store]:
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(lambda rank: meet(store, rank, 2, timedelta(seconds=20)), range(2)))


@pytest.mark.usefixtures("job_secret")
def test_ranks_read_in_an_open_store_what_ranks_have_written() -> None:
    store = dist.HashStore()
    first, second = both(store)
    first.set("a", "1")
    second.set("b", "2")
    assert (second.get("a"), first.get("b")) == (b"1", b"2")
    assert job_store(store).check(["words"])


@pytest.mark.usefixtures("job_secret")
@pytest.mark.parametrize("forged", ["changed", "moved", "another's", "cut"])
def test_what_a_stranger_writes_into_an_open_store_is_refused(
    forged: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = dist.FileStore(str(tmp_path / "store"), 2)
    first, second = both(store)
    first.set("a", "1")
    first.set("b", "2")
    found = {key[-1]: (key[1:], value) for key, value in records(tmp_path / "store")}
    key, value = found["a"]
    if forged == "another's":
        monkeypatch.setenv(secret.VARIABLE, "guessed")
        secret.signed_store(store).set(key, b"1")
    else:
        store.set(key, {"changed": value[:-1] + b"2", "moved": found["b"][1], "cut": value[:5]}[forged])
    with pytest.raises(
        UserError, match=r"/a in the ranks' store was written without this job's RANKLESS_SECRET"
    ):
        second.get("a")
    assert second.get("b") == b"2"


@pytest.mark.usefixtures("job_secret", "rank_0_of_2")
def test_no_rank_connects_to_an_address_that_a_stranger_wrote_into_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He could stand between two ranks and hand on what each proves to the other."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    outer = dist.FileStore(str(tmp_path / "store"), 2)
    monkeypatch.setattr(process_group, "ranks_store", lambda *_: outer)

    def write_an_address() -> None:
        meet(outer, 1, 2, timedelta(seconds=60))  # as the honest rank 1
        while not (found := [pair for pair in records(tmp_path / "store") if pair[0].endswith("/0/0")]):
            time.sleep(0.01)
        key, value = found[0]
        outer.set(f"{key[1:-1]}1", value)

    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write_an_address)
        with pytest.raises(UserError, match=r"/0/1 in the ranks' store was written without"), join():
            pass
        written.result()


def test_ranks_of_one_machine_meet_in_a_folder_of_their_user() -> None:
    shared = dist.HashStore()
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda rank: private_store(shared, rank, 2), range(2))
    file = Path(os.fsdecode(shared.get("file")))
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    first.set("a", "1")
    assert second.get("a") == b"1" and not shared.check(["a"])


@pytest.mark.parametrize(
    "place", ["a file of the user's", "for all", "elsewhere", "nowhere", "a link", "behind a link"]
)
def test_a_stranger_does_not_decide_where_ranks_of_one_machine_meet(place: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        folders = [tempfile.TemporaryDirectory(prefix="rankless-", dir=each) for each in (None, tmp_path)]
        good, other = (Path(stack.enter_context(folder)) / "store" for folder in folders)
        new = good.parent.with_name(f"{good.parent.name}-new")
        stack.callback(new.unlink, missing_ok=True)
        named = {
            "a file of the user's": good.with_name("accounts.db"),
            "for all": good,
            "elsewhere": other,
            "nowhere": new / "store",
            "a link": new / "store",
            "behind a link": new / good.parent.name / "store",
        }[place]
        if "link" in place:
            new.symlink_to(good.parent if place == "a link" else good.parent.parent)
        if place == "for all":
            good.parent.chmod(0o777)
        shared = dist.HashStore()
        shared.set("file", str(named))
        with pytest.raises(UserError, match=r"another user of the machine has written to"):
            private_store(shared, 1, 2)
        assert not named.exists()
