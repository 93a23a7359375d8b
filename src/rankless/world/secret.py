"""Authenticate ranks with a secret that all ranks of a job share.

Gloo assumes that the first connection is from the expected rank, but any user of the machine or network can
connect. Therefore, each pair of ranks proves over its connection that both know a secret. It is in a file
that only the user can read, or in an environment variable.
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
"""Environment variable with the secret of a job on several machines."""
_PATIENCE = timedelta(minutes=5)  # long enough for a busy machine, because all ranks are already connected
_LENGTH = 32  # bytes of a challenge and of a proof
# References from C++ do not keep Python objects alive.
_KEPT_ALIVE: list[dist.Store] = []


def signed_store(store: dist.Store) -> dist.Store:
    """Return a store that signs its values if the job has a secret, otherwise ``store`` itself."""
    if secret := os.environ.get(VARIABLE):
        store = _SignedStore(store, secret.encode(errors="surrogateescape"))
        _KEPT_ALIVE.append(store)
    return store


class _SignedStore(dist.Store):
    """A store that signs each key and value. It has only the methods that gloo and the ranks use."""

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
                f"the key {key} in the ranks' store was written without this job's {VARIABLE}; set this "
                "variable to the same value for all ranks (if it already is, another user of the network has "
                "written to the store)"
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
    """Return the key of the ranks that share ``store``. Without a secret, any reader of ``store`` has it."""
    if not rank:
        store.set("key", secrets.token_hex(_LENGTH))
    return os.environ.get(VARIABLE, "").encode(errors="surrogateescape") + store.get("key")


def prove(group: dist.ProcessGroup, key: bytes) -> None:
    """Verify that all other ranks of a connected CPU group know ``key``. All ranks must call this."""
    rank, size = group.rank(), group.size()

    def proof(prover: int, verifier: int, challenge: bytes) -> bytes:
        return hmac.digest(key, b"%d %d %s" % (prover, verifier, challenge), "sha256")

    mine = secrets.token_bytes(_LENGTH)
    theirs = _exchanged(group, [mine] * size)
    proofs = _exchanged(group, [proof(rank, other, theirs[other]) for other in range(size)])
    for other in range(size):
        if not hmac.compare_digest(proofs[other], proof(other, rank, mine)):
            raise UserError(
                f"rank {rank}: the process connected as rank {other} is not a rank of this job, so another "
                "user of the machine or its network connected first; start again, and find that user if it "
                "happens again"
            )


def _exchanged(group: dist.ProcessGroup, given: list[bytes]) -> list[bytes]:
    """Send ``given[r]`` to each rank r, and return the bytes received from all ranks."""
    sent = torch.frombuffer(bytearray(b"".join(given)), dtype=torch.uint8)
    received, options = torch.empty_like(sent), dist.AllToAllOptions()
    options.timeout = _PATIENCE
    group.alltoall_base(received, sent, [], [], options).wait()
    return [row.numpy().tobytes() for row in received.view(len(given), _LENGTH)]
