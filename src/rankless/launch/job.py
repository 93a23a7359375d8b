"""What a launcher asks of its ranks, and how they answer: a job and notes, as JSON in a private folder.

Launchers and ranks have nothing else in common. A training's folder lies in its run directory: the system's
folder for temporary files is swept while long runs last.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rankless.errors import TaskError, UserError
from rankless.files.writing import remove_tree

LOST_PEER = 75
"""Exit code of a rank that only missed another one."""
_NOTE = 8192  # bytes

JOB = ".job"
"""The folder of a training's job in its run directory."""


@dataclass(frozen=True)
class Job:
    """What is to be done.

    Attributes:
        verb: ``train`` or ``evaluate``.
        recipe: the recipe as JSON, its precision resolved.
        logs: the folder of the ranks' logs.
        run: the run directory, gone on with from its newest checkpoint where it has one (train).
        dry_run_steps: end after so many steps (train); 0 is a real run.
        traced: write digests of every tensor after each step (train).
        weights: the weights file (evaluate).
        launched: when this start was, and with which command (train).
        sinks: names of the user's sinks (train).
    """

    verb: str
    recipe: str
    logs: str
    run: str = ""
    dry_run_steps: int = 0
    traced: bool = False
    weights: str = ""
    launched: dict[str, Any] = field(default_factory=dict)
    sinks: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Place:
    """The place of one machine's ranks among those of several.

    Attributes:
        first: the number of the first rank here.
        size: how many ranks there are on all machines.
        address, port: of the store where they meet.
    """

    first: int
    size: int
    address: str
    port: int


@contextmanager
def job_folder(run: Path | None, first: int = 0) -> Iterator[Path]:
    """A private folder (mode 0700) for a job and what its ranks leave, gone at the end.

    Args:
        run: the run directory of a training, which this process has locked; None where there is none.
        first: number of the first rank here; each of several machines that share the directory has another.

    Raises:
        OSError: it cannot be made.
    """
    if run is None:
        with tempfile.TemporaryDirectory(prefix="rankless-") as scratch:
            yield Path(scratch)
        return
    folder = run / (f"{JOB}-{first}" if first else JOB)
    remove_tree(folder)  # of a launcher that was killed
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        remove_tree(folder)


def write_job(job: Job, folder: Path) -> Path:
    """Write a job into ``folder``; its path."""
    path = folder / "job.json"
    path.write_text(json.dumps(asdict(job)), encoding="utf-8")
    return path


def log_of(logs: Path, rank: int) -> Path:
    """Where a rank writes what is not for the terminal."""
    return logs / f"rank-{rank}.log"


def read_job(path: Path) -> Job:
    """The job at ``path``."""
    return Job(**json.loads(path.read_text(encoding="utf-8")))


def reserve_note(path: Path, rank: int) -> None:
    """Reserve disk space for :func:`leave_note`, which may have to report that the disk is full."""
    with suppress(OSError):  # then the note itself is tried
        path.with_name(f".note-{rank}").write_bytes(b" " * _NOTE)


def leave_note(path: Path, rank: int, note: dict[str, Any]) -> None:
    """Report how a rank ended, beside the job at ``path``, in the space that was reserved.

    Raises:
        OSError: the disk is full, and no space was reserved.
    """
    beside = path.with_name(f".note-{rank}")
    with beside.open("r+b" if beside.exists() else "wb") as file:
        file.write(json.dumps(note).encode())
        file.truncate()
    beside.replace(path.with_name(f"note-{rank}.json"))


def read_notes(path: Path) -> list[dict[str, Any]]:
    """The notes that ranks have left beside the job at ``path``, rank 0's first."""
    notes = sorted(path.parent.glob("note-*.json"))
    return [json.loads(note.read_text(encoding="utf-8")) for note in notes]


def error_in(notes: Sequence[dict[str, Any]]) -> UserError | None:
    """The error that ranks have left notes about; None without one."""
    failed = [note for note in notes if note.get("problems")]
    for note in failed:
        if note.get("once"):
            return (TaskError if note["exit"] == TaskError.exit_code else UserError)(note["problems"])
    if not failed:
        return None
    return UserError(dict.fromkeys(sentence for note in failed for sentence in note["problems"]))


def leave_cause(path: Path, rank: int, text: str) -> None:
    """Report why a rank is about to die of something that a restart may fix."""
    with suppress(OSError):  # then its exit code is all there is
        path.with_name(f"cause-{rank}").write_text(text, encoding="utf-8")


class Pulse(NamedTuple):
    """How far a rank is.

    Attributes:
        begun: grows whenever the rank begins something.
        allowed: seconds that what it is at may take; None where it waits for other ranks.
        doing: what that is.
    """

    begun: int
    allowed: float | None
    doing: str


def leave_pulse(path: Path, rank: int, begun: int, allowed: float | None, doing: str) -> None:
    """Show that a rank gets on; where that cannot be written nothing is known of it."""
    pulse = path.with_name(f"pulse-{rank}")
    try:
        pulse.write_text(json.dumps([os.getpid(), begun, allowed, doing]), encoding="utf-8")
    except OSError:  # a full disk
        with suppress(OSError):
            pulse.unlink()


def read_pulse(path: Path, rank: int, process: int) -> Pulse | None:
    """How far a rank is that is this process; None where it has not said so, or is just saying it."""
    try:
        pid, *told = json.loads(path.with_name(f"pulse-{rank}").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return Pulse(*told) if pid == process else None


def take_cause(path: Path, rank: int) -> str | None:
    """What a rank that died has reported about it, once; None where it reported nothing."""
    cause = path.with_name(f"cause-{rank}")
    try:
        text = cause.read_text(encoding="utf-8")
        cause.unlink()
    except OSError:
        return None
    return text
