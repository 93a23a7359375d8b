"""Results of scanning one chunk of files, saved as arrays and JSON, never as a pickle.

A result's file name is a hash of everything that the result depends on. A killed scan therefore continues
where it stopped, and a changed file invalidates only its own chunk.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import PIL

from rankless.data.index.file_states import state, touched_since
from rankless.data.index.findings import Findings
from rankless.data.index.raw import Raw
from rankless.files.writing import beside

Item = tuple[str, ...]
Work = Callable[[list[Item]], Raw]

_REST = "rest"  # everything except the arrays, as JSON
TICK = 20_000_000
"""Nanoseconds in which a file can change twice with the same time: the clock that stamps files is slow."""


class Report(msgspec.Struct, omit_defaults=True):
    """A message from the scan's worker process: a finished chunk, or the reason why the worker ended.

    Attributes:
        chunk: number of the chunk; -1 if the worker ended.
        file: path of the cached result.
        problems: errors in the data.
        full: the reason why nothing more can be stored.
        trace: traceback of any other error.
    """

    chunk: int = -1
    file: str = ""
    problems: list[str] = []
    full: str = ""
    trace: str = ""


class NotStored(Exception):  # noqa: N818 - the data is fine
    """A chunk cannot be saved because there is no space."""


@cache
def reader_version() -> str:
    """Return a hash of the code that reads data, so that a change of the code invalidates caches."""
    data = Path(__file__).parents[1]
    digest = hashlib.sha256(PIL.__version__.encode())
    for page in sorted(
        [*data.glob("formats/*.py"), *data.glob("index/*.py"), data / "images" / "image_file.py"]
    ):
        digest.update(page.read_bytes())
    return digest.hexdigest()[:32]


def chunks(items: Sequence[Item], about: int) -> Iterator[list[Item]]:
    """Yield ``items`` in order, in chunks of about ``about`` items.

    A hash of an item decides whether it starts a chunk, so adding or removing a file does not move other
    chunks' boundaries.
    """
    start = 0
    for number, item in enumerate(items):
        begins = number > start and zlib.crc32(os.fsencode(item[0])) % about == 0
        if begins or number - start >= 4 * about:
            yield list(items[start:number])
            start = number
    if start < len(items):
        yield list(items[start:])


def read_chunk(work: Work, items: list[Item], store: Path) -> str:
    """Return the file in ``store`` that holds ``work(items)``; compute it if it does not exist."""
    before = [state(name) for item in items for name in item]
    asked = json.dumps([reader_version(), work.__module__, work.__qualname__, items, before])
    path = store / f"{hashlib.sha256(asked.encode()).hexdigest()[:40]}.npz"
    if path.exists():
        try:
            load(path)
        except (OSError, ValueError, KeyError, TypeError, EOFError):
            path.unlink(missing_ok=True)  # a truncated file
        else:
            os.utime(path)
            return path.name
    started = time.time_ns() - TICK
    made = work(items)
    names = [name for item in items for name in item]
    if [state(name) for name in names] != before or touched_since(names, started):
        path = path.with_name(f"once-{path.name}")  # kept only for this scan
    try:
        save(made, path)
    except OSError as error:
        raise NotStored(f"{store}: {error.strerror or error}") from error
    return path.name


def remove_others(store: Path, moment: float) -> None:
    """Remove temporary files, and results that no scan has created or used since ``moment``."""
    for path in store.iterdir():
        if path.name.startswith((".", "once-")) or path.stat().st_mtime < moment:
            path.unlink(missing_ok=True)


def save(raw: Raw, path: Path) -> None:
    """Write ``raw`` atomically."""
    arrays: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for each in fields(Raw):
        value = getattr(raw, each.name)
        if isinstance(value, np.ndarray):
            arrays[each.name] = value
        else:
            rest[each.name] = value.as_json() if isinstance(value, Findings) else value
    arrays[_REST] = np.frombuffer(json.dumps(rest, default=list).encode(), np.uint8)
    with beside(path, durable=False) as part, part.open("wb") as file:
        np.savez(file, **arrays)


def load(path: Path) -> Raw:
    """Load a result written by :func:`save`."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            arrays: dict[str, Any] = {name: file[name] for name in file.files}
    except zipfile.BadZipFile as error:  # a zip file has checksums
        raise ValueError(f"{path} is damaged: {error}") from error
    rest = json.loads(arrays.pop(_REST).tobytes())
    rest["findings"] = Findings.from_json(rest["findings"])
    return Raw(**arrays, **rest)


def named(work: str) -> Work:
    """Return the function named by ``module:name``."""
    module, name = work.split(":")
    made: Work = getattr(importlib.import_module(module), name)
    return made
