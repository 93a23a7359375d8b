"""Read data from other machines (``https://…``, ``s3://…``) in byte ranges.

Every failure is an ``OSError`` with a sentence as its ``strerror``, as for local files. Requests are retried
a few times after temporary failures, such as a lost connection or a busy server.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from rankless.errors import UserError
from rankless.extras import needed
from rankless.files import reading

SCHEMES = ("https", "http", "s3")
TRIES = 5
_PAUSE = 0.2  # seconds after the first attempt; doubled after every further one
_TIMEOUT = 60.0  # seconds for a connection, and for the next bytes of a response
_LASTING = {400, 405, 410, 416, 501}
"""HTTP status codes after which a request is not retried."""
_BLOCK = 4 << 20  # bytes
_BLOCKS = 3  # number of blocks kept in memory
Value = TypeVar("Value")


def is_remote(path: str) -> bool:
    """Check whether ``path`` is the address of an object on another machine."""
    scheme, mark, rest = path.partition("://")
    return bool(mark and rest) and scheme in SCHEMES


@dataclass(unsafe_hash=True)
class RemotePath:
    """An address with the methods of :class:`pathlib.Path` that shard data sets need.

    If ``is_folder`` is None, the server is queried when needed.
    """

    url: str
    is_folder: bool | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        self.url = self.url.rstrip("/")

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self.url}/{name}")

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> RemotePath:
        return RemotePath(self.url.rpartition("/")[0], True)

    def is_dir(self) -> bool:
        """Check whether there are objects below the address."""
        if self.is_folder is None:
            try:
                self.is_folder = any(True for _ in self.iterdir())
            except FileNotFoundError:
                self.is_folder = False
        return self.is_folder

    def is_file(self) -> bool:
        """Check whether the address refers to an object."""
        if self.is_folder is not None:
            return not self.is_folder
        try:
            state_of(self.url)
        except FileNotFoundError:
            return False
        return True

    def iterdir(self) -> Iterator[RemotePath]:
        """Yield the entries one level below the address."""
        for url, is_folder in listed(self.url):
            yield RemotePath(url, is_folder)


Location = Path | RemotePath


def location(root: str) -> Location:
    """Return the root of a data set as a local path or an address."""
    return RemotePath(root) if is_remote(root) else Path(root).expanduser()


def content_of(file: Location, most: int) -> bytes:
    """Return the contents of a file or object; raise an OSError if it has more than ``most`` bytes."""
    if isinstance(file, Path):
        return reading.read_bytes(file, most)
    remote = RemoteFile(str(file))
    if remote.size > most:
        raise OSError(errno.EFBIG, f"it has {remote.size:,} bytes, more than the allowed {most:,}")
    return remote.range(remote.size, 0)


def size_of(file: Location) -> int:
    """Return the size of a file or object in bytes."""
    return file.stat().st_size if isinstance(file, Path) else state_of(str(file)).size


def name_of(file: Location) -> str:
    """Return the path of a file, or the address of an object with the tag of its current content."""
    return str(file) if isinstance(file, Path) else f"{file}#{state_of(str(file)).tag}"


def refuse_secrets(url: str) -> None:
    """Raise a UserError if an address contains credentials, a query or a fragment.

    Recipes and messages would reveal the credentials.
    """
    parts = urlsplit(url)
    if parts.password or parts.username:
        host = parts.hostname or ""
        raise UserError(
            f"data.root: the address at {host} contains a user name or password, which would be "
            "recorded in every run; remove it, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for S3"
        )
    if parts.query or parts.fragment:
        raise UserError(
            f"data.root is '{url}': expected the address of a folder of shards without '?' and '#'; remove "
            "these characters and everything after them"
        )


@dataclass(frozen=True)
class State:
    """The size and version of an object at the time of a request."""

    size: int
    tag: str  # text that changes when the content changes, as far as the server reports it
    etag: str = ""  # strong HTTP ETag, with which to request exactly this content; empty if there is none


@dataclass
class RemoteFile:
    """An object that is read in byte ranges.

    Its address may end with ``#TAG``, the tag of the expected content.
    """

    url: str
    state: State = field(init=False)
    _held: OrderedDict[int, bytes] = field(init=False, default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.url, _, expected = self.url.partition("#")
        self.state = state_of(self.url)
        if expected and expected != self.state.tag:
            raise _changed(self.url)

    @property
    def size(self) -> int:
        return self.state.size

    def range(self, length: int, offset: int) -> bytes:
        """Fetch and return ``length`` bytes from ``offset``, or fewer at the end of the object."""
        end = min(offset + length, self.size)
        if end <= offset:
            return b""
        more = {"headers": {"If-Match": self.state.etag}} if self.state.etag else {}
        data: bytes = _retried(
            lambda: _files(self.url).cat_file(self.url, start=offset, end=end, **more), self.url
        )
        if len(data) > end - offset:
            text = "its server sends whole objects; use a server that supports range requests"
            raise OSError(errno.EIO, text, self.url)
        return data

    def pread(self, length: int, offset: int) -> bytes:
        """Return ``length`` bytes from ``offset``, fetched in blocks that are kept for further reads."""
        parts: list[bytes] = []
        while length > 0 and offset < self.size:
            number, start = divmod(offset, _BLOCK)
            part = self._block(number)[start : start + length]
            if not part:  # the object is shorter than the server reported
                break
            parts.append(part)
            offset, length = offset + len(part), length - len(part)
        return b"".join(parts)

    def _block(self, number: int) -> bytes:
        if number not in self._held:
            self._held[number] = self.range(_BLOCK, number * _BLOCK)
            if len(self._held) > _BLOCKS:
                self._held.popitem(last=False)
        return self._held[number]


def state_of(url: str) -> State:
    """Return the state of an object; each process requests it only once."""
    return _state(os.getpid(), url.partition("#")[0])


def forget_states() -> None:
    """Clear all cached states, so that reopened data requests them again."""
    _state.cache_clear()


@functools.lru_cache(maxsize=100_000)
def _state(process: int, url: str) -> State:
    info = _retried(lambda: _files(url).info(url), url)
    size = info.get("size")
    if size is None:
        text = "its server does not report its size; use a server that sends Content-Length"
        raise OSError(errno.EIO, text, url)
    if info.get("type") == "directory":
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), url)
    etag = str(info.get("ETag") or "")
    marks = [
        size,
        etag,
        *(str(info.get(name) or "") for name in ("Last-Modified", "LastModified", "created")),
    ]
    tag = hashlib.blake2b(repr(marks).encode(), digest_size=8).hexdigest()
    is_http = url.startswith("http")
    return State(int(size), tag, etag if is_http and not etag.startswith("W/") else "")


def listed(url: str) -> Iterator[tuple[str, bool]]:
    """Yield the entries one level below an address, and whether each is a folder."""
    folder = url.rstrip("/")
    for entry in _retried(lambda: _files(folder).ls(folder + "/", detail=True), folder):
        inside = _address(folder, str(entry["name"])).rstrip("/")
        name = inside.removeprefix(f"{folder}/")
        if name and name != inside and not set(name) & set("/?#"):
            yield inside, entry["type"] == "directory"


def _address(folder: str, name: str) -> str:
    """Return the address of a listed entry, adding the scheme if it is missing, as in listings of S3."""
    return name if "://" in name else f"{folder.partition('://')[0]}://{name.lstrip('/')}"


def _files(url: str) -> Any:
    return _file_system(os.getpid(), url.partition("://")[0])


@functools.cache
def _file_system(process: int, scheme: str) -> Any:
    """Return fsspec's file system for a scheme. Each process needs its own, as fsspec starts a thread."""
    where = f"data.root is of {scheme}://"
    fsspec = needed("fsspec", "remote", where)
    options: dict[str, Any] = {}
    if scheme in ("http", "https"):
        aiohttp = needed("aiohttp", "remote", where)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_TIMEOUT, sock_read=_TIMEOUT)
        options = {"client_kwargs": {"timeout": timeout}}
    elif scheme == "s3":
        needed("s3fs", "s3", where)
        options = {"config_kwargs": {"connect_timeout": _TIMEOUT, "read_timeout": _TIMEOUT}}
    return fsspec.filesystem(scheme, skip_instance_cache=True, use_listings_cache=False, **options)


def _retried(call: Callable[[], Value], url: str) -> Value:
    """Call a function until it succeeds, at most ``TRIES`` times; raise the last error as an OSError."""
    number = 1
    while True:
        try:
            return call()
        except UserError:
            raise
        except Exception as error:  # from aiohttp, botocore, sockets …
            if problem := _lasting(error, url):
                raise problem from None
            if number == TRIES:
                text = f"it could not be read in {TRIES} attempts: {_reason(_cause(error))}"
                raise OSError(errno.EIO, text, url) from error
            time.sleep(_PAUSE * 2 ** (number - 1))
            number += 1


def _lasting(error: Exception, url: str) -> OSError | None:
    """Convert an error to an OSError if a retry would not fix it; otherwise, return None."""
    cause = _cause(error)
    status = getattr(cause, "status", 0)
    if status == 404 or isinstance(cause, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "there is no such object", url)
    if status in (401, 403) or isinstance(cause, PermissionError):
        text = f"its server denies access ({status or _reason(cause)})"
        return PermissionError(errno.EACCES, text, url)
    if status == 412:
        return _changed(url)
    if status in _LASTING:
        return OSError(errno.EIO, f"it could not be read: {_reason(cause)}", url)
    return None


def _cause(error: BaseException) -> BaseException:
    """Return the underlying cause of an error: fsspec reports any failed size request as a missing file."""
    if isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        return error.__cause__
    return error


def _changed(url: str) -> OSError:
    return OSError(errno.ESTALE, "it has changed since the data was opened; start again", url)


def _reason(error: BaseException) -> str:
    status, message = getattr(error, "status", None), getattr(error, "message", None)
    return f"{status} {message}" if status else str(error) or type(error).__name__
