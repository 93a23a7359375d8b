"""Addresses of data on other machines, ``https://…`` and ``s3://…``, beside paths of this one."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from rankless.errors import UserError
from rankless.files import reading
from rankless.files.remote_objects import RemoteFile, listed, state_of

SCHEMES = ("https", "http", "s3")


def is_remote(path: str) -> bool:
    """Whether the text is the address of an object on another machine, and no file."""
    scheme, mark, rest = path.partition("://")
    return bool(mark and rest) and scheme in SCHEMES


class RemotePath:
    """An address, used like a :class:`pathlib.Path` as far as data sets of shards need it.

    Args:
        url: the address.
        is_folder: whether things lie below it; None asks when it matters.
    """

    def __init__(self, url: str, is_folder: bool | None = None) -> None:
        self.url, self._is_folder = url.rstrip("/"), is_folder

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"RemotePath({self.url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and other.url == self.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __lt__(self, other: RemotePath) -> bool:
        return self.url < other.url

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self.url}/{name}")

    @property
    def name(self) -> str:
        """The part after the last slash."""
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> RemotePath:
        """The folder that contains it."""
        return RemotePath(self.url.rpartition("/")[0], True)

    def relative_to(self, folder: RemotePath) -> str:
        """The address as it is below a folder."""
        return self.url.removeprefix(f"{folder.url}/")

    def is_dir(self) -> bool:
        """Whether there are objects below it."""
        if self._is_folder is None:
            try:
                self._is_folder = any(True for _ in self.iterdir())
            except FileNotFoundError:
                self._is_folder = False
        return self._is_folder

    def is_file(self) -> bool:
        """Whether it is an object."""
        if self._is_folder is not None:
            return not self._is_folder
        try:
            state_of(self.url)
        except FileNotFoundError:
            return False
        return True

    def iterdir(self) -> Iterator[RemotePath]:
        """The entries one level below it."""
        for url, is_folder in listed(self.url):
            yield RemotePath(url, is_folder)


Location = Path | RemotePath
"""Of a data set."""


def location(root: str) -> Location:
    """The folder or file of this machine that a root names, or the address."""
    return RemotePath(root) if is_remote(root) else Path(root).expanduser()


def content_of(file: Location, most: int) -> bytes:
    """The whole content."""
    if isinstance(file, Path):
        return reading.read_bytes(file, most)
    remote = RemoteFile(str(file))
    if remote.size > most:
        raise OSError(errno.EFBIG, f"it has {remote.size:,} bytes, more than the {most:,} it may have")
    return remote.range(remote.size, 0)


def size_of(file: Location) -> int:
    """Bytes."""
    return file.stat().st_size if isinstance(file, Path) else state_of(str(file)).size


def name_of(file: Location) -> str:
    """Return the name to open it by: its path, or its address with the tag of its current content."""
    return str(file) if isinstance(file, Path) else f"{file}#{state_of(str(file)).tag}"


def refuse_secrets(url: str) -> None:
    """Raise for an address with a password, which recipes and messages would spread."""
    parts = urlsplit(url)
    if parts.password or parts.username:
        host = parts.hostname or ""
        raise UserError(
            f"data.root: the address at {host} has a user or a password, which would be written into every "
            "run; give it without, and s3's credentials as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if parts.query or parts.fragment:
        raise UserError(
            f"data.root is '{url}': an address with '?' or '#' names one object for a while; expected a "
            "folder of shards"
        )
