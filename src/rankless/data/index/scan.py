"""Scan of all files of a data set: in chunks, in several processes, and resumable after a kill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path

import msgspec

from rankless.data.images import image_file
from rankless.data.index.findings import Findings
from rankless.data.index.raw import Raw, RawBuilder, joined
from rankless.data.index.scan_chunks import Item, NotStored, Report, Work, chunks, load, read_chunk
from rankless.errors import UserError
from rankless.files.cache_folder import private_folder
from rankless.hardware.cores import usable_cores
from rankless.printing import ProgressBar

CHUNK = 2000
FEW = 4
"""Fewer chunks than this are read at once in this process; starting others would take longer."""
_MOST = 16  # more processes do not speed up a disk, and each takes memory

_store: ContextVar[Path | None] = ContextVar("store", default=None)


@contextlib.contextmanager
def storing_in(folder: Path) -> Iterator[None]:
    """Cache the chunks of scans within the block in ``folder``, and reuse chunks that are still valid."""
    before = _store.set(folder)
    try:
        yield
    finally:
        _store.reset(before)


def storage() -> Path:
    """Return a folder for copies of images, which exists as long as the annotations being read."""
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
    """Return the joined results of ``work`` on all items, in the items' order.

    Args:
        work: a module-level function that converts a list of items to a part of the split.
        items: tuples of related files, such as (image, label file), plus anything else the work needs. A
            cached result is valid until one of its files changes.
        what: a plural noun for the progress bar, such as ``images``.
        chunk: approximate number of items per chunk; lower it if an item takes long.
        processes: number of processes; None means one per core.
    """
    parts = list(chunks(items, chunk))
    if len(parts) < FEW:
        return joined([work(part) for part in parts or [[]]])
    cores = min(usable_cores(), _MOST) if processes is None else processes
    store = _store.get()
    if store is not None:
        try:
            return _scanned(work, parts, store, cores, what)
        except NotStored as error:
            print(f"what is read of the {what} cannot be cached: {error}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="rankless-scan-") as folder:
        try:
            return _scanned(work, parts, Path(folder), cores, what)
        except NotStored as error:
            raise UserError(
                f"what is read of the {what} cannot be stored ({error}); set RANKLESS_CACHE or TMPDIR to a "
                "folder that has room and that this user may write to"
            ) from error


def _scanned(work: Work, parts: list[list[Item]], store: Path, processes: int, what: str) -> Raw:
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
    work: Work,
    parts: list[list[Item]],
    store: Path,
    processes: int,
    progress: ProgressBar,
) -> list[str]:
    """Return the result files of all parts, produced by :mod:`rankless.data.index.scan_worker`."""
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
        with _started(file.name) as process:
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
def _started(job: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start the worker in its own process group, and kill the group on leaving the context."""
    paths = os.pathsep.join(path for path in sys.path if path)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "rankless.data.index.scan_worker", job, str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        start_new_session=True,  # only this process receives Ctrl-C; it ends the others
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
        "a process that reads the data was killed (out of memory?); start again: what was read already is "
        "cached"
    )


def with_headers(raw: Raw) -> Raw:
    """Read the images' sizes from their headers; report unreadable images and leave their sizes 0, 0."""
    for number, file in enumerate(raw.paths):
        raw.sizes[number] = size(file, file, raw.findings)
    return raw


def size(source: image_file.Source, path: str, findings: Findings) -> tuple[int, int]:
    """Return height and width from an image's header, and add any problem to the findings.

    Returns:
        0, 0 for an unreadable image.
    """
    try:
        header = image_file.header(source, name=path)
    except image_file.UnreadableImage as error:
        findings.add("unreadable image", path, error.reason)
        return 0, 0
    if header.contradicts(path):
        findings.add("other format", path, f"it is {header.format}")
    return header.size


def with_sizes(raw: Raw) -> Raw:
    """Run :func:`with_headers` in chunks, for formats that keep all annotations in one file."""
    scanned = scan(_images_alone, [(file,) for file in raw.paths], "images")
    raw.sizes = scanned.sizes
    raw.findings.update(scanned.findings)
    return raw


def _images_alone(items: list[tuple[str, ...]]) -> Raw:
    made = RawBuilder()
    for (file,) in items:
        made.add_image(file)
    return with_headers(made.raw())
