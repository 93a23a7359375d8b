"""Scan the files of a data set in chunks and in several processes.

Results are cached as arrays and JSON, never as pickles. The name of a cached result is a hash of everything
that it depends on. An interrupted scan therefore continues where it stopped, and a changed file invalidates
only its own chunk.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import PIL

from rankless.data.images import image_file
from rankless.data.index.file_states import state, touched_since
from rankless.data.index.findings import Findings
from rankless.data.index.raw import Raw, RawBuilder, joined
from rankless.errors import UserError
from rankless.files.cache_folder import private_folder
from rankless.files.writing import beside
from rankless.hardware.cores import usable_cores
from rankless.printing import ProgressBar

Item = tuple[str, ...]
Work = Callable[[list[Item]], Raw]

_REST = "rest"  # everything except the arrays, as JSON
TICK = 20_000_000  # Resolution of file times in nanoseconds. Changes within this time may get the same time.
CHUNK = 2000
FEW = 4  # minimum number of chunks for which starting other processes saves time
_MOST = 16  # maximum number of processes; more processes do not speed up a disk and use memory

_store: ContextVar[Path | None] = ContextVar("store", default=None)


@contextlib.contextmanager
def storing_in(folder: Path) -> Iterator[None]:
    """Inside the context, cache the results of scans in ``folder`` and reuse valid results."""
    before = _store.set(folder)
    try:
        yield
    finally:
        _store.reset(before)


def storage() -> Path:
    """Return a folder for copies of images that is kept as long as the annotations."""
    store = _store.get()
    return store.parent if store is not None else private_folder()


def scan(
    work: Callable[[list[tuple[str, ...]]], Raw],
    items: Sequence[tuple[str, ...]],
    what: str,
    *,
    chunk: int = CHUNK,
    processes: int | None = None,
) -> Raw:
    """Apply ``work`` to all items and return the joined results in the order of the items.

    Args:
        work: a module-level function that converts a list of items to a part of the split.
        items: tuples of related files, such as (image, label file), possibly followed by other arguments of
            ``work``. A cached result is valid until one of its files changes.
        what: a plural noun for the progress bar, such as ``images``.
        chunk: approximate number of items per chunk.
        processes: number of processes. Default: one per core, at most 16.
    """
    parts = list(chunks(items, chunk))
    if len(parts) < FEW:
        return joined([work(part) for part in parts or [[]]])
    cores = min(usable_cores(), _MOST) if processes is None else processes
    store = _store.get()
    if store is not None:
        try:
            return _scan_parts(work, parts, store, cores, what)
        except NotStored as error:
            print(f"the results of reading {what} cannot be cached: {error}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="rankless-scan-") as folder:
        try:
            return _scan_parts(work, parts, Path(folder), cores, what)
        except NotStored as error:
            raise UserError(
                f"the results of reading {what} cannot be stored ({error}); set RANKLESS_CACHE or TMPDIR to "
                "a writable folder with enough space"
            ) from error


def _scan_parts(work: Work, parts: list[list[Item]], store: Path, processes: int, what: str) -> Raw:
    with ProgressBar(sum(map(len, parts)), f"reading {what}") as progress:
        if processes > 1:
            files = _in_processes(work, parts, store, min(processes, len(parts)), progress)
        else:
            files = []
            for part in parts:
                files.append(read_chunk(work, part, store))
                progress.advance(len(part))
        return joined([load(store / file) for file in files])


def _in_processes(
    work: Work, parts: list[list[Item]], store: Path, processes: int, progress: ProgressBar
) -> list[str]:
    files = [""] * len(parts)
    job = {
        "work": f"{work.__module__}:{work.__qualname__}",
        "chunks": parts,
        "store": os.fspath(store),
        "processes": processes,
    }
    with tempfile.NamedTemporaryFile("w", prefix="rankless-job-", suffix=".json", encoding="utf-8") as file:
        json.dump(job, file)
        file.flush()
        with _start_worker(file.name) as process:
            for text in process.stdout or ():  # a pipe
                report = msgspec.json.decode(text, type=Report)
                if report.chunk < 0:
                    raise _error(report)
                files[report.chunk] = report.file
                progress.advance(len(parts[report.chunk]))
            if process.wait():
                raise _error(Report())
    return files


@contextlib.contextmanager
def _start_worker(job: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start the worker in its own process group, and kill the group on exit."""
    paths = os.pathsep.join(path for path in sys.path if path)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "rankless.data.index.scan_worker", job, str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        start_new_session=True,  # the worker does not receive Ctrl-C
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout:
            process.stdout.close()


def _error(report: Report) -> Exception:
    if report.full:
        return NotStored(report.full)
    if report.problems:
        return UserError(report.problems)
    if report.trace:
        return RuntimeError(f"reading the data failed:\n{report.trace}")
    return UserError(
        "a process that was reading the data was killed, probably because memory ran out; start again to "
        "continue with the cached results"
    )


def with_headers(raw: Raw) -> Raw:
    """Fill in the image sizes from the image headers. Unreadable images are reported."""
    for number, file in enumerate(raw.paths):
        raw.sizes[number] = size(file, file, raw.findings)
    return raw


def size(source: image_file.Source, path: str, findings: Findings) -> tuple[int, int]:
    """Return the (height, width) from an image header; report an unreadable image and return 0, 0 for it."""
    try:
        header = image_file.header(source, name=path)
    except image_file.UnreadableImage as error:
        findings.add("unreadable image", path, error.reason)
        return 0, 0
    if header.contradicts(path):
        findings.add("other format", path, f"the format is {header.format}")
    if header.unknown:
        findings.add("unknown range", path, f"{header.unknown}; {image_file.GIVE_RANGE}")
    return header.size


def with_sizes(raw: Raw) -> Raw:
    """Fill in the image sizes in chunks, for a format with a single annotation file."""
    scanned = scan(_images_alone, [(file,) for file in raw.paths], "images")
    raw.sizes = scanned.sizes
    raw.findings.update(scanned.findings)
    return raw


def _images_alone(items: list[tuple[str, ...]]) -> Raw:
    made = RawBuilder()
    for (file,) in items:
        made.add_image(file)
    return with_headers(made.raw())


class Report(msgspec.Struct, omit_defaults=True):
    """A message from the worker process: a finished chunk, or the reason why the worker stopped."""

    chunk: int = -1  # number of the finished chunk; -1 if the worker stopped
    file: str = ""  # name of the result file
    problems: list[str] = []  # errors in the data
    full: str = ""  # the reason why results cannot be stored
    trace: str = ""  # traceback of any other error


class NotStored(Exception):  # noqa: N818 - the data is fine
    """Raised when the result of a chunk cannot be stored."""


@cache
def reader_version() -> str:
    """Return a hash of the code that reads data, which invalidates caches when the code changes."""
    data = Path(__file__).parents[1]
    digest = hashlib.sha256(PIL.__version__.encode())
    for page in sorted(
        [*data.glob("formats/*.py"), *data.glob("index/*.py"), data / "images" / "image_file.py"]
    ):
        digest.update(page.read_bytes())
    return digest.hexdigest()[:32]


def chunks(items: Sequence[Item], about: int) -> Iterator[list[Item]]:
    """Divide items into chunks of approximately ``about`` items, in order.

    A hash of an item determines whether it starts a chunk, so adding or removing a file does not move the
    boundaries of other chunks.
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
    """Compute ``work(items)`` unless it is cached, and return the name of the result file in ``store``."""
    before = [state(name) for item in items for name in item]
    asked = json.dumps([reader_version(), work.__module__, work.__qualname__, items, before])
    path = store / f"{hashlib.sha256(asked.encode()).hexdigest()[:40]}.npz"
    if path.exists():
        try:
            load(path)
        except (OSError, ValueError, KeyError, TypeError, EOFError):
            path.unlink(missing_ok=True)  # truncated
        else:
            os.utime(path)
            return path.name
    started = time.time_ns() - TICK
    made = work(items)
    names = [name for item in items for name in item]
    if [state(name) for name in names] != before or touched_since(names, started):
        path = path.with_name(f"once-{path.name}")  # for this scan only
    try:
        save(made, path)
    except OSError as error:
        raise NotStored(f"{store}: {error.strerror or error}") from error
    return path.name


def remove_others(store: Path, moment: float) -> None:
    """Remove temporary files, and results that have not been used since ``moment``."""
    for path in store.iterdir():
        if path.name.startswith((".", "once-")) or path.stat().st_mtime < moment:
            path.unlink(missing_ok=True)


def save(raw: Raw, path: Path) -> None:
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
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            arrays: dict[str, Any] = {name: file[name] for name in file.files}
    except zipfile.BadZipFile as error:  # checksums detect damage
        raise ValueError(f"{path} is damaged: {error}") from error
    rest = json.loads(arrays.pop(_REST).tobytes())
    rest["findings"] = Findings.from_json(rest["findings"])
    return Raw(**arrays, **rest)
