"""This rankless as an archive, for hosts that have another one or none: ``--sync``."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import rankless

_KINDS = (".py", ".yaml", ".typed")


@dataclass(frozen=True)
class Package:
    """What hosts are sent.

    Attributes:
        folder: where it is unpacked, below the home directory; the name tells versions apart.
        data: a zip archive in base64.
    """

    folder: str
    data: str


def package() -> Package:
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
