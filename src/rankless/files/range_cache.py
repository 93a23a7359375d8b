"""A disk cache of limited size for byte ranges of remote objects, shared by all processes of a machine.

Each range is a file that appears atomically and is named after the range's key, so no process waits for
another. The files are spread evenly over folders. When a file is added to a folder, the folder's least
recently used files are removed until the folder is within its share of the limit.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from rankless.errors import UserError
from rankless.files.cache_folder import cache_folder
from rankless.files.writing import beside

VARIABLE = "RANKLESS_REMOTE_CACHE"
_USUAL = 20_000_000_000
_MOST = 4096  # folders
_DIGEST = 16  # bytes at the start of a file
_UNITS = {"": 1, "MB": 10**6, "GB": 10**9, "TB": 10**12, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


def limit() -> int:
    """Return the size limit of the cache in bytes, or 0 if the cache is disabled."""
    text = os.environ.get(VARIABLE, "")
    if not text.strip():
        return _USUAL
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    if not found or found[2].upper() not in _UNITS:
        raise UserError(f"{VARIABLE} is '{text}': expected a size such as 200GB, or 0 to disable the cache")
    return int(float(found[1]) * _UNITS[found[2].upper()])


@dataclass(frozen=True)
class RangeCache:
    """A cache of at most ``most`` bytes in ``folder``, which is created if needed."""

    folder: Path
    most: int
    share: int = 64 << 20  # minimum bytes per folder
    spare: float = 0.02  # fraction of the disk to keep free

    def get(self, key: str) -> bytes | None:
        """Return the bytes stored under a key, or None if they are missing or damaged."""
        path = self._path(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        data = content[_DIGEST:]
        with contextlib.suppress(OSError):
            if content[:_DIGEST] != _digest(data):
                path.unlink()
                return None
            os.utime(path)
        return data

    def put(self, key: str, data: bytes) -> None:
        """Store bytes under a key if there is room; failures are ignored because the cache is optional."""
        share = self.most // self._folders
        if len(data) + _DIGEST > share:
            return
        path = self._path(key)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            disk = os.statvfs(path.parent)
            if disk.f_bavail * disk.f_frsize < len(data) + self.spare * disk.f_blocks * disk.f_frsize:
                return
            _make_room(path.parent, share - len(data) - _DIGEST)
            with beside(path, durable=False) as part:
                part.write_bytes(_digest(data) + data)

    def trim(self) -> None:
        """Remove files until the cache is within its limit, which may have been lowered."""
        share = self.most // self._folders
        with contextlib.suppress(OSError):
            for folder in list(self.folder.iterdir()):
                is_ours = int(folder.name, 16) < self._folders
                with contextlib.suppress(OSError):
                    _make_room(folder, share if is_ours else 0)

    @property
    def _folders(self) -> int:
        return min(max(self.most // self.share, 1), _MOST)

    def _path(self, key: str) -> Path:
        name = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
        return self.folder / f"{int(name[:8], 16) % self._folders:03x}" / name


def user_cache() -> RangeCache:
    """Return the cache shared by all processes of this user."""
    return RangeCache(cache_folder() / "remote", limit())


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST).digest()


def _make_room(folder: Path, most: int) -> None:
    there: list[tuple[int, int, str]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # another process removed it
                state = entry.stat()
                there.append((state.st_mtime_ns, state.st_size, entry.path))
    total = sum(size for _, size, _ in there)
    for _, size, path in sorted(there):
        if total <= most:
            return
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108 - creating a Path takes as long
        total -= size
