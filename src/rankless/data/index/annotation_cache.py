"""Cache annotations on disk until one of their source files changes.

If several processes open a data set at the same time, one of them reads it, and the others wait for the
result. Every result has its own folder, so a newer result does not affect processes that use an older one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from rankless.data.index.annotations import Annotations
from rankless.data.index.byte_ranges import COPY, ORIGINAL, file_of
from rankless.data.index.file_states import changed_file, save_states, state, touched_since
from rankless.data.index.scan import TICK, reader_version, remove_others, storing_in
from rankless.errors import UserError
from rankless.files.cache_folder import cache_folder, locked, private_folder, remove_unheld, remove_unused
from rankless.files.writing import flush, write_atomically
from rankless.hardware.cores import usable_cores
from rankless.printing import say

_CURRENT, _ENTRY, _CHUNKS, _BUILDING = "current.json", "entry.json", "chunks", "building-"
_NOT_WHOLE = (OSError, ValueError, KeyError, TypeError, EOFError, UserError)
_TRIES = 3

State = tuple[int, int]
Read = Callable[[], tuple[Annotations, list[str]]]


def cached(root: str, split: str, format: str, read: Read, *, rescan: bool = False) -> Annotations:
    """Return the result of ``read``, from the cache if no source file has changed.

    Args:
        root, split, format: absolute path of the data set, name of the split and name of the format, which
            together form the cache key.
        read: a function that returns the annotations and the files and folders that they depend on.
        rescan: whether to read the data again even if it seems unchanged.
    """
    key = hashlib.sha256(json.dumps([root, split, format]).encode()).hexdigest()[:32]
    store = cache_folder() / "annotations" / key
    if not rescan and (annotations := _load_valid(store)):
        return annotations
    with ExitStack() as stack:
        try:
            stack.enter_context(
                locked(store, lambda: say(f"waiting for another process to read {root}", file=sys.stderr))
            )
            _clear(store, rescan)
        except OSError as error:
            made, *_ = _read_unchanged(root, read)
            return _store_privately(made, f"{store.parent} cannot be written to ({error.strerror or error})")
        if not rescan and (annotations := _load_valid(store)):  # written while this process waited
            return annotations
        started = time.time()
        with storing_in(store / _CHUNKS):
            made, depends, states = _read_unchanged(root, read)
        try:
            annotations = _publish(store, made, depends, states)
            remove_others(store / _CHUNKS, started - 1)
        except OSError as error:
            return _store_privately(
                made, f"{store.parent} does not have enough space ({error.strerror or error})"
            )
    with suppress(OSError):
        remove_unused(store.parent, _CURRENT)
    return annotations


def forget(annotations: Annotations) -> None:
    """Delete the cached annotations, so that the data set is read again when it is next opened."""
    if annotations.folder is not None:
        with suppress(OSError):
            Path(annotations.folder, _ENTRY).unlink()


def _load_valid(store: Path) -> Annotations | None:
    try:
        current = store / _CURRENT
        folder = store / json.loads(current.read_text(encoding="utf-8"))["entry"]
        if json.loads((folder / _ENTRY).read_text(encoding="utf-8"))["reader"] != reader_version():
            return None
        annotations = Annotations.load(folder)
        if changed_file(os.fspath(folder), usable_cores()):
            return None
    except _NOT_WHOLE:
        return None
    with suppress(OSError):
        os.utime(current)
    return annotations


def _read_unchanged(root: str, read: Read) -> tuple[Annotations, list[str], list[State]]:
    """Repeat ``read`` until no source file changes while it runs; return its result and the file states."""
    changed = ""
    for _ in range(_TRIES):
        time.sleep(TICK / 1e9)  # later changes must get a later time
        started = time.time_ns() - TICK // 2
        made, depends = read()
        depends = list(dict.fromkeys([root, *depends]))
        states = [state(path) for path in depends]
        changed = touched_since(depends, started)  # must come last, so that no change is missed
        if not changed:
            return made, depends, states
    raise UserError(
        f"{root}: {changed} changed during all {_TRIES} attempts to read the data; wait until no program "
        "changes it, and start again"
    )


def _clear(store: Path, rescan: bool) -> None:
    """Remove incomplete entries; with ``rescan``, also invalidate complete entries and chunks."""
    for left in store.glob(f"{_BUILDING}*"):
        shutil.rmtree(left, ignore_errors=True)
    if rescan:
        shutil.rmtree(store / _CHUNKS, ignore_errors=True)
        (store / _CURRENT).unlink(missing_ok=True)
    (store / _CHUNKS).mkdir(exist_ok=True)


def _publish(store: Path, made: Annotations, depends: list[str], states: list[State]) -> Annotations:
    """Store annotations as the newest entry of the locked ``store``, and delete unused older entries."""
    building = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=store))
    try:
        made.save(building)
        save_states(os.fspath(building), depends, states)
        (building / _ENTRY).write_text(json.dumps({"reader": reader_version()}), encoding="utf-8")
        for file in building.iterdir():
            flush(file)
        folder = store / building.name.replace(_BUILDING, "entry-", 1)
        building.rename(folder)
        write_atomically(store / _CURRENT, json.dumps({"entry": folder.name}))
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    annotations = Annotations.load(folder)  # locks the folder
    others = [other for other in store.glob("entry-*") if other != folder]
    for other in others:
        remove_unheld(other)
    copies = list(store.glob(f"{COPY}*"))
    if copies and not any(other.exists() for other in others):
        used = set(map(file_of, annotations.paths()))
        for copy in copies:
            if os.fspath(copy).removesuffix(ORIGINAL) not in used:
                copy.unlink(missing_ok=True)
    return annotations


def _store_privately(made: Annotations, why: str) -> Annotations:
    made = replace(
        made,
        about=(*made.about, f"the annotations are not cached: {why}; set RANKLESS_CACHE to another folder"),
    )
    try:
        folder = private_folder()
        made.save(folder)
        return Annotations.load(folder)
    except OSError:
        return made
