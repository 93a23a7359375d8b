"""Ranges of bytes of remote objects, cached on the disk up to a limit, for all processes of a machine.

Each is a file that appears whole or not at all, named by what it is a part of, so no process waits for
another. Files are spread evenly over folders, and whoever adds one to a folder removes those that were not
used for longest until the folder has its share of the limit again.
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
_SHARE, _MOST = 64 << 20, 4096  # bytes of a folder at least, and folders
_SPARE = 0.02  # of a disk's size stays free
_DIGEST = 16  # bytes, at the head of a file
_UNITS = {"": 1, "MB": 10**6, "GB": 10**9, "TB": 10**12, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


def limit() -> int:
    """Bytes that the cache may have, of the environment: ``RANKLESS_REMOTE_CACHE=200GB``; 0 is no cache."""
    text = os.environ.get(VARIABLE, "")
    if not text.strip():
        return _USUAL
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    if not found or found[2].upper() not in _UNITS:
        raise UserError(f"{VARIABLE} is '{text}': expected a size, as in 200GB, or 0 for no cache")
    return int(float(found[1]) * _UNITS[found[2].upper()])


@dataclass(frozen=True)
class RangeCache:
    """A cache.

    Attributes:
        folder: where it lies; made when it is needed.
        most: bytes.
    """

    folder: Path
    most: int

    def get(self, key: str) -> bytes | None:
        """The bytes that were put under a key; None where there are none, or where they are damaged."""
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
        """Cache bytes under a key, if there is room; without a message, as no number depends on it."""
        share = self.most // self._folders
        if len(data) + _DIGEST > share:
            return
        path = self._path(key)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            disk = os.statvfs(path.parent)
            if disk.f_bavail * disk.f_frsize < len(data) + _SPARE * disk.f_blocks * disk.f_frsize:
                return
            _make_room(path.parent, share - len(data) - _DIGEST)
            with beside(path, durable=False) as part:
                part.write_bytes(_digest(data) + data)

    def tidy(self) -> None:
        """Remove what lies beyond the limit, which may have been a higher one."""
        share = self.most // self._folders
        with contextlib.suppress(OSError):
            for folder in list(self.folder.iterdir()):
                is_ours = int(folder.name, 16) < self._folders
                with contextlib.suppress(OSError):
                    _make_room(folder, share if is_ours else 0)

    @property
    def _folders(self) -> int:
        return min(max(self.most // _SHARE, 1), _MOST)

    def _path(self, key: str) -> Path:
        name = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
        return self.folder / f"{int(name[:8], 16) % self._folders:03x}" / name


def user_cache() -> RangeCache:
    """The user's cache."""
    return RangeCache(cache_folder() / "remote", limit())


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST).digest()


def _make_room(folder: Path, most: int) -> None:
    """Remove the least recently used entries until the rest fits into this many bytes."""
    there: list[tuple[int, int, str]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # another process has removed it
                state = entry.stat()
                there.append((state.st_mtime_ns, state.st_size, entry.path))
    total = sum(size for _, size, _ in there)
    for _, size, path in sorted(there):
        if total <= most:
            return
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108 - a Path for each takes as long
        total -= size
