"""Show a run live in the terminal from its journal, on this machine or on another one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rankless.engine.sinks.replay import Replay
from rankless.errors import UserError, shell_word
from rankless.files import yaml12
from rankless.launch.hosts.detach import Coordinator, read_record, remote_command
from rankless.launch.hosts.names import parse_hosts
from rankless.printing import say
from rankless.runs import following
from rankless.runs.directory import DETACHED

_ENDS = {
    "end": "finished after step {}",
    "stop": "saved and stopped after step {}; continue with: rankless train --resume --run {}",
    "error": "failed after step {}",
}


def watch(target: str, ssh: Sequence[str] = ("ssh",), python: str | None = None) -> int:
    """Show a run until it ends, and return 1 if it failed or was interrupted, otherwise 0.

    ``target`` is a run directory or ``HOST:DIRECTORY``. A detached run is followed on its host.
    """
    run, coordinator = Path(target), None
    if not run.exists() and ":" in target:
        name, _, there = target.partition(":")
        (host,) = parse_hosts(name)
        run, coordinator = Path(there), Coordinator(host, ssh, python or "python3", ".")
    elif not (run / "journal.jsonl").exists() and (run / DETACHED).exists():
        coordinator = read_record(run)
    if coordinator is None:
        wait_for(run)
    source = _local_run(run) if coordinator is None else _remote_run(run, coordinator)
    try:
        with source as (head, lines):
            device, in_threads = _ranks(head)
            with Replay(Path(target), _recipe(head), device, in_threads=in_threads) as replay:
                for line in lines:
                    replay.take(line)
    except KeyboardInterrupt:
        say("\nthe training continues")
        return 0
    if replay.last in _ENDS:
        say(f"{target}: {_ENDS[replay.last].format(replay.step, shell_word(target))}")
        return 1 if replay.last == "error" else 0
    say(
        f"{target}: interrupted after step {replay.step}; continue with: "
        f"rankless train --resume --run {shell_word(target)}"
        if replay.last
        else f"{target}: no training has started here"
    )
    return 1


def wait_for(run: Path, patience: float = following.PATIENCE) -> None:
    """Wait for a run on this machine to start; raise a UserError if it does not start in time."""
    if (run / "journal.jsonl").exists() or not following.may_begin(run):
        return
    say(f"{run}: no training has started here yet; waiting up to {patience:.0f} s for one to start")
    sys.stdout.flush()
    if not following.begins(run, patience=patience):
        raise UserError(
            f"{run}: no training started here within {patience:.0f} s; expected a run "
            "directory; list the runs in a folder with rankless runs"
        )


@contextmanager
def _local_run(run: Path) -> Iterator[tuple[dict[str, str], Iterator[str]]]:
    try:
        head = following.described(run)
    except FileNotFoundError:
        raise UserError(
            f"{run}: is not a run directory (no recipe.yaml); expected a run directory or HOST:DIRECTORY; "
            "list the runs in a folder with rankless runs"
        ) from None
    except OSError as error:
        raise UserError(f"{run}: cannot be read ({error.strerror or error}); use another run") from None
    yield head, following.lines(run)


@contextmanager
def _remote_run(run: Path, of: Coordinator) -> Iterator[tuple[dict[str, str], Iterator[str]]]:
    command = remote_command(following, of.host, of.ssh, of.python)
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    except OSError as error:
        raise UserError(
            f"{command[0]}: cannot be started ({error}); pass another command with --ssh"
        ) from None
    with process:
        stdin, stdout = process.stdin, process.stdout
        if stdin is None or stdout is None:
            raise UserError(f"{of.host.name}: no connection; try again")
        try:
            stdin.write(json.dumps({"run": str(run), "cwd": of.cwd}) + "\n")
            stdin.flush()
            head = json.loads(stdout.readline() or "null")
            if not isinstance(head, dict):
                raise UserError(f"{of.host.name}: {run}: cannot be followed; see the message above")
            yield head, iter(stdout)
            if process.wait() == 255:
                raise UserError(f"{of.host.name}: does not respond; the training continues if the host is up")
        except BrokenPipeError:
            raise UserError(
                f"{of.host.name}: does not respond; check that it is up and has {of.python}"
            ) from None
        finally:
            process.kill()


def _recipe(head: dict[str, str]) -> dict[str, Any]:
    tree, _ = yaml12.read(head["recipe"], "recipe.yaml", lines=False)
    return tree if isinstance(tree, dict) and "epochs" in tree else {"epochs": 1, **(tree or {})}


def _ranks(head: dict[str, str]) -> tuple[str, bool]:
    try:
        start = json.loads(head["environment"])[-1]
        return "cpu" if start["hardware"]["device"] == "cpu" else "cuda", start.get("backend") == "threads"
    except (ValueError, LookupError, TypeError, AttributeError):
        return "cpu", False
