"""What to do about a host that cannot be used: read from what SSH, a shell or Python said."""

from __future__ import annotations

import re

from rankless import __version__

_SAID = (
    (r"cannot be started|user config", "SSH", "give an --ssh that works here: ssh {address}"),
    (r"Permission denied", "SSH", "ssh-copy-id {address}, or add its key to ssh-agent (ssh-add)"),
    (r"REMOTE HOST IDENTIFICATION", "SSH", "ssh-keygen -R {address} if the machine is new under that name"),
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
    return name, fix.format(address=address, python=python, version=__version__)
