"""Objects on other machines, read in ranges of bytes.

Whatever goes wrong is an ``OSError`` with a sentence as its ``strerror``, as of a file. What may pass (a lost
connection, a server that is busy) is tried again, a few times. Nothing that is read here is executed.
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
from typing import Any, TypeVar

from rankless.errors import UserError
from rankless.extras import needed

TRIES = 5
_PAUSE = 0.2  # seconds after the first try; doubled after every other one
_TIMEOUT = 60.0  # seconds for a connection, and for the next bytes of an answer
_LASTING = {400, 405, 410, 416, 501}
"""HTTP's answers that will be the same the next time."""
_BLOCK = 4 << 20  # bytes
_BLOCKS = 3  # that are held
Value = TypeVar("Value")


@dataclass(frozen=True)
class State:
    """The current state of an object.

    Attributes:
        size: bytes.
        tag: changes when its content does, as far as its server says.
        etag: HTTP's, by which a server can be asked for just this content; "" without one.
    """

    size: int
    tag: str
    etag: str = ""


@dataclass
class RemoteFile:
    """An object, read in ranges.

    Args:
        url: its address; ``#TAG`` at its end is that of the content that is expected.
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
        """Bytes."""
        return self.state.size

    def range(self, length: int, offset: int) -> bytes:
        """Fetch this many bytes from an offset; fewer at the end of the object."""
        end = min(offset + length, self.size)
        if end <= offset:
            return b""
        more = {"headers": {"If-Match": self.state.etag}} if self.state.etag else {}
        data: bytes = _tried(
            lambda: _files(self.url).cat_file(self.url, start=offset, end=end, **more), self.url
        )
        if len(data) > end - offset:
            text = "its server sends whole objects, not ranges of bytes; use one that answers range requests"
            raise OSError(errno.EIO, text, self.url)
        return data

    def pread(self, length: int, offset: int) -> bytes:
        """Fetch bytes for sequential small reads: whole blocks are fetched and held."""
        parts: list[bytes] = []
        while length > 0 and offset < self.size:
            number, start = divmod(offset, _BLOCK)
            part = self._block(number)[start : start + length]
            if not part:  # the object is shorter than its server said
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
    """Return the state of an object, requested once per process."""
    return _state(os.getpid(), url.partition("#")[0])


def forget_states() -> None:
    """Ask again for what objects are, because data is opened again."""
    _state.cache_clear()


@functools.lru_cache(maxsize=100_000)
def _state(process: int, url: str) -> State:
    info = _tried(lambda: _files(url).info(url), url)
    size = info.get("size")
    if size is None:
        text = "its server does not say how large it is; expected a Content-Length, and ranges of bytes"
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
    """Return the entries one level below an address, and whether each is a folder."""
    folder = url.rstrip("/")
    for entry in _tried(lambda: _files(folder).ls(folder + "/", detail=True), folder):
        inside = _address(folder, str(entry["name"])).rstrip("/")
        name = inside.removeprefix(f"{folder}/")
        if name and name != inside and not set(name) & set("/?#"):
            yield inside, entry["type"] == "directory"


def _address(folder: str, name: str) -> str:
    """Return the address of a listed entry; names of s3 have no scheme."""
    return name if "://" in name else f"{folder.partition('://')[0]}://{name.lstrip('/')}"


def _files(url: str) -> Any:
    return _file_system(os.getpid(), url.partition("://")[0])


@functools.cache
def _file_system(process: int, scheme: str) -> Any:
    """Make fsspec's file system of a scheme; of a process, because it has a thread of its own."""
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


def _tried(call: Callable[[], Value], url: str) -> Value:
    """Call until it works, a few times; an error becomes an OSError with a sentence."""
    number = 1
    while True:
        try:
            return call()
        except UserError:
            raise
        except Exception as error:  # of aiohttp's, botocore's, sockets' …
            if problem := _lasting(error, url):
                raise problem from None
            if number == TRIES:
                text = f"it could not be read in {TRIES} tries: {_reason(_cause(error))}"
                raise OSError(errno.EIO, text, url) from error
            time.sleep(_PAUSE * 2 ** (number - 1))
            number += 1


def _lasting(error: Exception, url: str) -> OSError | None:
    """Return the lasting problem of an error; None if trying again may help."""
    cause = _cause(error)
    status = getattr(cause, "status", 0)
    if status == 404 or isinstance(cause, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "there is no such object", url)
    if status in (401, 403) or isinstance(cause, PermissionError):
        text = f"its server does not let us read it ({status or _reason(cause)})"
        return PermissionError(errno.EACCES, text, url)
    if status == 412:
        return _changed(url)
    if status in _LASTING:
        return OSError(errno.EIO, f"it could not be read: {_reason(cause)}", url)
    return None


def _cause(error: BaseException) -> BaseException:
    """Return the real cause of an error: fsspec reports any failed size request as a missing file."""
    if isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        return error.__cause__
    return error


def _changed(url: str) -> OSError:
    return OSError(errno.ESTALE, "it has changed since the data was opened; start again", url)


def _reason(error: BaseException) -> str:
    status, message = getattr(error, "status", None), getattr(error, "message", None)
    return f"{status} {message}" if status else str(error) or type(error).__name__
