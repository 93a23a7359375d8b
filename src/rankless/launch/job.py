"""Files that a launcher and its ranks exchange: the job, and notes about how each rank ended.

They are in a private folder. For training, the folder is in the run directory, because the system's temporary
folder may be cleaned during a long run.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rankless.errors import TaskError, UserError, nearest, one_of
from rankless.files.writing import remove_tree

if TYPE_CHECKING:
    from rankless.recipe.schema import Recipe

LEFT_OUT = 76  # exit code of a rank whose device computed wrong results and must not be used again
JOB = ".job"  # folder in a run directory
_NOTE = 8192  # bytes
_PARALLEL = ("processes", "threads")


def check_parallel(kind: str) -> None:
    if kind not in _PARALLEL:
        raise UserError(f"--parallel is '{kind}': expected {one_of(_PARALLEL)}{nearest(kind, _PARALLEL)}")


DRY_RUN_IMAGES = 32


@dataclass(frozen=True)
class Job:
    """The work that a launcher gives its ranks."""

    verb: str  # train or evaluate
    recipe: str  # JSON, with the precision resolved
    logs: str
    run: str = ""  # resumed from its newest checkpoint if it has one
    dry_run_steps: int = 0  # 0 for a real run
    dry_run_images: int = DRY_RUN_IMAGES  # images per evaluation of a dry run; 0 evaluates nothing
    traced: bool = False  # whether to write digests of every tensor after each step
    weights: str = ""  # file to evaluate
    launched: dict[str, Any] = field(default_factory=dict)  # time and command of this start
    sinks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Wanted:
    """The user's options for training with the ranks of another launcher, or on several hosts."""

    recipe: Recipe | None  # None: that of the run to resume, which may be on another machine, with overrides
    name: str  # of a new run
    devices: int | None = None  # ranks of another launcher, or devices of hosts that specify no number
    run: Path | None = None
    resume: bool = False
    sinks: Sequence[str] = ()
    overrides: Sequence[str] = ()
    least: int = 1  # number of hosts to continue with when others are lost
    dry_run_steps: int = 0  # 0 for a real run


@dataclass(frozen=True)
class Place:
    """The position of one machine's ranks among all ranks."""

    first: int  # number of the first rank on this machine
    size: int  # number of ranks on all machines
    address: str  # of the store where the ranks meet
    port: int


@contextmanager
def job_folder(run: Path | None, first: int = 0) -> Iterator[Path]:
    """Create a private folder for a job and its notes, and remove it at the end.

    The folder is in the locked run directory ``run``, or in the system's temporary folder if ``run`` is None.
    ``first``, the number of this machine's first rank, distinguishes machines that share a run directory.
    """
    if run is None:
        with tempfile.TemporaryDirectory(prefix="rankless-") as scratch:
            yield Path(scratch)
        return
    folder = run / (f"{JOB}-{first}" if first else JOB)
    remove_tree(folder)  # left by a launcher that was killed
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        remove_tree(folder)


def write_job(job: Job, folder: Path) -> Path:
    """Write a job into ``folder`` and return the file's path."""
    path = folder / "job.json"
    path.write_text(json.dumps(asdict(job)), encoding="utf-8")
    return path


def log_of(logs: Path, rank: int) -> Path:
    return logs / f"rank-{rank}.log"


def read_job(path: Path) -> Job:
    return Job(**json.loads(path.read_text(encoding="utf-8")))


def reserve_note(path: Path, rank: int) -> None:
    """Reserve disk space for :func:`leave_note`, because the disk may be full when a rank ends."""
    with suppress(OSError):  # leave_note then tries without the reserved space
        path.with_name(f".note-{rank}").write_bytes(b" " * _NOTE)


def leave_note(path: Path, rank: int, note: dict[str, Any]) -> None:
    """Write a note about how a rank ended into the job's folder."""
    beside = path.with_name(f".note-{rank}")
    with beside.open("r+b" if beside.exists() else "wb") as file:
        file.write(json.dumps(note).encode())
        file.truncate()
    beside.replace(path.with_name(f"note-{rank}.json"))


def read_notes(path: Path) -> list[dict[str, Any]]:
    """Return the notes in the job's folder in the order of the ranks."""
    notes = sorted(path.parent.glob("note-*.json"))
    return [json.loads(note.read_text(encoding="utf-8")) for note in notes]


def error_in(notes: Sequence[dict[str, Any]]) -> UserError | None:
    """Return the error reported in the ranks' notes, or None if there is none."""
    failed = [note for note in notes if note.get("problems")]
    for note in failed:
        if note.get("once"):
            return (TaskError if note["exit"] == TaskError.exit_code else UserError)(note["problems"])
    if not failed:
        return None
    return UserError(dict.fromkeys(sentence for note in failed for sentence in note["problems"]))


def leave_cause(path: Path, rank: int, text: str) -> None:
    """Record why a rank is about to exit with an error that a restart may fix."""
    with suppress(OSError):  # otherwise only the rank's exit code is known
        path.with_name(f"cause-{rank}").write_text(text, encoding="utf-8")


class Pulse(NamedTuple):
    """The progress of a rank."""

    begun: int  # increases whenever the rank starts new work
    allowed: float | None  # seconds that the current work may take; None while waiting for other ranks
    doing: str


def leave_pulse(path: Path, rank: int, begun: int, allowed: float | None, doing: str) -> None:
    """Write the pulse of a rank; if that fails, remove the old pulse."""
    pulse = path.with_name(f"pulse-{rank}")
    try:
        pulse.write_text(json.dumps([os.getpid(), begun, allowed, doing]), encoding="utf-8")
    except OSError:  # a full disk
        with suppress(OSError):
            pulse.unlink()


def read_pulse(path: Path, rank: int, process: int) -> Pulse | None:
    """Return the pulse of a rank, or None if it is missing, incomplete, or not from ``process``."""
    try:
        pid, *fields = json.loads(path.with_name(f"pulse-{rank}").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return Pulse(*fields) if pid == process else None


def take_cause(path: Path, rank: int) -> str | None:
    """Return and remove the cause recorded by :func:`leave_cause`, or return None if there is none."""
    cause = path.with_name(f"cause-{rank}")
    try:
        text = cause.read_text(encoding="utf-8")
        cause.unlink()
    except OSError:
        return None
    return text
