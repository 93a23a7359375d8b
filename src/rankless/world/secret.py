"""The secret of a job, by which its ranks recognize each other.

Gloo takes whoever connects first for the rank that it waits for, where every user of the machine, or of the
network, can connect. So each pair of ranks first proves, over the very connection that is to carry its
numbers, that both know a secret. It lies in a file that only their user can read, or in the environment.
"""

from __future__ import annotations

import hmac
import os
import secrets
from datetime import timedelta

import torch
import torch.distributed as dist

from rankless.errors import UserError

VARIABLE = "RANKLESS_SECRET"
"""Names a text in the environment that all ranks of a job on several machines have, and nobody else."""
_PATIENCE = timedelta(minutes=5)  # all have connected: a proof takes a moment, on a machine that is busy, too
_LENGTH = 32  # bytes of a challenge and of a proof
# Whoever holds a store in C++ does not keep what it is in Python.
_UNDYING: list[dist.Store] = []


def sealed(store: dist.Store) -> dist.Store:
    """``store``, where only values count that were written with the job's secret, if it has one."""
    if secret := os.environ.get(VARIABLE):
        store = _Sealed(store, secret.encode(errors="surrogateescape"))
        _UNDYING.append(store)
    return store


class _Sealed(dist.Store):
    """A store that signs each value together with its key; it has the methods that gloo and the ranks use."""

    def __init__(self, store: dist.Store, secret: bytes) -> None:
        super().__init__()
        self.store, self.secret = store, secret

    def set(self, key: str, value: bytes) -> None:  # type: ignore[override]
        self.store.set(key, self._seal(key, value) + value)  # type: ignore[arg-type]

    def get(self, key: str) -> bytes:
        found = self.store.get(key)
        seal, value = found[:_LENGTH], found[_LENGTH:]
        if not hmac.compare_digest(seal, self._seal(key, value)):
            raise UserError(
                f"{key} in the store where the ranks meet was written without this job's {VARIABLE}: all of "
                "them need the same one; if they have it, somebody else in the network writes there"
            )
        return value

    def check(self, keys: list[str]) -> bool:
        return self.store.check(keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self.store.wait(keys, *([timeout] if timeout else []))

    def add(self, key: str, amount: int) -> int:
        return self.store.add(key, amount)

    def _seal(self, key: str, value: bytes) -> bytes:
        return hmac.digest(self.secret, b"%d %s %s" % (len(key), key.encode(), value), "sha256")


def shared_key(store: dist.Store, rank: int) -> bytes:
    """Return the key of ranks that meet in ``store``; without a secret, any reader of it knows the key."""
    if not rank:
        store.set("key", secrets.token_hex(_LENGTH))
    return os.environ.get(VARIABLE, "").encode(errors="surrogateescape") + store.get("key")


def prove(group: dist.ProcessGroup, key: bytes) -> None:
    """Prove to every other rank of a group that this one knows a key, and have them prove it.

    Args:
        group: has connected on the CPU; all its ranks must call this.
        key: the same on all ranks.
    """
    rank, size = group.rank(), group.size()

    def proof(prover: int, verifier: int, challenge: bytes) -> bytes:
        return hmac.digest(key, b"%d %d %s" % (prover, verifier, challenge), "sha256")

    mine = secrets.token_bytes(_LENGTH)
    theirs = _exchanged(group, [mine] * size)
    proofs = _exchanged(group, [proof(rank, other, theirs[other]) for other in range(size)])
    for other in range(size):
        if not hmac.compare_digest(proofs[other], proof(other, rank, mine)):
            raise UserError(
                f"rank {rank}: what is connected in the place of rank {other} is no rank of this job: "
                "another user of the machine or of its network was first; start again, and see who it is if "
                "it comes again"
            )


def _exchanged(group: dist.ProcessGroup, given: list[bytes]) -> list[bytes]:
    """Return every rank's text for this one; ``given`` holds this rank's text for each."""
    sent = torch.frombuffer(bytearray(b"".join(given)), dtype=torch.uint8)
    received, options = torch.empty_like(sent), dist.AllToAllOptions()
    options.timeout = _PATIENCE
    group.alltoall_base(received, sent, [], [], options).wait()
    return [row.numpy().tobytes() for row in received.view(len(given), _LENGTH)]
