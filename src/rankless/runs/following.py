"""Follow a run's journal while it is written. For a remote run, this file is sent to the remote machine.

It requires only Python 3.8. As a program, it reads a request (a line of JSON) from standard input, and prints
the result of :func:`described`, followed by the lines of the journal until the run ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

POLL = 0.5
"""Seconds between two reads of the journal."""
PATIENCE = 60.0
"""Maximum time in seconds between the start of a run and the first line of its journal."""
SILENCE = 120.0
"""Seconds without a new line after which a run on another machine no longer counts as alive."""
_RECIPE = 1 << 22  # maximum bytes; a recipe has a few thousand
_LOCKS = Path("/proc/locks")
_PAGE = 4096  # bytes; Linux prints a longer list of locks in parts, and may skip entries when locks change
_READS = 10
_OVER = ("end", "stop", "error", "death")


def main() -> int:
    """Print the journal of the requested run and return the exit code."""
    request = json.loads(sys.stdin.readline())
    cwd = Path(request["cwd"])
    os.chdir(cwd if cwd.is_dir() else Path.home())
    run = Path(request["run"]).expanduser()
    try:
        print(json.dumps(described(run)), flush=True)
        for line in lines(run):
            sys.stdout.write(line)
            sys.stdout.flush()
    except OSError as error:
        print(f"error: {run}: {error.strerror or error}", file=sys.stderr)
        return 2
    return 0


def described(run: Path) -> dict[str, str]:
    """Return the text of the run's recipe and of its record of starts, which is "" if it cannot be read."""
    recipe, environment = _head(run / "recipe.yaml"), ""
    with contextlib.suppress(OSError):
        environment = _head(run / "environment.json")
    return {"recipe": recipe, "environment": environment}


def _head(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(_RECIPE)


def is_held(lock: Path, locks: Path = _LOCKS) -> bool:
    """Check whether a process on this machine has locked a file, without locking it.

    A lock taken by this process could make a starting run fail.
    """
    try:
        inode = str(lock.stat().st_ino)
        for _ in range(_READS):
            held = locks.read_text("ascii", "replace")
            for words in map(str.split, held.splitlines()):
                # 1: FLOCK ADVISORY WRITE 4711 fe:00:2146926 0 EOF; "->" marks a waiting process
                is_same = len(words) > 5 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode
                if is_same and _has_open(words[4], lock):
                    return True
            if len(held) < _PAGE:
                break
            time.sleep(0.002)
    except OSError:
        pass
    return False


def _has_open(process: str, lock: Path) -> bool:
    """Check whether a process has the file open. Files of two file systems can have the same inode number."""
    try:
        for descriptor in Path("/proc", process, "fd").iterdir():
            with contextlib.suppress(OSError):
                if descriptor.samefile(lock):
                    return True
    except OSError:  # a process of another user
        return True
    return False


def is_alive(run: Path, last: str | None) -> bool:
    """Check whether a local process has locked the run or another machine is adding to its journal."""
    if is_held(run / ".lock"):
        return True
    if last in _OVER or _began_on(run) == os.uname().nodename:
        return False
    try:
        return time.time() - (run / "journal.jsonl").stat().st_mtime < SILENCE
    except OSError:
        return False


def _began_on(run: Path) -> str | None:
    """Return the machine of the last start, which writes the journal, or None if unknown."""
    try:
        host = json.loads(described(run)["environment"])[-1]["host"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return host if isinstance(host, str) else None


def may_begin(run: Path) -> bool:
    """Check whether a starting run may still create its journal in this folder."""
    if run.is_dir():
        return (run / "recipe.yaml").exists() or is_held(run / ".lock") or not any(run.iterdir())
    return not run.exists() and (run.parent.is_dir() or run.parent == Path("runs"))


def begins(run: Path, poll: float = POLL, patience: float = PATIENCE) -> bool:
    """Wait for a journal and return whether it exists.

    The wait ends after ``patience`` seconds unless a process has locked the run.
    """
    until = time.monotonic() + patience
    while not (run / "journal.jsonl").exists():
        if time.monotonic() > until and not is_held(run / ".lock"):
            return False
        time.sleep(poll)
    return True


def lines(run: Path, poll: float = POLL) -> Iterator[str]:
    """Yield the complete lines of the journal as they are written, until the run ends.

    When a run resumes, it rewrites the journal without the steps that it repeats. Lines before the resumption
    are not yielded again.
    """
    path = run / "journal.jsonl"
    last, starts = None, 0
    while True:
        try:
            file = path.open(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            if not is_alive(run, last):
                return
            time.sleep(poll)
            continue
        with file:
            skipped, torn, replaced = starts, "", False
            while not replaced:
                # Check this before reading, so that all lines written before the end are read.
                alive, replaced = is_alive(run, last), _is_another(path, file.fileno())
                for text in file:
                    torn += text
                    if not torn.endswith("\n"):
                        break
                    line, torn = torn, ""
                    event = _event(line)
                    if event in ("start", "resume"):
                        skipped -= 1
                        starts += skipped < 0
                    if skipped < 0 or not starts:
                        last = event or last
                        yield line
                if not alive and not replaced:
                    return
                if not replaced:
                    time.sleep(poll)


def _is_another(path: Path, opened: int) -> bool:
    try:
        return path.stat().st_ino != os.fstat(opened).st_ino
    except OSError:
        return False


def _event(line: str) -> str | None:
    if '"event"' not in line:
        return None
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    event = entry.get("event") if isinstance(entry, dict) else None
    return event if isinstance(event, str) else None


if __name__ == "__main__":
    sys.exit(main())
