"""Downloads from a local server that breaks off, lies, and sends other files."""

from __future__ import annotations

import errno
import hashlib
import resource
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rankless.errors import UserError
from rankless.files import download
from rankless.files.download import Offer, obtain

CONTENT = bytes(range(256)) * 4000  # larger than a chunk
SHA = hashlib.sha256(CONTENT).hexdigest()


class Server(BaseHTTPRequestHandler):
    """A server of one file, whose vices are attributes."""

    content, kind = CONTENT, "application/octet-stream"
    breaks = 0  # the bytes after which each connection breaks off
    claims, has_length = "", True  # a false Content-Length, and whether it is sent
    ranges = True  # whether ranges are sent
    target = ""  # where to redirect to
    asked: list[str]  # the ranges that were requested
    statuses: list[int]  # to answer first

    def do_GET(self) -> None:
        self.asked.append(self.headers.get("Range", ""))
        if self.statuses:
            self.send_error(self.statuses.pop(0))
            return
        if self.target:
            self.send_response(302)
            self.send_header("Location", self.target)
            self.end_headers()
            return
        start, given = 0, self.headers.get("Range")
        is_part = given and self.ranges
        if is_part:
            start = int(given.removeprefix("bytes=").rstrip("-"))
        self.send_response(206 if is_part else 200)
        if is_part:
            self.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        self.send_header("Content-Type", self.kind)
        if self.has_length:
            self.send_header("Content-Length", self.claims or str(len(self.content) - start))
        self.end_headers()
        self.wfile.write(self.content[start:][: self.breaks or None])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_PAUSE", 0.001)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Server]]:
    handler = type("OneServer", (Server,), {"asked": [], "statuses": []})
    running = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("RANKLESS_WEIGHTS_MIRROR", f"http://127.0.0.1:{running.server_port}/copies/")
    yield handler
    running.shutdown()
    running.server_close()


OFFER = Offer("https://publisher.invalid/net.weights", len(CONTENT), SHA)
UNCONFIRMED = Offer("https://publisher.invalid/net.weights", len(CONTENT))


def failing(offer: Offer, folder: Path, check: Callable[[Path], object] = lambda _: None) -> str:
    with pytest.raises(UserError) as raised:
        obtain(offer, folder, check)
    assert not (folder / offer.name).exists()
    return str(raised.value)


def test_a_download_that_breaks_off_continues_where_it_was(server: type[Server], tmp_path: Path) -> None:
    server.breaks = 100_000
    assert obtain(OFFER, tmp_path)[0].read_bytes() == CONTENT
    assert server.asked == ["", *(f"bytes={start}-" for start in range(100_000, len(CONTENT), 100_000))]


def test_a_later_process_continues_but_not_with_other_content(server: type[Server], tmp_path: Path) -> None:
    server.breaks, server.ranges = 100_000, False
    assert "was lost after 100,000 of 1,024,000 bytes (5 attempts)" in failing(OFFER, tmp_path)
    server.breaks, server.ranges = 0, True
    server.asked.clear()
    assert obtain(OFFER, tmp_path)[1] == SHA
    assert server.asked == ["bytes=100000-"]
    (tmp_path / "net.weights").unlink()
    (tmp_path / "net.weights.part").write_bytes(CONTENT[::-1][:100_000])
    assert "a different file" in failing(OFFER, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_whole_part_is_only_renamed(server: type[Server], tmp_path: Path) -> None:
    (tmp_path / "net.weights.part").write_bytes(CONTENT)
    assert obtain(OFFER, tmp_path)[1] == SHA
    assert server.asked == []


def test_a_wrong_file_is_not_kept_and_both_checksums_are_named(server: type[Server], tmp_path: Path) -> None:
    server.content = CONTENT[::-1]
    message = failing(OFFER, tmp_path)
    assert hashlib.sha256(CONTENT[::-1]).hexdigest() in message
    assert SHA in message
    assert list(tmp_path.iterdir()) == []


def test_the_first_digits_and_sha1_are_compared(server: type[Server], tmp_path: Path) -> None:
    sha1 = hashlib.sha1(CONTENT).hexdigest()
    assert obtain(Offer(OFFER.url, digest=SHA[:8]), tmp_path / "a")[1] == SHA
    assert obtain(Offer(OFFER.url, digest=sha1, algorithm="sha1"), tmp_path / "b")[1] == SHA
    message = failing(Offer(OFFER.url, digest="01234567"), tmp_path / "c")
    assert "expected net.weights with the SHA-256 01234567…" in message
    server.has_length = False
    assert obtain(replace(ONLY_SHA, about=len(CONTENT) // 2), tmp_path / "d")[1] == SHA


ONLY_SHA = Offer(OFFER.url, digest=SHA)
FAR_LESS = replace(ONLY_SHA, about=len(CONTENT) // 2 - 1)  # twice as much is the most that is taken
PAGE = {"content": b"<!DOCTYPE html><html>please log in</html>", "kind": "text/html; charset=utf-8"}
NONSENSE = ("ftp://127.0.0.1/net.weights", "http://[::1/net.weights", "http://ü/")


@pytest.mark.parametrize(
    ("vices", "offer", "problem"),
    [
        ({"claims": "10"}, UNCONFIRMED, "the server sent a file of 10 bytes; the download was discarded"),
        (
            {"claims": "1024010"},
            UNCONFIRMED,
            "a file of 1,024,010 bytes; the download was discarded; expected net.weights of 1,024,000 bytes "
            "(no published checksum); ",
        ),
        ({"claims": "1024010", "ranges": False}, ONLY_SHA, "was lost after 1,024,000 of 1,024,010 bytes"),
        (PAGE, OFFER, "the server sent a web page of 41 bytes; the download was discarded"),
        (PAGE, ONLY_SHA, "the server sent a web page; the download was discarded"),
        ({}, FAR_LESS, "the server sent a file of 1,024,000 bytes; the download was discarded"),
        ({"has_length": False}, FAR_LESS, "sent more than 1,023,998 bytes; the download was discarded"),
        *(({"target": to}, OFFER, "net.weights: cannot be downloaded: ") for to in NONSENSE),
        ({"claims": "1" * 5000}, OFFER, "net.weights: cannot be downloaded: "),
    ],
)
def test_a_server_that_sends_something_else_is_named(
    server: type[Server], tmp_path: Path, vices: dict[str, Any], offer: Offer, problem: str
) -> None:
    for name, value in vices.items():
        setattr(server, name, value)
    assert problem in failing(offer, tmp_path)
    assert "discarded" not in problem or not [*tmp_path.iterdir()]


def test_a_refusal_is_final_and_a_busy_server_is_asked_again(server: type[Server], tmp_path: Path) -> None:
    server.statuses.append(404)
    message = failing(OFFER, tmp_path)
    assert "the server responded with 404" in message and len(server.asked) == 1
    where = f"download the file elsewhere and save it as {tmp_path / 'net.weights'}"
    assert f"with the SHA-256 {SHA}; {where}" in message
    server.statuses += [503, 429]
    assert obtain(OFFER, tmp_path)[1] == SHA


def test_offline_nothing_is_asked_but_a_file_put_there_by_hand_is_taken(
    server: type[Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE forbids it; expected net.weights of" in failing(OFFER, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert "HF_HUB_OFFLINE forbids" in failing(OFFER, Path("/proc/nothing"))  # where no folder can be made
    (tmp_path / "net.weights").write_bytes(CONTENT)
    assert obtain(OFFER, tmp_path)[1] == SHA
    assert server.asked == []


def test_no_network_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKLESS_WEIGHTS_MIRROR", "http://127.0.0.1:1")  # nothing listens there
    assert "http://127.0.0.1:1/net.weights: cannot be downloaded: [Errno 111]" in failing(OFFER, tmp_path)
    for mirror in ("file:///etc", "https://[::1/w", "https://mirror.example/gewürze", "http://a:b"):
        monkeypatch.setenv("RANKLESS_WEIGHTS_MIRROR", mirror)
        assert f"RANKLESS_WEIGHTS_MIRROR is '{mirror}': expected an address" in failing(OFFER, tmp_path)


def test_a_file_that_is_there_is_checked_and_never_replaced(server: type[Server], tmp_path: Path) -> None:
    path = tmp_path / "net.weights"
    for other, found in ((CONTENT[::-1], "its SHA-256 is"), (b"short", "it has 5 bytes")):
        path.write_bytes(other)
        with pytest.raises(UserError, match=f"{path}: {found}.*remove it and download it again"):
            obtain(OFFER, tmp_path)
        assert path.read_bytes() == other
    assert server.asked == []


def test_an_unconfirmed_file_is_checked_and_its_checksum_printed(
    server: type[Server], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(path: Path) -> None:
        raise UserError(f"{path.name}: not a weights file")

    assert "different file (net.weights.part: not a weights file)" in failing(UNCONFIRMED, tmp_path, check)
    assert list(tmp_path.iterdir()) == []
    obtain(UNCONFIRMED, tmp_path)
    assert f"net.weights: no checksum is published; the SHA-256 is {SHA}" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"its content is wrong \(net.weights: not a w.*; remove it"):
        obtain(UNCONFIRMED, tmp_path, check)  # as if it had been put there by hand


def test_of_several_processes_one_downloads_and_the_others_wait(server: type[Server], tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    with ThreadPoolExecutor(4) as pool:  # each opens the part by itself, so the locks are those of processes
        found = set(pool.map(lambda _: obtain(OFFER, folder), range(4)))
    assert found == {(folder / "net.weights", SHA)} and (folder / "net.weights").read_bytes() == CONTENT
    assert len(server.asked) == 1 and len(list(folder.iterdir())) == 1


def test_without_locks_each_process_fills_its_own_part(
    server: type[Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")  # as some network file systems do

    monkeypatch.setattr(download.fcntl, "flock", flock)
    server.breaks = 200_000
    with ThreadPoolExecutor(4) as pool:
        assert {one[1] for one in pool.map(lambda _: obtain(OFFER, tmp_path), range(4))} == {SHA}
    assert [path.name for path in tmp_path.iterdir()] == ["net.weights"]


def test_a_redirect_from_https_goes_to_https_only() -> None:
    request, headers = urllib.request.Request("https://a.example/w"), Message()
    follow = download._Redirects().redirect_request
    for target in ("http://b.example/w", "ftp://b.example/w"):
        with pytest.raises(urllib.error.HTTPError, match=f"redirect to {target}; expected https"):
            follow(request, None, 302, "", headers, target)
    followed = follow(request, None, 302, "", headers, "https://b.example/w")
    assert followed is not None and followed.full_url == "https://b.example/w"


def test_without_a_checksum_a_broken_download_starts_again(server: type[Server], tmp_path: Path) -> None:
    (tmp_path / "net.weights.part").write_bytes(CONTENT[::-1][:100_000])
    obtain(UNCONFIRMED, tmp_path)
    assert (tmp_path / "net.weights").read_bytes() == CONTENT and server.asked == [""]


def test_a_full_disk_keeps_what_has_arrived(server: type[Server], tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, before[1]))  # as on a full disk, writing fails
        message = failing(OFFER, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert "(File too large); the part downloaded so far is kept; make room, and try" in message
    assert (tmp_path / "net.weights.part").stat().st_size == 300_000
    assert obtain(OFFER, tmp_path)[1] == SHA
    assert server.asked == ["", "bytes=300000-"]
