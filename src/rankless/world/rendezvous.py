"""The rendezvous of ranks, through a private file on one machine or a TCP store on several machines.

A store listens on only one address. Its values are plain bytes and never unpickled. Because every user
can write to a launcher's store, ranks on one machine use it only to agree on a private file.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from rankless.errors import UserError
from rankless.files.cache_folder import is_private, remove_at_exit
from rankless.hardware import network
from rankless.world.compat import innermost_store
from rankless.world.secret import signed_store

_POLL = 0.05  # seconds
_PREFIX, _FILE = "rankless-", "store"  # the prefix of the folder's name, and the file's name
_PATIENCE = 60.0  # maximum seconds until a store answers
# The loopback interface by operating system.
_LOOPBACK = {"Linux": "lo", "Darwin": "lo0"}


@contextmanager
def private_rendezvous() -> Iterator[Path]:
    """Create an empty rendezvous file for ranks on this machine, in a folder that only this user can enter.

    It replaces PyTorch's rendezvous, which listens on all interfaces and unpickles received data.
    """
    file = _private_file()
    try:
        yield file
    finally:
        shutil.rmtree(file.parent, ignore_errors=True)


def open_store(address: str, port: int = 0, timeout: timedelta = timedelta(minutes=5)) -> dist.TCPStore:
    """Open a store on this machine that listens only on ``address``, for ranks on several machines.

    If ``port`` is 0, a free port is selected.
    """
    listener = network.listening_at(address, port)
    port = listener.getsockname()[1]
    return dist.TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timeout,
        master_listen_fd=listener.detach(),
    )


def join_store(address: str, port: int, timeout: timedelta, patience: float = _PATIENCE) -> dist.TCPStore:
    """Connect to a store that another process opens before the timeout.

    Raises a ``UserError`` if a program at the address does not respond within ``patience`` seconds, twice.
    """
    found: list[dist.TCPStore | Exception] = []

    def connect() -> None:
        try:
            found.append(dist.TCPStore(address, port, is_master=False, timeout=timeout))
        except Exception as error:
            found.append(error)

    # The client waits in C++, without handling signals or a timeout for the store's first response.
    thread, listened = threading.Thread(target=connect, daemon=True), False
    thread.start()
    while not found:
        thread.join(patience)
        listens = not found and network.listens(address, port)
        if listens and listened:  # also at the previous check
            raise UserError(
                f"{address}:{port}: a program at this address does not respond; expected the first rank of "
                "this job; stop that program, or set MASTER_PORT to another port"
            )
        listened = listens
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def _places() -> tuple[str, str]:
    return tempfile.gettempdir(), "/dev/shm"


def _private_file() -> Path:
    """Create an empty file in a new folder of mode 0700, on a file system that supports locks."""
    problems = []
    for parent in _places():
        try:
            file = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent)) / _FILE
            with file.open("w") as opened:
                fcntl.flock(opened, fcntl.LOCK_EX)
        except OSError as error:
            problems.append(f"{parent}: no file can be created and locked in this folder ({error})")
        else:
            return file
    problems.append("the ranks have no file through which to connect; set TMPDIR to a folder on a local disk")
    raise UserError(problems)


def loopback() -> str | None:
    """Return the name of the loopback interface, or None if unknown."""
    return _LOOPBACK.get(os.uname().sysname)


@contextmanager
def on_interface(name: str | None) -> Iterator[None]:
    """Restrict gloo and NCCL to one interface within this context, unless the user has chosen one.

    If ``name`` is None, gloo and NCCL choose an interface. Gloo then uses the address of the host name.
    """
    wanted = {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"} if name else {}
    added = {variable: value for variable, value in wanted.items() if variable not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for variable in added:
            os.environ.pop(variable, None)


def ranks_store(address: str, port: int, rank: int, alone: bool, timeout: timedelta) -> dist.Store:
    """Open the ranks' store on rank 0, or connect to it on the other ranks."""
    if alone:
        address = "127.0.0.1"
    if rank:
        return join_store(address, port, timeout)
    return open_store(address if alone else network.own_address(address), port, timeout)


def meet(outer: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.Store:
    """Return a part of the store ``outer`` that only the ranks of this start use.

    A launcher's store outlives the ranks, and values of an earlier start must not be mistaken for those of
    this one. No variable identifies a start, because agents on several machines count restarts differently.
    Therefore, every rank writes a random word, and rank 0 lists all words. A list in which every rank finds
    its word identifies the start.
    """
    store = job_store(outer)
    word, until = uuid.uuid4().hex, time.monotonic() + timeout.total_seconds()
    store.set(f"word/{rank}", word)
    words: list[str] = []
    while time.monotonic() < until:
        if rank == 0:
            words = [_read(store, f"word/{other}") for other in range(size)]
            store.set("words", " ".join(words))
            if refused := _read(store, f"refused/{word}"):
                raise UserError(refused)
        else:
            words = _read(store, "words").split(" ")
        if words[rank : rank + 1] == [word]:
            if len(words) != size:  # a list without this rank's word may have any length
                refused = (
                    f"WORLD_SIZE is {len(words)} on rank 0, but {size} on rank {rank}; expected the same "
                    "number on all ranks; start all ranks with one launcher"
                )
                store.set(f"refused/{words[0]}", refused)
                raise UserError(refused)
            name = uuid.uuid5(uuid.NAMESPACE_OID, " ".join(words)).hex
            store.set(f"{name}/{rank}", "here")
            if store.check([f"{name}/{other}" for other in range(size)]):
                return dist.PrefixStore(name, store)
        time.sleep(_POLL)
    missing = [str(other) for other in range(size) if not _read(store, f"word/{other}")]
    others = f"rank{'s' * (len(missing) > 1)} {', '.join(missing)}" if missing else "the other ranks"
    raise dist.DistStoreError(f"rank {rank} timed out while waiting for {others}")


def job_store(outer: dist.Store) -> dist.Store:
    """Return the part of a launcher's store that belongs to this job, including all of its starts."""
    name = f"rankless/{os.environ.get('TORCHELASTIC_RUN_ID', '')}"
    return dist.PrefixStore(name, signed_store(innermost_store(outer)))


def private_store(shared: dist.Store, rank: int, size: int) -> dist.FileStore:
    """Return a file store for ranks on one machine, in a folder that only the user can enter.

    Rank 0 writes the file's path to ``shared``, a store to which other users may also write.
    """
    if rank:
        file = Path(os.fsdecode(shared.get("file")))
    else:
        file = _private_file()
        remove_at_exit(file.parent)
        shared.set("file", os.fsencode(file))  # type: ignore[arg-type]
    if not _is_ours(file):
        raise UserError(
            f"the ranks cannot connect through {file}, because it is not a private file of this user in "
            f"{' or '.join(_places())}; set TMPDIR to the same folder on a local disk for all ranks (if it "
            "is already the same, another user of the machine has written to the launcher's store)"
        )
    return dist.FileStore(str(file), size)


def _is_ours(file: Path) -> bool:
    """Check whether a file may have been created by :func:`_private_file` for this user."""
    folder = file.parent
    named = folder.parent in map(Path, _places()) and folder.name.startswith(_PREFIX) and file.name == _FILE
    return named and is_private(folder)


def _read(store: dist.Store, key: str) -> str:
    return store.get(key).decode(errors="replace") if store.check([key]) else ""
