"""What to do about a host that cannot be used: read from what SSH, a shell or Python said."""

from __future__ import annotations

import re
import shlex

from rankless import __version__

_CHANGED = r"(?i)(?:\w+ )?host key for (\S+) has changed[^.;\n]*"
_SAID = (
    (r"cannot be started|user config", "SSH", "give an --ssh that works here: ssh {address}"),
    (r"Permission denied", "SSH", "ssh-copy-id {address}, or add its key to ssh-agent (ssh-add)"),
    (_CHANGED, "SSH", "ssh-keygen -R {known}, if the change is expected (a new machine, a new system)"),
    (r"Host key verification failed", "SSH", "ssh {address} once by hand, to see and accept its key"),
    (r"[Nn]ot known|resolve hostname", "SSH", "give a name that is in ~/.ssh/config, /etc/hosts or the DNS"),
    (r"Connection refused", "SSH", "start its SSH server (sudo systemctl start ssh)"),
    (r"timed out|No route|unreachable|Connection closed|reset", "SSH", "see that it is up: ping {address}"),
    (
        r"No module named '?rankless",
        "rankless",
        "add --sync, or install rankless {version} there as it is installed here",
    ),
    (r"not found|No such file", "Python", "give --python PATH, the interpreter there"),
    (
        r"No module named",
        "packages",
        "install there what is installed here, or give --python another interpreter",
    ),
)


def quoted(said: str) -> str:
    """What SSH said; of its banner about a changed host key only what is the case."""
    changed = re.search(_CHANGED, said)
    return changed[0] if changed else said


def remedy(said: str, address: str, python: str) -> tuple[str, str]:
    """What to do about a host.

    Args:
        said: why it cannot be used.
        address: as SSH is given it.
        python: the interpreter there.

    Returns:
        What it is about, in a word, and the command or option.
    """
    found = ((name, fix) for pattern, name, fix in _SAID if re.search(pattern, said))
    name, fix = next(found, ("answer", "see what this says: ssh {address} {python} -m rankless --version"))
    changed = re.search(_CHANGED, said)
    known = shlex.quote(changed[1]) if changed else ""  # with the port, as in known_hosts
    return name, fix.format(address=address, python=python, version=__version__, known=known)
