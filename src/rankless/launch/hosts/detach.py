"""``--detach`` and ``attach``: runs coordinated by their first host, independently of this machine."""

from __future__ import annotations

import base64
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from rankless.errors import INTERRUPTED, UserError, escaped, shell_word
from rankless.files.reading import MIB, read_text
from rankless.files.writing import write_atomically
from rankless.launch.hosts import detached
from rankless.launch.hosts.channel import OPTIONS, Way, quoted, remedy
from rankless.launch.hosts.names import HERE, Host, parse_hosts
from rankless.launch.job import Wanted
from rankless.printing import say
from rankless.recipe.load import dump
from rankless.runs.overview import DETACHED

_SSH_FAILED = 255
"""Exit code of SSH for its own failures; otherwise SSH returns the command's exit code."""


class Coordinator(NamedTuple):
    """The coordinator of a detached run.

    Attributes:
        host: the host on which the coordinator runs.
        ssh, python: the SSH command, and the interpreter on that host, which needs no packages.
        cwd: the working directory there.
        hosts: all hosts as the user gave them.
    """

    host: Host
    ssh: Sequence[str]
    python: str
    cwd: str
    hosts: str = ""


def recorded(run: Path) -> Coordinator:
    """Read the record that :func:`detach` left; raise a UserError if it is missing or damaged."""
    try:
        record = json.loads(read_text(run / DETACHED, MIB, encoding="utf-8"))
        (host,) = parse_hosts(record["host"])
        return Coordinator(host, record["ssh"], record["python"], record["cwd"], record.get("hosts", ""))
    except FileNotFoundError:
        raise UserError(
            f"{run}: no detached training was started from here; give the --run of a detached training, "
            "or check its host"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{run / DETACHED}: cannot be read ({error}); check the run's host") from None


def sent(program: ModuleType, host: Host, ssh: Sequence[str], python: str) -> list[str]:
    """Return the command that runs a module's source on a host; the module must not need packages."""
    source = base64.b64encode(Path(str(program.__file__)).read_bytes()).decode()
    words = [python, "-u", "-c", f"import base64;exec(base64.b64decode('{source}'))"]
    return words if host.is_here else [*ssh, *OPTIONS, host.address, shlex.join(words)]


def detach(wanted: Wanted, run: Path, hosts: Sequence[Host], way: Way, ssh: str) -> int:
    """Start a coordinator on the first host, and leave it running there once the training has begun.

    ``run`` is the same path on every host; on this machine, it receives a record of the detached run. The
    first host reaches the others over SSH (the command ``ssh``) with its own keys. Return 0 if training has
    started, otherwise the coordinator's exit code.
    """
    if way.package is not None:
        raise UserError(
            "--detach: the first host coordinates with its own installation of rankless, which --sync cannot "
            "replace; install this version there, or drop --detach or --sync"
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
    # Leave out this terminal's variables: on the host, the output goes into a file.
    env = {name: value for name, value in way.env.items() if name.startswith("RANKLESS_")}
    request = {"do": "start", "argv": argv, "env": {**env, HERE: hosts[0].name}, "recipe": recipe}
    request |= {"cwd": way.cwd, "run": str(run)}
    say(f"starting in {run} on {there} and waiting until it trains")
    sys.stdout.flush()
    record = Coordinator(hosts[0], list(way.ssh), way.helper, way.cwd, there)
    try:
        done = _ask(hosts[0], way.ssh, way.helper, request, captured=True)
    except KeyboardInterrupt:
        _record(run, record)
        say(f"\nthe start continues; stop it with: rankless attach {shell_word(run)} --stop")
        return INTERRUPTED
    said, process = done.stderr.decode(errors="replace").strip(), done.stdout.decode().strip()
    if done.returncode and not process:  # nothing has been started
        said = quoted(said.removeprefix("error: "))
        fix = f"; {remedy(said, hosts[0].address, way.helper)[1]}" if done.returncode == _SSH_FAILED else ""
        raise UserError(f"{hosts[0].name}: {said or f'ssh ended with code {done.returncode}'}{fix}")
    if done.returncode == _SSH_FAILED:
        _record(run, record)
        raise UserError(f"{hosts[0].name}: does not answer any more; {_if_lost(run, record)}")
    for line in said.splitlines():
        print(escaped(line), file=sys.stderr)
    if done.returncode:
        return done.returncode
    _record(run, record)
    say(f"training in {run}, coordinated by {hosts[0].name} (process {process})")
    say(f"watch it: rankless attach {shell_word(run)}")
    say(f"stop it:  rankless attach {shell_word(run)} --stop")
    return 0


def _record(run: Path, record: Coordinator) -> None:
    """Record on this machine which host coordinates a run."""
    try:
        run.mkdir(parents=True, exist_ok=True)
        fields = {**record._asdict(), "host": str(record.host)}
        write_atomically(run / DETACHED, json.dumps(fields) + "\n")
    except OSError as error:
        raise UserError(f"{run}: cannot be written here ({error}), but the training has begun") from error


def attach(run: Path, *, stop: bool) -> int:
    """Show the output of a detached run until it ends, and return its exit code.

    With ``stop``, first ask the run to save and end. Raise a UserError if the directory has no detached run
    or the host does not answer.
    """
    record = recorded(run)
    request = {"cwd": record.cwd, "run": str(run)}
    try:
        do = "stop" if stop else "follow"
        code = _ask(record.host, record.ssh, record.python, {**request, "do": do}, captured=False).returncode
    except KeyboardInterrupt:
        say(f"\nthe training continues; stop it with: rankless attach {shell_word(run)} --stop")
        return 0
    if code == _SSH_FAILED:
        raise UserError(f"{record.host.name}: does not answer; {_if_lost(run, record)}")
    return code


def _if_lost(run: Path, record: Coordinator) -> str:
    """Describe how to continue a run whose coordinating host does not answer."""
    text, hosts = "if it is up, the training continues", parse_hosts(record.hosts or str(record.host))
    others = [str(host) for host in hosts if host.name != record.host.name]
    if not others:
        return text
    again = f"rankless train --resume --run {shell_word(run)} --hosts {shell_word(','.join(others))}"
    return f"{text}; if it is lost, the others end within a minute; continue with: {again}"


def _ask(
    host: Host, ssh: Sequence[str], python: str, request: dict[str, Any], *, captured: bool
) -> subprocess.CompletedProcess[bytes]:
    """Send a request to a host by running :mod:`rankless.launch.hosts.detached` there."""
    command = sent(detached, host, ssh, python)
    line = json.dumps(request).encode() + b"\n"
    try:
        return subprocess.run(command, input=line, capture_output=captured, check=False)
    except OSError as error:
        raise UserError(f"{command[0]}: cannot be started ({error}); give another --ssh") from error
