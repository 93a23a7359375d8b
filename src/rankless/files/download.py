"""Download files over HTTP, resume after a lost connection, and verify each file before renaming it.

``NAME.part`` contains the bytes received so far. Only a file with a published checksum resumes, because the
content may have changed in between. A process locks the partial file while it downloads; other processes
wait.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import os
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rankless.errors import UserError, printable, remedy
from rankless.files import checksums, reading
from rankless.files.hub import OFFLINE, is_offline
from rankless.files.writing import has_name, token
from rankless.printing import ProgressBar, say

MIRROR = "RANKLESS_WEIGHTS_MIRROR"
"""Environment variable with the address of a mirror of the published files."""
_TRIES = 5  # consecutive attempts that receive no bytes
_PAUSE = 0.2  # seconds before the second attempt, doubled for each further one
_TIMEOUT = 30.0  # seconds without receiving a byte
_CHUNK = 1 << 18  # bytes
_LASTING = {301, 302, 303, 307, 308, 400, 401, 403, 404, 405, 410, 451, 501}
"""HTTP status codes after which a request is not retried."""
_NETWORK = (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, ConnectionError, TimeoutError)
_BROKEN = (*_NETWORK, ValueError)  # ValueError: an unreadable address or length
"""Connection errors. Any other ``OSError`` is an error of the disk."""


@dataclass(frozen=True)
class Offer:
    """A published file that can be downloaded."""

    url: str
    length: int = 0  # bytes; 0 if the exact length is not known
    digest: str = ""  # the checksum or its first digits; empty if no checksum was published
    algorithm: str = "sha256"  # or sha1
    about: int = 0  # bytes, accurate to a few hundred; 0 if the length is not known

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def address(self) -> str:
        """The address to download from: the publisher's or the mirror's."""
        mirror = os.environ.get(MIRROR, "").rstrip("/")
        if mirror and not _is_address(mirror):
            raise UserError(
                f"{MIRROR} is '{mirror}': expected an address in ASCII, as in https://mirror.example/weights"
            )
        return f"{mirror}/{self.name}" if mirror else self.url

    def described(self) -> str:
        """Describe the file by its name, length and checksum."""
        length = f" of {self.length:,} bytes" if self.length else ""
        length = length or (f" of about {self.about / 1e6:,.1f} MB" if self.about else "")
        if not self.digest:
            return f"{self.name}{length} (no published checksum)"
        return f"{self.name}{length} with the {self.checksum} {self.digest}{'…' * self.is_short}"

    @property
    def is_short(self) -> bool:
        """Whether only the first digits of the checksum are known."""
        return len(self.digest) < hashlib.new(self.algorithm).digest_size * 2

    @property
    def checksum(self) -> str:
        """The name of the checksum algorithm, such as ``SHA-256``."""
        return self.algorithm.upper().replace("SHA", "SHA-")


def _is_address(text: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(text)
        return bool(re.fullmatch("https?://[!-~]+", text) and parts.hostname and parts.port != 0)
    except ValueError:  # an invalid bracket or port
        return False


def obtain(offer: Offer, folder: Path, check: Callable[[Path], object] = lambda _: None) -> tuple[Path, str]:
    """Download a published file into ``folder`` unless it exists there; return its path and SHA-256 digest.

    ``check`` is called with the path of the downloaded file and raises a UserError if the content is wrong.
    """
    path = folder / offer.name
    if not path.exists():
        if is_offline():
            raise _failed(offer, path, f"--offline or {OFFLINE} forbids it")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _locked(path.with_name(f"{path.name}.part"), path) as (part, file):
                if file is not None:
                    _download(offer, path, part, file, check)
        except OSError as error:
            raise UserError(
                f"{path}: cannot be written ({error.strerror or error}); the part downloaded so far is "
                f"kept; {remedy(error)}, and try again"
            ) from error
    if path.stat().st_size != (offer.length or path.stat().st_size):
        found = f"it has {path.stat().st_size:,} bytes"
    elif other := _other_digest(offer, path):
        found = f"its {offer.checksum} is {other}"
    else:
        try:
            if not offer.digest:
                check(path)
        except UserError as error:
            found = f"its content is wrong ({error})"
        else:
            return path, checksums.of_file(path)
    raise UserError(f"{path}: {found}; expected {offer.described()}; remove it and download it again")


@contextmanager
def _locked(part: Path, path: Path) -> Iterator[tuple[Path, IO[bytes] | None]]:
    """Yield the partial file, locked and open for writing, or None if another process has completed it.

    On a file system without locks, each process downloads into its own partial file, which is not kept.
    """
    while True:
        with os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+b", 0) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"waiting for another process to download {path.name}")
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:  # some network file systems have no locks
                break
            if path.exists():
                part.unlink(missing_ok=True)
                yield part, None
                return
            if has_name(file.fileno(), part):
                yield part, file
                return
    with token(path.parent) as own, own.open("r+b", 0) as file:
        try:
            yield own, file
        finally:
            if path.exists():
                part.unlink(missing_ok=True)


def _download(offer: Offer, path: Path, part: Path, file: IO[bytes], check: Callable[[Path], object]) -> None:
    try:
        if not (offer.digest and file.seek(0, os.SEEK_END) and not _other_digest(offer, part)):
            _fill(offer, path, file)
        os.fsync(file.fileno())
        if other := _other_digest(offer, part):
            raise _OtherFileError(f"the server sent a different file, with the {offer.checksum} {other}")
        try:
            check(part)
        except UserError as error:
            raise _OtherFileError(f"the server sent a different file ({error})") from error
    except _OtherFileError as error:
        part.unlink()
        raise _failed(offer, path, f"{error}; the download was discarded") from None
    part.replace(path)
    if not offer.digest:
        say(f"{path.name}: no checksum is published; the SHA-256 is {checksums.of_file(path)}")


def _fill(offer: Offer, path: Path, file: IO[bytes]) -> None:
    """Download the missing bytes; give up after ``_TRIES`` consecutive attempts that receive no bytes."""
    address, left = offer.address, _TRIES
    while left:
        before = file.seek(0, os.SEEK_END)
        try:
            return _receive(offer, address, file)
        except urllib.error.HTTPError as error:
            error.close()
            reason = f"the server responded with {error.code} {error.reason}"
            if error.code in _LASTING:
                raise _failed(offer, path, reason) from error
        except _BROKEN as error:
            reason = str(getattr(error, "reason", "") or error or type(error).__name__)
        left = left - 1 if file.seek(0, os.SEEK_END) <= before else _TRIES
        if left:
            time.sleep(_PAUSE * 2 ** (_TRIES - left))
    raise _failed(offer, path, f"{reason} ({_TRIES} attempts)")


class _OtherFileError(Exception):
    """Raised when the server sends the wrong file."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """A handler that follows redirects from https only to https."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        allowed = ("https",) if req.full_url.startswith("https:") else ("https", "http")
        if urllib.parse.urlsplit(newurl).scheme not in allowed:
            reason = f"(a redirect to {newurl}; expected https)"
            raise urllib.error.HTTPError(req.full_url, code, reason, headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _receive(offer: Offer, address: str, file: IO[bytes]) -> None:
    """Append the missing bytes to the partial file; keep them if the connection is lost."""
    at = file.seek(0, os.SEEK_END) if offer.digest else 0
    headers = {"User-Agent": "rankless", "Accept-Encoding": "identity"}
    if at:
        headers["Range"] = f"bytes={at}-"
    try:
        response: Any = urllib.request.build_opener(_Redirects).open(
            urllib.request.Request(address, headers=headers), timeout=_TIMEOUT
        )
    except urllib.error.HTTPError as error:
        if error.code != 416:  # the partial file is as long as the content, or longer
            raise
        error.close()
        file.truncate(0)
        raise ConnectionError("the server has no more bytes") from error
    with response:
        begins = response.headers.get("Content-Range", "").startswith(f"bytes {at}-")
        if response.status == 206 and not begins:
            file.truncate(0)
            raise ConnectionError("the server sent the wrong range")
        if response.status != 206:
            at = 0
            file.truncate(0)
        length = response.headers.get("Content-Length", "")
        total = at + int(length) if length.isdecimal() else 0
        most = offer.length or 2 * offer.about
        if (offer.length and total not in (0, offer.length)) or (most and total > most):
            what = "a web page" if "html" in response.headers.get("Content-Type", "") else "a file"
            raise _OtherFileError(f"the server sent {what} of {total:,} bytes")
        file.seek(at)
        with ProgressBar(total or offer.length or 1, offer.name, done=at) as bar:
            _copy(response, file, at, total or offer.length, total or most, bar)
    end = file.tell()
    if end < (total or offer.length):
        raise ConnectionError(f"the connection was lost after {end:,} of {total or offer.length:,} bytes")


def _copy(response: Any, file: IO[bytes], at: int, total: int, most: int, bar: ProgressBar) -> None:
    began, first = time.monotonic(), at
    while chunk := response.read1(_CHUNK):
        if at == 0 and chunk.lstrip()[:9].lower().startswith((b"<!doctype", b"<html")):
            raise _OtherFileError("the server sent a web page")
        if most and at + len(chunk) > most:
            raise _OtherFileError(f"the server sent more than {most:,} bytes")
        rest = memoryview(chunk)
        while rest:
            rest = rest[file.write(rest) :]
        at += len(chunk)
        speed = (at - first) / max(time.monotonic() - began, 1e-3)
        of_total = f" of {total / 1e6:,.1f}" if total else ""
        bar.update(at, f"{bar.title}: {at / 1e6:,.1f}{of_total} MB", max(total - at, 0) / max(speed, 1.0))


def _other_digest(offer: Offer, path: Path) -> str:
    """Return the file's checksum if it differs from the published one; otherwise, return ""."""
    with reading.opened(path) as file:
        found = hashlib.file_digest(file, offer.algorithm).hexdigest()
    return "" if found.startswith(offer.digest) else found


def _failed(offer: Offer, path: Path, reason: str) -> UserError:
    return UserError(
        f"{offer.address}: cannot be downloaded: {printable(reason, 300)}; expected {offer.described()}; "
        f"download the file elsewhere and save it as {path}"
    )
