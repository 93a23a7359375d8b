"""The job that a launcher gives its ranks, and the notes that the ranks leave, as JSON files.

A private folder with these files is all that launchers and ranks share. For training, it is in the run
directory, because the system's temporary folder may be cleaned during a long run.
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

LEFT_OUT = 76
"""Exit code of a rank whose device computed wrong results and must not be used again."""
_NOTE = 8192  # bytes

JOB = ".job"
"""Name of the job folder in a run directory."""

_PARALLEL = ("processes", "threads")


def check_parallel(kind: str) -> None:
    """Raise a UserError if ``kind`` is neither ``processes`` nor ``threads``."""
    if kind not in _PARALLEL:
        raise UserError(f"--parallel is '{kind}': expected {one_of(_PARALLEL)}{nearest(kind, _PARALLEL)}")


DRY_RUN_IMAGES = 32


@dataclass(frozen=True)
class Job:
    """The work that a launcher gives its ranks.

    Attributes:
        verb: ``train`` or ``evaluate``.
        recipe: recipe as JSON, with its precision resolved.
        logs: folder of the ranks' logs.
        run: run directory, resumed from its newest checkpoint if it has one (``train``).
        dry_run_steps: number of steps of a dry run; 0 for a real run (``train``).
        dry_run_images: number of images that an evaluation of a dry run uses; 0 for none (``train``).
        traced: whether to write digests of every tensor after each step (``train``).
        weights: weights file (``evaluate``).
        launched: time and command of this start (``train``).
        sinks: names of the user's sinks (``train``).
    """

    verb: str
    recipe: str
    logs: str
    run: str = ""
    dry_run_steps: int = 0
    dry_run_images: int = DRY_RUN_IMAGES
    traced: bool = False
    weights: str = ""
    launched: dict[str, Any] = field(default_factory=dict)
    sinks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Wanted:
    """The user's options for training with the ranks of another launcher, or on several hosts.

    Attributes:
        recipe: recipe; None uses the recipe of the run to resume, which may be on another machine, with
            ``overrides``.
        name: name of a new run.
        devices: expected number of ranks from another launcher, or number of devices on hosts that do not
            specify one; None accepts any number, or uses all devices.
        run: run directory; None chooses one.
        sinks: names of the user's sinks.
        least: minimum number of hosts with which to continue when others are lost.
        dry_run_steps: number of steps of a dry run, which prints and saves nothing; 0 for a real run.
    """

    recipe: Recipe | None
    name: str
    devices: int | None = None
    run: Path | None = None
    resume: bool = False
    sinks: Sequence[str] = ()
    overrides: Sequence[str] = ()
    least: int = 1
    dry_run_steps: int = 0


@dataclass(frozen=True)
class Place:
    """The position of one machine's ranks among the ranks of several machines.

    Attributes:
        first: number of the first rank on this machine.
        size: number of ranks on all machines.
        address, port: address and port of the store where the ranks meet.
    """

    first: int
    size: int
    address: str
    port: int


@contextmanager
def job_folder(run: Path | None, first: int = 0) -> Iterator[Path]:
    """Create a private folder (mode 0700) for a job and its notes, and remove it at the end.

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
    """Return the path of a rank's log."""
    return logs / f"rank-{rank}.log"


def read_job(path: Path) -> Job:
    """Read a job that :func:`write_job` wrote."""
    return Job(**json.loads(path.read_text(encoding="utf-8")))


def reserve_note(path: Path, rank: int) -> None:
    """Reserve disk space for :func:`leave_note`, because the disk may be full by then."""
    with suppress(OSError):  # leave_note then tries without the reserved space
        path.with_name(f".note-{rank}").write_bytes(b" " * _NOTE)


def leave_note(path: Path, rank: int, note: dict[str, Any]) -> None:
    """Write a note about how a rank ended into the folder of the job at ``path``."""
    beside = path.with_name(f".note-{rank}")
    with beside.open("r+b" if beside.exists() else "wb") as file:
        file.write(json.dumps(note).encode())
        file.truncate()
    beside.replace(path.with_name(f"note-{rank}.json"))


def read_notes(path: Path) -> list[dict[str, Any]]:
    """Read the notes in the folder of the job at ``path``, starting with rank 0."""
    notes = sorted(path.parent.glob("note-*.json"))
    return [json.loads(note.read_text(encoding="utf-8")) for note in notes]


def error_in(notes: Sequence[dict[str, Any]]) -> UserError | None:
    """Return the error that the notes of the ranks report, or None if there is none."""
    failed = [note for note in notes if note.get("problems")]
    for note in failed:
        if note.get("once"):
            return (TaskError if note["exit"] == TaskError.exit_code else UserError)(note["problems"])
    if not failed:
        return None
    return UserError(dict.fromkeys(sentence for note in failed for sentence in note["problems"]))


def leave_cause(path: Path, rank: int, text: str) -> None:
    """Record the reason why a rank is about to exit with an error that a restart may fix."""
    with suppress(OSError):  # otherwise only the rank's exit code is known
        path.with_name(f"cause-{rank}").write_text(text, encoding="utf-8")


class Pulse(NamedTuple):
    """The progress of a rank.

    Attributes:
        begun: number that increases whenever the rank starts new work.
        allowed: seconds that the current work may take; None while the rank waits for others.
        doing: description of the current work.
    """

    begun: int
    allowed: float | None
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
    """Remove and return the cause that a rank recorded with :func:`leave_cause`, if there is one."""
    cause = path.with_name(f"cause-{rank}")
    try:
        text = cause.read_text(encoding="utf-8")
        cause.unlink()
    except OSError:
        return None
    return text
