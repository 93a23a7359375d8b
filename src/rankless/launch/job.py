"""The job that a launcher gives its ranks, and the notes that ranks leave: JSON files in a private folder.

Launchers and ranks share nothing else. For training, the folder lies in the run directory, because the
system's temporary folder may be cleaned during a long run.
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
"""Exit code of a rank whose device computed wrongly and is to be left out."""
_NOTE = 8192  # bytes

JOB = ".job"
"""Name of the job's folder in a run directory."""

_PARALLEL = ("processes", "threads")


def check_parallel(kind: str) -> None:
    """Raise a UserError unless ``kind`` is a valid kind of ranks."""
    if kind not in _PARALLEL:
        raise UserError(f"--parallel is '{kind}': expected {one_of(_PARALLEL)}{nearest(kind, _PARALLEL)}")


DRY_RUN_IMAGES = 32


@dataclass(frozen=True)
class Job:
    """The work that a launcher gives its ranks.

    Attributes:
        verb: ``train`` or ``evaluate``.
        recipe: the recipe as JSON, with its precision resolved.
        logs: the folder of the ranks' logs.
        run: the run directory, resumed from its newest checkpoint if it has one (train).
        dry_run_steps: number of steps of a dry run; 0 for a real run (train).
        dry_run_images: number of images that an evaluation of a dry run predicts; 0 for none (train).
        traced: whether to write digests of every tensor after each step (train).
        weights: the weights file (evaluate).
        launched: time and command of this start (train).
        sinks: names of the user's sinks (train).
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
        recipe: the recipe; None uses the recipe of the run to resume, possibly on another machine, with
            ``overrides``.
        name: name of a new run.
        devices: expected number of ranks from another launcher, or number of devices to use on hosts without
            their own number; None accepts any number, or uses all devices.
        run: the run directory; None chooses one.
        sinks: names of the user's sinks.
        least: minimum number of hosts to continue with when others are lost.
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
    """The place of one machine's ranks among the ranks of several machines.

    Attributes:
        first: number of the first rank on this machine.
        size: number of ranks on all machines.
        address, port: address of the store where the ranks meet.
    """

    first: int
    size: int
    address: str
    port: int


@contextmanager
def job_folder(run: Path | None, first: int = 0) -> Iterator[Path]:
    """Create a private folder (mode 0700) for a job and its notes, and remove it at the end.

    It lies in the locked run directory ``run``, or in the temporary folder if ``run`` is None. ``first``, the
    number of the first rank here, tells apart machines that share a run directory.
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
    """Write a job into ``folder`` and return its path."""
    path = folder / "job.json"
    path.write_text(json.dumps(asdict(job)), encoding="utf-8")
    return path


def log_of(logs: Path, rank: int) -> Path:
    """Return the path of a rank's log."""
    return logs / f"rank-{rank}.log"


def read_job(path: Path) -> Job:
    """Read the job at ``path``."""
    return Job(**json.loads(path.read_text(encoding="utf-8")))


def reserve_note(path: Path, rank: int) -> None:
    """Reserve disk space for :func:`leave_note`, in case the disk is full by then."""
    with suppress(OSError):  # leave_note then tries without it
        path.with_name(f".note-{rank}").write_bytes(b" " * _NOTE)


def leave_note(path: Path, rank: int, note: dict[str, Any]) -> None:
    """Leave a note of how a rank ended beside the job at ``path``, in the reserved space if there is any."""
    beside = path.with_name(f".note-{rank}")
    with beside.open("r+b" if beside.exists() else "wb") as file:
        file.write(json.dumps(note).encode())
        file.truncate()
    beside.replace(path.with_name(f"note-{rank}.json"))


def read_notes(path: Path) -> list[dict[str, Any]]:
    """Read the notes that ranks have left beside the job at ``path``, rank 0's first."""
    notes = sorted(path.parent.glob("note-*.json"))
    return [json.loads(note.read_text(encoding="utf-8")) for note in notes]


def error_in(notes: Sequence[dict[str, Any]]) -> UserError | None:
    """Return the error that the ranks' notes report, or None if there is none."""
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
        begun: a number that grows whenever the rank begins new work.
        allowed: seconds that the current work may take; None while the rank waits for others.
        doing: description of the current work.
    """

    begun: int
    allowed: float | None
    doing: str


def leave_pulse(path: Path, rank: int, begun: int, allowed: float | None, doing: str) -> None:
    """Write the pulse of a rank; remove the old one if that fails."""
    pulse = path.with_name(f"pulse-{rank}")
    try:
        pulse.write_text(json.dumps([os.getpid(), begun, allowed, doing]), encoding="utf-8")
    except OSError:  # a full disk
        with suppress(OSError):
            pulse.unlink()


def read_pulse(path: Path, rank: int, process: int) -> Pulse | None:
    """Return the pulse of a rank, or None if it is missing, incomplete, or from another ``process``."""
    try:
        pid, *told = json.loads(path.with_name(f"pulse-{rank}").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return Pulse(*told) if pid == process else None


def take_cause(path: Path, rank: int) -> str | None:
    """Return and remove the cause that a dead rank left with :func:`leave_cause`, or None if it left none."""
    cause = path.with_name(f"cause-{rank}")
    try:
        text = cause.read_text(encoding="utf-8")
        cause.unlink()
    except OSError:
        return None
    return text
