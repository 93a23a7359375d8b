"""What a launcher asks of its ranks, and how they answer: a job and notes, as JSON in a folder of their own.

Launchers and ranks have nothing else in common. A training's folder lies in its run directory: the system's
folder for temporary files is swept while long runs last.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

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
        dry_run_steps: end after so many steps and write digests of every tensor after each (train); 0 is a
            real run.
        weights: the weights file (evaluate).
        launched: when this start was, and with which command (train).
        sinks: names of the user's sinks (train).
    """

    verb: str
    recipe: str
    logs: str
    run: str = ""
    dry_run_steps: int = 0
    weights: str = ""
    launched: dict[str, Any] = field(default_factory=dict)
    sinks: list[str] = field(default_factory=list)


@contextmanager
def job_folder(run: Path | None) -> Iterator[Path]:
    """A private folder (mode 0700) for a job and what its ranks leave, gone at the end.

    Args:
        run: the run directory of a training, which is held by this process; None where there is none.

    Raises:
        OSError: it cannot be made.
    """
    if run is None:
        with tempfile.TemporaryDirectory(prefix="rankless-") as scratch:
            yield Path(scratch)
        return
    folder = run / ".job"
    shutil.rmtree(folder, ignore_errors=True)  # of a launcher that was killed
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_job(job: Job, folder: Path) -> Path:
    """Put a job into ``folder``; its place."""
    place = folder / "job.json"
    place.write_text(json.dumps(asdict(job)), encoding="utf-8")
    return place


def log_of(logs: Path, rank: int) -> Path:
    """Where a rank writes what is not for the terminal."""
    return logs / f"rank-{rank}.log"


def read_job(place: Path) -> Job:
    """The job at ``place``."""
    return Job(**json.loads(place.read_text(encoding="utf-8")))


def reserve_note(place: Path, rank: int) -> None:
    """Take room on the disk for :func:`leave_note`, which may have to say that the disk is full."""
    with suppress(OSError):  # then the note itself is tried
        place.with_name(f".note-{rank}").write_bytes(b" " * _NOTE)


def leave_note(place: Path, rank: int, note: dict[str, Any]) -> None:
    """Say how a rank ended, beside the job at ``place``, in the room that was reserved.

    Raises:
        OSError: there is no room, and none was reserved.
    """
    beside = place.with_name(f".note-{rank}")
    with beside.open("r+b" if beside.exists() else "wb") as file:
        file.write(json.dumps(note).encode())
        file.truncate()
    beside.replace(place.with_name(f"note-{rank}.json"))


def notes(place: Path) -> list[Path]:
    """The notes that ranks have left beside the job at ``place``, rank 0's first."""
    return sorted(place.parent.glob("note-*.json"))


def read_notes(place: Path) -> list[dict[str, Any]]:
    """What the notes beside the job at ``place`` say, rank 0's first."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in notes(place)]


def leave_cause(place: Path, rank: int, text: str) -> None:
    """Say why a rank is about to die of something that a restart may help against."""
    with suppress(OSError):  # then its exit code is all there is
        place.with_name(f"cause-{rank}").write_text(text, encoding="utf-8")


def take_cause(place: Path, rank: int) -> str | None:
    """What a rank that died has said about it, once; None where it said nothing."""
    path = place.with_name(f"cause-{rank}")
    try:
        text = path.read_text(encoding="utf-8")
        path.unlink()
    except OSError:
        return None
    return text
