"""How hosts are reached, and what is started there."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import secrets
import shlex
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import rankless
from rankless.errors import UserError
from rankless.launch.hosts.names import HERE

_KINDS = (".py", ".yaml", ".typed")


@dataclass(frozen=True)
class Package:
    """The code of this rankless as hosts are sent it, where they have another one or none: ``--sync``.

    Attributes:
        folder: where it is unpacked, below the home directory; the name differs between versions.
        data: a zip archive in base64.
    """

    folder: str
    data: str


@dataclass(frozen=True)
class Way:
    """How hosts are reached and what is started there.

    Attributes:
        ssh: the command.
        python: the interpreter of the ranks.
        helper: the interpreter of the supervisor, which needs no packages.
        env: variables for the process.
        cwd: its folder, where that exists; otherwise the home directory.
        package: the code that hosts are to run in place of their own; None leaves them theirs.
        options: the words of the command line that say all this.
    """

    ssh: Sequence[str]
    python: str
    helper: str
    env: Mapping[str, str]
    cwd: str
    package: Package | None = None
    options: Sequence[str] = ()


def way_over(ssh: str, python: str | None, *, sync: bool = False) -> Way:
    """The way that the command line describes.

    Args:
        ssh: the command, with options where needed.
        python: the interpreter with rankless on the hosts; None is this one's path.
        sync: whether hosts run the code of this machine.

    Raises:
        UserError: no command.
    """
    env = {name: text for name, text in os.environ.items() if name.startswith("RANKLESS_") and name != HERE}
    env.setdefault("RANKLESS_SECRET", secrets.token_hex(32))  # it goes over SSH alone (world/secret)
    if sys.stdout.isatty():  # rank 0 shows its bar through a pipe
        size = os.get_terminal_size(1)
        env |= {"FORCE_COLOR": "1", "COLUMNS": str(size.columns), "LINES": str(size.lines)}
    try:
        words = shlex.split(ssh)
    except ValueError as error:
        raise UserError(f"--ssh is '{ssh}': {error}; expected a command, as in 'ssh -p 2222'") from None
    if not words:
        raise UserError("--ssh is empty; expected a command, as in 'ssh -p 2222'")
    code = _package() if sync else None
    if code:
        env["PYTHONPATH"] = f"~/{code.folder}"
    options = ["--ssh", ssh] if words != ["ssh"] else []
    options += ["--python", python] if python else []
    options += ["--sync"] if sync else []
    return Way(words, python or sys.executable, python or "python3", env, str(Path.cwd()), code, options)


def _package() -> Package:
    """Pack the code that runs here; what it depends on is not packed."""
    root = Path(rankless.__file__).parent
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(path for path in root.rglob("*") if path.suffix in _KINDS):
            entry = zipfile.ZipInfo(str(Path("rankless") / path.relative_to(root)))
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    content = buffer.getvalue()
    name = hashlib.sha256(content).hexdigest()[:16]
    return Package(f".cache/rankless/code/{name}", base64.b64encode(content).decode())
