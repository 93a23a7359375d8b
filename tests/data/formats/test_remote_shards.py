"""Tar shards on another machine: the same images in the same order as from the disk, and sentences.

The servers are Python's own, given ranges, and fsspec's file system in memory.
"""

from __future__ import annotations

import functools
import http.server
import importlib.util
import re
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

from rankless.curation.data_set import open_data_set
from rankless.data.datasets.open_split import open_annotations
from rankless.data.formats.packing import pack
from rankless.data.images import image_cache
from rankless.data.images.image_file import Shown, UnreadableImage
from rankless.data.images.sources import FileImages
from rankless.data.index.byte_ranges import content, file_of
from rankless.errors import UserError
from rankless.files import remote

pytest.importorskip("aiohttp")


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, with ranges; counts requests, and fails as often as it is asked to."""

    requests: ClassVar[Counter[str]] = Counter()
    failures: ClassVar[list[int]] = []
    ranges = True

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.requests[self.path] += 1
        if self.failures and "Range" in self.headers:
            self.send_error(self.failures.pop())
            return
        if self.tag() and self.headers.get("If-Match", self.tag()) != self.tag():
            self.send_error(412)
            return
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not found or not self.ranges or not self.tag():
            super().do_GET()
            return
        data = Path(self.translate_path(self.path)).read_bytes()
        first, last = int(found[1]), min(int(found[2]), len(data) - 1)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        self.wfile.write(data[first : last + 1])

    def end_headers(self) -> None:
        if self.tag():
            self.send_header("ETag", self.tag())
        super().end_headers()

    def tag(self) -> str:
        path = Path(self.translate_path(self.path))
        return f'"{path.stat().st_mtime_ns}-{path.stat().st_size}"' if path.is_file() else ""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("labels")
    rng = np.random.default_rng(0)
    for split, count in (("train", 12), ("val", 4)):
        (source / "images" / split).mkdir(parents=True)
        (source / "labels" / split).mkdir(parents=True)
        for number in range(count):
            noise = Image.fromarray(rng.integers(0, 255, (40, 60, 3), np.uint8))
            noise.save(source / "images" / split / f"{number:03}.jpg")
            (source / "labels" / split / f"{number:03}.txt").write_text(
                f"{number % 2} .5 .5 .4 .{1 + number % 8}\n"
            )
    (source / "data.yaml").write_text("train: images/train\nval: images/val\nnames: [a, b]\n")
    out = tmp_path_factory.mktemp("shards")
    whole = open_data_set(str(source))
    pack(whole.splits, out, shard_bytes=12_000)
    assert len([*out.rglob("*.tar")]) > 4
    return out


@pytest.fixture
def folder(packed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed, tmp_path / "served"))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_PAUSE", 0.0)


@pytest.fixture
def server(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impatient: None) -> Iterator[str]:
    monkeypatch.setenv("RANKLESS_CACHE", str(tmp_path / "cache"))
    Handler.requests, Handler.failures, Handler.ranges = Counter(), [], True
    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as made:
        made.daemon_threads = True
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{made.server_port}/"
        made.shutdown()
        thread.join()
    remote.forget_states()


def fetched() -> int:
    return sum(count for path, count in Handler.requests.items() if path.endswith(".tar"))


def test_images_order_and_boxes_are_those_of_the_disk(server: str, folder: Path) -> None:
    for split in ("train", "val"):
        here, there = open_annotations(str(folder), split), open_annotations(server, split)
        assert here.digest() == there.digest() and here.class_names == there.class_names
        assert (here.byte_ranges == there.byte_ranges).all()
        assert [p.rpartition("//")[2] for p in here.paths()] == [p.rpartition("//")[2] for p in there.paths()]
        assert [content(here, n) for n in range(len(here))] == [content(there, n) for n in range(len(there))]
        assert torch.equal(FileImages(here).read(1).image, FileImages(there).read(1).image)


def test_what_was_read_is_read_from_the_disk_again(server: str) -> None:
    data = open_annotations(server, "train")
    before = fetched()
    first = [content(data, number) for number in range(len(data))]
    assert fetched() - before == len(data)  # one request for each image, of its bytes alone
    assert [content(data, number) for number in range(len(data))] == first
    assert fetched() - before == len(data)
    again = open_annotations(server, "train")  # the annotations too
    assert fetched() - before == len(data) and again.digest() == data.digest()


def test_without_a_cache_every_image_is_fetched_again(server: str, monkeypatch) -> None:
    monkeypatch.setenv("RANKLESS_REMOTE_CACHE", "0")
    data = open_annotations(server, "val")
    before = fetched()
    assert content(data, 0) == content(data, 0)
    assert fetched() - before == 2


def test_decoded_images_are_cached_as_of_files(server: str, tmp_path: Path) -> None:
    data = open_annotations(server, "val")
    images, _ = image_cache.open_images(data, Shown((64, 64)), "disk")
    first = images.read(0).image.clone()
    shutil.rmtree(tmp_path / "cache" / "remote")
    before = fetched()
    assert torch.equal(images.read(0).image, first) and fetched() == before


def test_a_server_that_fails_for_a_moment_is_asked_again(server: str) -> None:
    data = open_annotations(server, "val")
    Handler.failures = [503, 500, 429]
    assert len(content(data, 0)) == data.byte_ranges[0, 1]
    assert Handler.failures == []


def test_a_server_that_goes_on_failing_is_a_sentence(server: str) -> None:
    data = open_annotations(server, "val")
    Handler.failures = [503] * 50
    with pytest.raises(UnreadableImage, match=r"it could not be read in 5 attempts: 503"):
        content(data, 0)
    assert len(Handler.failures) == 45
    Handler.failures = [403]
    with pytest.raises(UnreadableImage, match=r"its server denies access \(403\)"):
        content(data, 1)


def test_a_shard_that_changes_is_noticed(server: str, folder: Path) -> None:
    data = open_annotations(server, "val")
    content(data, 0)
    shard = folder / file_of(data.path(0)).partition("#")[0].removeprefix(server)
    shard.write_bytes(shard.read_bytes() + bytes(1024))
    with pytest.raises(UnreadableImage, match="it has changed since the data was opened; start again"):
        content(data, 1)
    again = open_annotations(server, "val")  # read again, though its name and its samples are the same
    assert again.path(0) != data.path(0) and again.digest() == data.digest()
    assert content(again, 0) == content(data, 0)


def test_a_shard_that_goes_is_noticed(server: str, folder: Path) -> None:
    data = open_annotations(server, "val")
    for shard in folder.rglob("*val*.tar"):
        shard.unlink()
    with pytest.raises(UnreadableImage, match="there is no such object"):
        content(data, 0)


def test_a_damaged_shard_is_a_sentence(server: str, folder: Path) -> None:
    for shard in folder.rglob("*.tar"):
        shard.write_bytes(shard.read_bytes()[:700])
    with pytest.raises(UserError, match=r"truncated after 700 bytes.*copy the shard again"):
        open_annotations(server, "val")


def test_a_server_without_ranges_is_a_sentence(server: str) -> None:
    data = open_annotations(server, "val")
    Handler.ranges = False
    with pytest.raises(UnreadableImage, match="its server sends whole objects; use a server"):
        content(data, 0)


def test_an_address_without_shards_is_a_sentence(server: str, folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    with pytest.raises(UserError, match="the server lists no tar shards"):
        open_annotations(server, "val")
    with pytest.raises(UserError, match="the server lists no tar shards"):
        open_annotations(f"{server}none", "val")


@pytest.mark.usefixtures("impatient")
def test_a_server_that_is_not_there_is_a_sentence() -> None:
    with pytest.raises(UserError, match=r"http://127\.0\.0\.1:9/data: it could not be read in 5 attempts"):
        open_annotations("http://127.0.0.1:9/data", "val")


@pytest.mark.parametrize(
    ("root", "format", "problem"),
    [
        ("https://me:secret@host/data", "auto", "the address at host contains a user name"),
        ("https://host/data?token=1", "auto", "without '\\?' and '#'"),
        ("https://host/data", "coco", "only tar shards can be read from a URL"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_asked(root: str, format: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem) as caught:
        open_annotations(root, "val", format)
    assert "secret" not in str(caught.value)


@pytest.mark.skipif(importlib.util.find_spec("s3fs") is not None, reason="s3fs is installed")
def test_a_library_that_is_missing_is_named_with_its_extra() -> None:
    with pytest.raises(UserError, match=r"needs s3fs.*pip install 'rankless\[s3\]'"):
        open_annotations("s3://bucket/data", "val")


@pytest.mark.processes  # looks after the files of the shards here
def test_another_file_system_gives_the_same(packed: Path, tmp_path: Path, monkeypatch) -> None:
    import fsspec

    monkeypatch.setenv("RANKLESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "SCHEMES", (*remote.SCHEMES, "memory"))
    memory = fsspec.filesystem("memory")
    for file in packed.rglob("*"):
        if file.is_file():
            memory.pipe(f"/bucket/set/{file.relative_to(packed)}", file.read_bytes())
    here, there = open_annotations(str(packed), "train"), open_annotations("memory://bucket/set", "train")
    assert here.digest() == there.digest()
    assert [content(here, n) for n in range(len(here))] == [content(there, n) for n in range(len(there))]
