"""``--detach`` and ``attach``: the first host coordinates, so that this machine may go away."""

from __future__ import annotations

import base64
import json
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankless.errors import UserError
from rankless.files.reading import MIB, read_text
from rankless.files.writing import write_atomically
from rankless.launch.hosts import detached
from rankless.launch.hosts.channel import OPTIONS
from rankless.launch.hosts.gang import Way
from rankless.launch.hosts.names import HERE, Host, parse_hosts
from rankless.launch.hosts.training import Wanted
from rankless.printing import say
from rankless.recipe.load import dump

_RECORD = "detached.json"
"""In the run directory here: where the coordinator is."""


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
        said = done.stderr.decode(errors="replace").strip().removeprefix("error: ")
        raise UserError(f"{hosts[0].name}: {said or f'ssh ended with code {done.returncode}'}")
    record = {"host": str(hosts[0]), "ssh": list(way.ssh), "python": way.helper, "cwd": way.cwd}
    try:
        run.mkdir(parents=True, exist_ok=True)
        write_atomically(run / _RECORD, json.dumps(record) + "\n")
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
    try:
        record = json.loads(read_text(run / _RECORD, MIB, encoding="utf-8"))
        (host,) = parse_hosts(record["host"])
        ssh, python, cwd = record["ssh"], record["python"], record["cwd"]
    except FileNotFoundError:
        raise UserError(
            f"{run}: no detached training was started from here; give the --run of one that was, "
            "or look at its host"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{run / _RECORD}: cannot be read ({error}); look at the run's host") from None
    request = {"cwd": cwd, "run": str(run)}
    try:
        do = "stop" if stop else "follow"
        code = _ask(host, ssh, python, {**request, "do": do}, captured=False).returncode
    except KeyboardInterrupt:
        say(f"\nthe training goes on; stop it with: rankless attach {run} --stop")
        return 0
    if code == 255:
        raise UserError(f"{host.name}: does not answer; the training goes on if that host is up")
    return code


def _ask(
    host: Host, ssh: Sequence[str], python: str, request: dict[str, Any], *, captured: bool
) -> subprocess.CompletedProcess[bytes]:
    """Run :mod:`rankless.launch.hosts.detached` on a host."""
    source = base64.b64encode(Path(detached.__file__).read_bytes()).decode()
    words = [python, "-u", "-c", f"import base64;exec(base64.b64decode('{source}'))"]
    command = words if host.is_here else [*ssh, *OPTIONS, host.address, shlex.join(words)]
    line = json.dumps(request).encode() + b"\n"
    try:
        return subprocess.run(command, input=line, capture_output=captured, check=False)
    except OSError as error:
        raise UserError(f"{command[0]}: cannot be started ({error}); give another --ssh") from error
