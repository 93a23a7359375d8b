"""``--detach`` and ``attach``: the first host coordinates, so that this machine may go away."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankless.errors import UserError
from rankless.files.writing import write_atomically
from rankless.launch.hosts import detached
from rankless.launch.hosts.coordinated import recorded, sent
from rankless.launch.hosts.names import HERE, Host
from rankless.launch.hosts.reasons import quoted, remedy
from rankless.launch.hosts.training import Wanted
from rankless.launch.hosts.way import Way
from rankless.printing import say
from rankless.recipe.load import dump
from rankless.runs.overview import DETACHED

_SSH_FAILED = 255
"""The exit code of SSH where it fails itself; else it is the command's."""


def detach(wanted: Wanted, run: Path, hosts: Sequence[Host], way: Way, ssh: str) -> int:
    """Start the training with a coordinator on the first host, and leave it to that.

    Args:
        wanted: what was asked for.
        run: the run directory on every host; here a record is left there.
        hosts: reached over SSH from the first of them, with the keys that are there.
        way: how the first is reached.
        ssh: the command for SSH, as it is to be used there, too.

    Raises:
        UserError: it could not be started.
    """
    if way.package is not None:
        raise UserError(
            "--detach: the first host coordinates with the rankless that it has, so --sync cannot replace "
            "that; install this one there, or leave one of the two out"
        )
    there = ",".join(map(str, hosts))
    words = ["--run", str(run), "--hosts", there, "--min-hosts", str(wanted.least), "--ssh", ssh]
    words += ["--python", way.python, *(f"--sink={name}" for name in wanted.sinks)]
    words += ["--devices", str(wanted.devices)] if wanted.devices else []
    words += ["--resume"] if wanted.resume else []
    recipe = dump(wanted.recipe) if wanted.recipe else None
    argv = [
        way.python,
        "-P",
        "-m",
        "rankless",
        "train",
        *(["{recipe}"] if recipe else wanted.overrides),
        *words,
    ]
    # Nothing of this terminal's: the output goes into a file there.
    env = {name: value for name, value in way.env.items() if name.startswith("RANKLESS_")}
    request = {"do": "start", "argv": argv, "env": {**env, HERE: hosts[0].name}, "recipe": recipe}
    done = _ask(hosts[0], way.ssh, way.helper, {**request, "cwd": way.cwd, "run": str(run)}, captured=True)
    if done.returncode:
        said = quoted(done.stderr.decode(errors="replace").strip().removeprefix("error: "))
        fix = f"; {remedy(said, hosts[0].address, way.helper)[1]}" if done.returncode == _SSH_FAILED else ""
        raise UserError(f"{hosts[0].name}: {said or f'ssh ended with code {done.returncode}'}{fix}")
    record = {"host": str(hosts[0]), "ssh": list(way.ssh), "python": way.helper, "cwd": way.cwd}
    try:
        run.mkdir(parents=True, exist_ok=True)
        write_atomically(run / DETACHED, json.dumps(record) + "\n")
    except OSError as error:
        raise UserError(f"{run}: cannot be written here ({error}), but the training has begun") from error
    process = done.stdout.decode().strip()
    say(f"training in {run}, coordinated by {hosts[0].name} (process {process})")
    say(f"watch it: rankless attach {run}")
    say(f"stop it:  rankless attach {run} --stop")
    return 0


def attach(run: Path, *, stop: bool) -> int:
    """Show what a detached training prints until it ends; its exit code.

    Args:
        run: where :func:`detach` left its record.
        stop: ask it to save and end before.

    Raises:
        UserError: nothing was detached there, or its host does not answer.
    """
    record = recorded(run)
    request = {"cwd": record.cwd, "run": str(run)}
    try:
        do = "stop" if stop else "follow"
        code = _ask(record.host, record.ssh, record.python, {**request, "do": do}, captured=False).returncode
    except KeyboardInterrupt:
        say(f"\nthe training goes on; stop it with: rankless attach {run} --stop")
        return 0
    if code == _SSH_FAILED:
        raise UserError(f"{record.host.name}: does not answer; the training goes on if that host is up")
    return code


def _ask(
    host: Host, ssh: Sequence[str], python: str, request: dict[str, Any], *, captured: bool
) -> subprocess.CompletedProcess[bytes]:
    """Run :mod:`rankless.launch.hosts.detached` on a host."""
    command = sent(detached, host, ssh, python)
    line = json.dumps(request).encode() + b"\n"
    try:
        return subprocess.run(command, input=line, capture_output=captured, check=False)
    except OSError as error:
        raise UserError(f"{command[0]}: cannot be started ({error}); give another --ssh") from error
