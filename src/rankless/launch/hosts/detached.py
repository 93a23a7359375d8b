"""A program that starts or follows a detached coordinator; its source is sent to the first host.

The coordinator keeps running after the program has exited. The program needs only Python 3.8 or newer, and
reads its request as a line of JSON from standard input.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

RECORD = "coordinator.json"
LOG = "coordinator.log"
# How lines of a journal start.
STARTS, NUMBERS = ('{"event":"start"', '{"event":"resume"'), ('{"step"', '{"evaluation"')


def main() -> int:
    """Handle a request from standard input, and return the exit code."""
    request = json.loads(sys.stdin.readline())
    home, cwd = Path.home(), Path(request["cwd"])
    os.chdir(cwd if cwd.is_dir() else home)
    run = Path(request["run"])
    if request["do"] == "start":
        return start(run, request["argv"], request["env"], request["recipe"])
    record = read(run)
    if record is None:
        print(
            f"error: {run}: no detached training was started here; use the directory of a detached run",
            file=sys.stderr,
        )
        return 2
    if not is_alive(record):
        print(f"{run}: this run has ended; its output:")
        sys.stdout.flush()
    elif request["do"] == "stop":
        os.kill(record["pid"], signal.SIGTERM)
    return follow(run, record)


def start(run: Path, argv: list[str], env: dict[str, str], recipe: str | None) -> int:
    """Start the command in a new session, log to the run directory, and wait until the training starts.

    Print the process ID to standard output and the warnings to standard error, and return 0. If the command
    has ended, print its complete output instead of the warnings, and return its exit code.
    """
    record = read(run)
    if record is not None and is_alive(record):
        print(
            f"error: {run}: process {record['pid']} already coordinates a run in this directory",
            file=sys.stderr,
        )
        return 2
    run.mkdir(parents=True, exist_ok=True)
    if recipe is not None:
        path = run / "coordinator.yaml"
        path.write_text(recipe, encoding="utf-8")
        argv = [str(path) if word == "{recipe}" else word for word in argv]
    before = [line for line in journal(run) if line.startswith(STARTS)]
    log = run / LOG
    size = log.stat().st_size if log.exists() else 0
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with os.fdopen(reader) as answer:
            print(answer.read().strip(), flush=True)
        code = wait(run, before)
        with log.open("rb") as file:
            file.seek(size)
            lines = file.read().decode(errors="replace").splitlines(keepends=True)
        sys.stderr.writelines(line for line in lines if code is not None or line.startswith("warning: "))
        return 128 - code if code and code < 0 else code or 0
    os.setsid()
    if os.fork():
        os._exit(0)
    os.close(reader)
    supervise(run, argv, {**os.environ, **env}, writer)
    os._exit(0)


def wait(run: Path, before: list[str]) -> int | None:
    """Wait until the command has trained a step or has ended.

    ``before`` contains the journal's lines about earlier starts. Return the exit code of the command, or None
    if it is still running.
    """
    while True:
        code, begun = (read(run) or {}).get("code"), False
        for line in journal(run):
            begun = begun or (line.startswith(STARTS) and line not in before)
            if begun and line.startswith(NUMBERS):
                return code
        if code is not None:
            return code
        time.sleep(0.5)


def journal(run: Path) -> list[str]:
    try:
        return (run / "journal.jsonl").read_text("utf-8", "replace").splitlines()
    except OSError:
        return []


def supervise(run: Path, argv: list[str], env: dict[str, str], writer: int) -> None:
    """Run the command until it ends, and record its exit code."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    with (run / LOG).open("ab") as log:
        process = subprocess.Popen(argv, stdin=nothing, stdout=log, stderr=log, env=env)
        write(run, {"pid": process.pid, "began": began(process.pid)})
        os.write(writer, str(process.pid).encode())
        os.close(writer)
        code = process.wait()
    write(run, {"pid": process.pid, "code": code})


def follow(run: Path, record: dict[str, int]) -> int:
    """Print the log from its start until the command has ended, and return the exit code."""
    with (run / LOG).open("rb") as log, contextlib.suppress(BrokenPipeError):
        while True:
            alive = is_alive(record)
            while data := log.read(1 << 16):
                os.write(1, data)
            if not alive:
                break
            time.sleep(0.2)
    for _ in range(20):  # the exit code is recorded a moment later
        code = (read(run) or {}).get("code")
        if code is not None:
            return code if code >= 0 else 128 - code
        time.sleep(0.1)
    print("error: the coordinator was killed; continue with rankless train --resume", file=sys.stderr)
    return 1


def is_alive(record: dict[str, int]) -> bool:
    """Check whether the recorded process is running; a later process with the same ID does not count."""
    return "code" not in record and began(record["pid"]) == record["began"]


def began(pid: int) -> int:
    """Return the start time of a process in ticks since boot, or 0 if there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])


def read(run: Path) -> dict[str, int] | None:
    """Return the record of the coordinator's process, or None if there is none."""
    try:
        record = json.loads((run / RECORD).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("pid"), int) else None


def write(run: Path, record: dict[str, int]) -> None:
    beside = run / f".{RECORD}.{os.getpid()}.tmp"
    beside.write_text(json.dumps(record), "utf-8")
    beside.rename(run / RECORD)


if __name__ == "__main__":
    sys.exit(main())
