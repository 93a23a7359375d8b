"""Where a detached training is coordinated, and how a small program is run there."""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from rankless.errors import UserError
from rankless.files.reading import MIB, read_text
from rankless.launch.hosts.channel import OPTIONS
from rankless.launch.hosts.names import Host, parse_hosts
from rankless.runs.overview import DETACHED


class Coordinator(NamedTuple):
    """Where a detached training is coordinated.

    Attributes:
        host: which coordinates.
        ssh, python: the command for SSH, and the interpreter there, which needs no packages.
        cwd: the folder there in which the run directory is named.
        hosts: all of them, as they were given.
    """

    host: Host
    ssh: Sequence[str]
    python: str
    cwd: str
    hosts: str = ""


def recorded(run: Path) -> Coordinator:
    """Read the record that :func:`detach` left.

    Raises:
        UserError: nothing was detached there, or the record is damaged.
    """
    try:
        record = json.loads(read_text(run / DETACHED, MIB, encoding="utf-8"))
        (host,) = parse_hosts(record["host"])
        return Coordinator(host, record["ssh"], record["python"], record["cwd"], record.get("hosts", ""))
    except FileNotFoundError:
        raise UserError(
            f"{run}: no detached training was started from here; give the --run of one that was, "
            "or look at its host"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{run / DETACHED}: cannot be read ({error}); look at the run's host") from None


def sent(program: ModuleType, host: Host, ssh: Sequence[str], python: str) -> list[str]:
    """The command that runs a program of a page, which needs no packages, on a host."""
    source = base64.b64encode(Path(str(program.__file__)).read_bytes()).decode()
    words = [python, "-u", "-c", f"import base64;exec(base64.b64decode('{source}'))"]
    return words if host.is_here else [*ssh, *OPTIONS, host.address, shlex.join(words)]
