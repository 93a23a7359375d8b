"""Parse the hosts of a run, such as ``a,b:4,c:4:/mnt/data``, or a file with one host per line."""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankless.errors import UserError
from rankless.files.reading import MIB, read_text

# Excludes names that ssh would read as an option, or that a remote shell would read as several words.
_NAME = re.compile(r"(?:[\w.-]+@)?(?:[\w][\w.-]*|\[[0-9A-Fa-f:.%\w]+\])")
_FILES = (".txt", ".hosts", ".list", ".csv")  # host names do not have these endings
_HERE = ("localhost", "127.0.0.1")
HERE = "RANKLESS_HERE"  # the name of this machine in --hosts, if it coordinates a detached run


@dataclass(frozen=True)
class Host:
    """One host of a training run."""

    name: str  # name, address, user@name, or alias from the user's SSH configuration
    devices: int | None = None  # None for all
    data: str = ""  # path of the data on the host; empty for the recipe's path

    def __str__(self) -> str:
        return ":".join([self.name, str(self.devices or ""), self.data]).rstrip(":")

    @property
    def is_here(self) -> bool:
        """Whether the host is this machine, so that SSH is not needed."""
        return self.name in (*_HERE, os.environ.get(HERE))

    @property
    def address(self) -> str:
        """The host's name for SSH, without the brackets of an IPv6 address."""
        return re.sub(r"[\[\]]", "", self.name)


def parse_hosts(text: str) -> list[Host]:
    """Parse hosts ``NAME[:DEVICES[:DATA]]``, separated by commas or in a file with one host per line.

    Raise a UserError that lists all invalid and repeated entries.
    """
    path = Path(text)
    problems: list[str] = []
    if path.is_file():
        lines = [line.partition("#")[0].strip() for line in _lines(path)]
        entries = [(f"{path}:{number}", line) for number, line in enumerate(lines, 1) if line]
    elif ("/" in text and ":" not in text) or path.suffix in _FILES:
        raise UserError(
            f"--hosts is '{text}': no such file; expected hosts such as a,b:4, or a file that lists them"
        )
    else:
        words = [word.strip() for word in text.split(",")]
        entries = [("--hosts", word) for word in words if word]
        if entries and len(entries) < len(words):
            problems.append(f"--hosts: '{text}' contains an empty name; expected hosts such as a,b:4")
    found: dict[str, list[Host]] = {}
    for where, entry in entries:
        try:
            host = _host(entry)
        except ValueError as error:
            problems.append(f"{where}: '{entry}': {error}")
            continue
        same = found.setdefault(host.name, [])
        same.append(host)
        if len(same) == 2:
            problems.append(
                f"{where}: '{host.name}' is listed twice; list each host once, such as {host.name}:4 for 4 "
                "devices"
            )
    if not entries:
        problems.append(
            f"{path if path.is_file() else '--hosts'}: no hosts; expected at least one host, as in a,b:4"
        )
    if problems:
        raise UserError(problems)
    return [host for host, *_ in found.values()]


def _lines(path: Path) -> Sequence[str]:
    try:
        return read_text(path, MIB, encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"--hosts: {path} cannot be read ({error}); use a file with one host per line"
        ) from None


def _host(entry: str) -> Host:
    if _is_ipv6(entry):
        raise ValueError(f"an IPv6 address needs brackets; expected [{entry}] or [{entry}]:DEVICES")
    found = _NAME.match(entry)
    if not found:
        raise ValueError("not a host; expected NAME, NAME:DEVICES or NAME:DEVICES:DATA")
    name, rest = found[0], entry[found.end() :]
    if not rest:
        return Host(name)
    if not rest.startswith(":"):
        raise ValueError("not a host; expected NAME, NAME:DEVICES or NAME:DEVICES:DATA")
    devices, _, data = rest[1:].partition(":")
    if devices and (not devices.isdecimal() or not 0 < int(devices[:9]) < 10_000):
        raise ValueError(f"the number of devices is '{devices}'; expected a whole number of at least 1")
    return Host(name, int(devices) if devices else None, data)


def ssh_words(text: str) -> list[str]:
    """Split the value of ``--ssh`` into words."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"--ssh is '{text}': {error}; expected a command such as 'ssh -p 2222'") from None
    if not words:
        raise UserError("--ssh is empty; expected a command such as 'ssh -p 2222'")
    return words


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False
