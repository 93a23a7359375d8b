"""Start, follow and stop detached runs, which their first host coordinates (``--detach``, ``attach``)."""

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
from rankless.launch.hosts.channel import OPTIONS, Access, main_part, remedy
from rankless.launch.hosts.names import HERE, Host, parse_hosts
from rankless.launch.job import Wanted
from rankless.printing import say
from rankless.recipe.load import dump
from rankless.runs.directory import DETACHED

_SSH_FAILED = 255  # exit code for failures of SSH itself


class Coordinator(NamedTuple):
    """The coordinator of a detached run."""

    host: Host
    ssh: Sequence[str]
    python: str  # needs no packages
    cwd: str
    hosts: str = ""  # all hosts as the user gave them


def read_record(run: Path) -> Coordinator:
    """Read the record that :func:`detach` left; raise a UserError if it is missing or damaged."""
    try:
        record = json.loads(read_text(run / DETACHED, MIB, encoding="utf-8"))
        (host,) = parse_hosts(record["host"])
        return Coordinator(host, record["ssh"], record["python"], record["cwd"], record.get("hosts", ""))
    except FileNotFoundError:
        raise UserError(
            f"{run}: no detached training was started from this machine; use the --run of a detached run, or "
            "attach on the machine that started it"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{run / DETACHED}: cannot be read ({error}); check the run on its host") from None


def remote_command(program: ModuleType, host: Host, ssh: Sequence[str], python: str) -> list[str]:
    """Return the command that sends a module to a host and runs it there without requiring any packages."""
    source = base64.b64encode(Path(str(program.__file__)).read_bytes()).decode()
    words = [python, "-u", "-c", f"import base64;exec(base64.b64decode('{source}'))"]
    return words if host.is_here else [*ssh, *OPTIONS, host.address, shlex.join(words)]


def detach(wanted: Wanted, run: Path, hosts: Sequence[Host], access: Access, ssh: str) -> int:
    """Start a coordinator on the first host, and leave it running there once the training has started.

    ``run`` is the same path on every host. The first host reaches the others with the command ``ssh`` and its
    own keys. Return 0 if the training has started, otherwise the coordinator's exit code.
    """
    if access.package is not None:
        raise UserError(
            "--detach: the first host coordinates with its own installation of rankless, not with the copy "
            "that --sync sends; install this version there, or remove --detach or --sync"
        )
    there = ",".join(map(str, hosts))
    words = ["--run", str(run), "--hosts", there, "--min-hosts", str(wanted.least), "--ssh", ssh]
    words += ["--python", access.python, *(f"--sink={name}" for name in wanted.sinks)]
    words += ["--devices", str(wanted.devices)] if wanted.devices else []
    words += ["--resume"] if wanted.resume else []
    recipe = dump(wanted.recipe) if wanted.recipe else None
    argv = [
        access.python,
        "-P",
        "-m",
        "rankless",
        "train",
        *(["{recipe}"] if recipe else wanted.overrides),
        *words,
    ]
    # Omit the variables of this terminal, because the output on the host goes into a file.
    env = {name: value for name, value in access.env.items() if name.startswith("RANKLESS_")}
    request = {"do": "start", "argv": argv, "env": {**env, HERE: hosts[0].name}, "recipe": recipe}
    request |= {"cwd": access.cwd, "run": str(run)}
    say(f"starting {run} on {there}; waiting until the training starts")
    sys.stdout.flush()
    record = Coordinator(hosts[0], list(access.ssh), access.helper, access.cwd, there)
    try:
        done = _ask(hosts[0], access.ssh, access.helper, request, captured=True)
    except KeyboardInterrupt:
        _record(run, record)
        say(f"\nthe training is still starting; stop it with: rankless attach {shell_word(run)} --stop")
        return INTERRUPTED
    output, process = done.stderr.decode(errors="replace").strip(), done.stdout.decode().strip()
    if done.returncode and not process:  # nothing has been started
        reason = main_part(output.removeprefix("error: "))
        fix = (
            f"; {remedy(reason, hosts[0].address, access.helper)[1]}"
            if done.returncode == _SSH_FAILED
            else ""
        )
        raise UserError(f"{hosts[0].name}: {reason or f'ssh ended with code {done.returncode}'}{fix}")
    if done.returncode == _SSH_FAILED:
        _record(run, record)
        raise UserError(f"{hosts[0].name}: no longer responds; {_if_lost(run, record)}")
    for line in output.splitlines():
        print(escaped(line), file=sys.stderr)
    if done.returncode:
        return done.returncode
    _record(run, record)
    say(f"training in {run}, coordinated by {hosts[0].name} (process {process})")
    say(f"watch it: rankless attach {shell_word(run)}")
    say(f"stop it:  rankless attach {shell_word(run)} --stop")
    return 0


def _record(run: Path, record: Coordinator) -> None:
    try:
        run.mkdir(parents=True, exist_ok=True)
        fields = {**record._asdict(), "host": str(record.host)}
        write_atomically(run / DETACHED, json.dumps(fields) + "\n")
    except OSError as error:
        raise UserError(
            f"{run}: cannot be written on this machine ({error}), but the training has started"
        ) from error


def attach(run: Path, *, stop: bool) -> int:
    """Show the output of a detached run until it ends, and return its exit code.

    If ``stop``, first tell the run to save and end.
    """
    record = read_record(run)
    request = {"cwd": record.cwd, "run": str(run)}
    try:
        do = "stop" if stop else "follow"
        code = _ask(record.host, record.ssh, record.python, {**request, "do": do}, captured=False).returncode
    except KeyboardInterrupt:
        say(f"\nthe training continues; stop it with: rankless attach {shell_word(run)} --stop")
        return 0
    if code == _SSH_FAILED:
        raise UserError(f"{record.host.name}: does not respond; {_if_lost(run, record)}")
    return code


def _if_lost(run: Path, record: Coordinator) -> str:
    text, hosts = "the training continues if the host is up", parse_hosts(record.hosts or str(record.host))
    others = [str(host) for host in hosts if host.name != record.host.name]
    if not others:
        return text
    again = f"rankless train --resume --run {shell_word(run)} --hosts {shell_word(','.join(others))}"
    return f"{text}; otherwise, the other hosts stop within a minute, and you can continue with: {again}"


def _ask(
    host: Host, ssh: Sequence[str], python: str, request: dict[str, Any], *, captured: bool
) -> subprocess.CompletedProcess[bytes]:
    command = remote_command(detached, host, ssh, python)
    line = json.dumps(request).encode() + b"\n"
    try:
        return subprocess.run(command, input=line, capture_output=captured, check=False)
    except OSError as error:
        raise UserError(
            f"{command[0]}: cannot be started ({error}); pass another command with --ssh"
        ) from error
