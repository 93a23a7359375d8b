"""Kept images: the same bits as decoded ones, one copy for all, and never one of a source that changed."""

from __future__ import annotations

import gc
import os
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from rankless.data.builtin.digits import DigitScenes
from rankless.data.datasets.annotated import BoxedImages
from rankless.data.datasets.detection import DetectionExamples
from rankless.data.images.image_cache import CachedImages, needed, open_images
from rankless.data.images.image_file import Decoded, Shown, UnreadableImage, read_for
from rankless.data.images.sources import FileImages
from rankless.data.index.annotations import Annotations, flat_paths
from rankless.data.index.raw import RawBuilder
from rankless.data.index.scan import with_headers
from rankless.data.index.validation import validate
from rankless.errors import UserError
from rankless.recipe.schema import Augment, Data
from support.small_disk import small_files

SIZE = (64, 96)
SHOWN = Shown(SIZE)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKLESS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "memory").mkdir()


def drawn(path: Path, seed: int, size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def known(tmp_path: Path) -> Annotations:
    sizes = [(64, 96), (300, 500), (50, 40), (0, 0)]
    paths = [str(tmp_path / name) for name in ("a.png", "b.jpg", "c.png", "d.jpg")]
    for number, (path, size) in enumerate(zip(paths[:3], sizes[:3], strict=True)):
        drawn(Path(path), number, size)
    Path(paths[3]).write_text("no image")
    made = RawBuilder()
    for path, size in zip(paths, sizes, strict=True):
        made.add_box(made.add_image(path, size=size), (3, 4, 30, 40), 0, 1)
    return validate(made.raw(names=["thing"]), "test")


def in_memory(known: Annotations) -> tuple[FileImages | CachedImages, tuple[str, ...]]:
    return open_images(known, SHOWN, "ram", Path(known.path(0)).with_name("memory"))


def opened(kind: str, known: Annotations) -> CachedImages:
    images, _ = in_memory(known) if kind == "ram" else open_images(known, SHOWN, "disk")
    assert isinstance(images, CachedImages)
    return images


class Undecodable(FileImages):
    def read(self, index: int) -> Decoded:
        raise AssertionError("a cached image was decoded again")


def only_cached(images: CachedImages, index: int) -> Decoded:
    undecodable = Undecodable(images.images.annotations, images.images.shown)
    return replace(images, images=undecodable).read(index)


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_items_are_the_same_bits_kept_or_not(kind: str, known: Annotations) -> None:
    options = Augment(mosaic=0.5)
    plain = DetectionExamples(BoxedImages(known), SIZE, 1, options)
    kept = DetectionExamples(BoxedImages(known, opened(kind, known)), SIZE, 1, options)
    for epoch in range(6):
        for index in range(3):
            try:
                one = plain.item(index, epoch)
            except UnreadableImage:
                with pytest.raises(UnreadableImage):
                    kept.item(index, epoch)
                continue
            other = kept.item(index, epoch)
            assert torch.equal(one.image, other.image) and torch.equal(one.boxes, other.boxes)
            assert one.letterbox == other.letterbox


def test_the_examples_open_the_cache_and_say_so(known: Annotations) -> None:
    examples = DetectionExamples(BoxedImages(known), SIZE, 1, None, data=Data(cache="disk"))
    assert "decoded images are cached in" in examples.notes[-1]
    examples.item(0, 0)
    assert isinstance(examples.images, BoxedImages) and isinstance(examples.images.images, CachedImages)
    assert len([path for path in examples.images.images.folder.rglob("*") if path.is_file()]) == 1


@pytest.mark.parametrize("cache", ["none", "ram", "disk"])
def test_images_of_another_range_are_other_images(cache: Any, tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 50, 100]], np.int32)).save(tmp_path / "a.tif")
    made = RawBuilder()
    made.add_box(made.add_image(str(tmp_path / "a.tif")), (0, 0, 1, 1), 0, 1)
    known = validate(with_headers(made.raw(names=["thing"])), "test")
    for values, expected in (("auto", [0, 128, 255]), ((0.0, 200.0), [0, 64, 128]), ("auto", [0, 128, 255])):
        examples = DetectionExamples(BoxedImages(known), SIZE, 1, None, data=Data(cache=cache, range=values))
        assert examples.images.read(0).image[0].tolist() == [expected]
        assert not [note for note in examples.notes if "unknown range" in note]
    with pytest.raises(UserError, match=r"a.tif: unknown range: .*integers .*from 0 to 100"):
        DetectionExamples(BoxedImages(known), SIZE, 1, None, data=Data(cache=cache))


def test_nothing_is_cached_without_files_and_that_is_reported() -> None:
    digits = DigitScenes("val", 2, 0, (64, 64))
    examples = DetectionExamples(digits, (64, 64), 0, None, data=Data(cache="disk"))
    assert "data.cache is 'disk', but generated images are not cached" in examples.notes[-1]
    assert examples.images is digits


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_the_second_time_nothing_is_decoded(kind: str, known: Annotations) -> None:
    cache = opened(kind, known)
    for index in range(3):
        made = cache.read(index)
        copy = pickle.loads(pickle.dumps(cache))  # as in a loader process
        found = only_cached(copy, index)
        assert torch.equal(made.image, found.image) and made[1:] == found[1:]
    assert found.reduced == 1 and only_cached(cache, 1).reduced == 2


def test_what_is_written_into_an_image_stays_there(known: Annotations) -> None:
    cache = opened("disk", known)
    cache.read(0)
    found = only_cached(cache, 0).image
    found.zero_()
    assert only_cached(cache, 0).image.any()


def test_processes_share_one_copy(known: Annotations) -> None:
    """A mapped image is none of a process's own pages (proportional and private memory, smaps)."""
    cache = opened("disk", known)
    cache.read(1)
    found = only_cached(cache, 1).image
    assert int(found.sum()) > 0  # every page was touched
    address, mine = found.data_ptr(), None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()
        if "-" in head[0] and not head[0].endswith(":"):
            first, last = (int(end, 16) for end in head[0].split("-"))
            mine = first <= address < last
        elif mine and head[0] == "Private_Dirty:":
            assert int(head[1]) == 0
            return
    raise AssertionError("not mapped")


def test_a_changed_source_is_decoded_anew(known: Annotations) -> None:
    cache = opened("disk", known)
    cache.read(0)
    before = Path(known.path(0)).stat()
    drawn(Path(known.path(0)), 99, (64, 96))
    os.utime(known.path(0), ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    found = cache.read(0)
    assert torch.equal(found.image, read_for(known.path(0), SHOWN).image)
    assert torch.equal(only_cached(cache, 0).image, found.image)
    Path(known.path(0)).unlink()
    with pytest.raises(UnreadableImage, match="No such file"):
        cache.read(0)


@pytest.mark.parametrize("left", [0, 10, 72, -1])
def test_a_cut_file_is_not_believed(left: int, known: Annotations) -> None:
    cache = opened("disk", known)
    made = cache.read(0)
    (file,) = (path for path in cache.folder.rglob("*") if path.is_file())
    content = file.read_bytes()
    file.write_bytes(content[: left if left >= 0 else len(content) - 1])
    again = cache.read(0)
    assert torch.equal(made.image, again.image)
    assert torch.equal(only_cached(cache, 0).image, made.image)


def test_other_images_under_the_same_numbers_are_other_files(known: Annotations) -> None:
    cache = opened("disk", known)
    names, ends = flat_paths([known.path(number) for number in (2, 1, 0, 3)])
    turned = replace(known, path_bytes=names, path_ends=ends, sizes=known.sizes[[2, 1, 0, 3]])
    assert opened("disk", turned).folder != cache.folder


def test_where_there_is_no_room_to_keep_an_image_it_is_decoded(known: Annotations) -> None:
    cache = opened("disk", known)
    with small_files(1000):
        made = cache.read(0)
    assert torch.equal(made.image, read_for(known.path(0), SHOWN).image)
    assert not [path for path in cache.folder.rglob("*") if path.is_file()]  # nothing half-written stays


def test_the_size_by_hand(known: Annotations) -> None:
    header = 72
    assert needed(known, SHOWN) == 3 * header + 3 * (64 * 96 + 150 * 250 + 50 * 40)
    _, (note,) = open_images(known, SHOWN, "disk")
    assert note.endswith("(134 KiB for 4 images)")


def enlarged(known: Annotations) -> Annotations:
    """The images with sizes for which no disk has room: 12 TiB each, reduced."""
    return replace(known, sizes=np.full((4, 2), 17_000_000, np.int32))


def test_a_disk_without_room_is_refused_with_what_to_do(known: Annotations) -> None:
    large = enlarged(known)
    with pytest.raises(UserError, match=r"needs .* GiB for 4 images.*RANKLESS_CACHE.*data\.cache=none"):
        open_images(large, SHOWN, "disk")
    folder = opened("disk", known).folder
    for number in range(4):
        with (folder / f"{number}").open("wb") as file:
            file.truncate(needed(large, SHOWN) // 4)
    assert opened("disk", large).folder == folder  # all is there already


def test_memory_without_room_or_missing_is_a_note(known: Annotations, tmp_path: Path) -> None:
    cache, (note,) = in_memory(enlarged(known))
    assert isinstance(cache, FileImages) and "are not cached in memory" in note and "available" in note
    (tmp_path / "memory").rename(tmp_path / "elsewhere")
    cache, (note,) = in_memory(known)
    assert isinstance(cache, FileImages) and "No such file" in note


def test_a_cache_folder_that_is_a_file_is_reported(
    known: Annotations, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RANKLESS_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"cannot be written to .*Not a directory.*RANKLESS_CACHE"):
        open_images(known, SHOWN, "disk")


def test_memory_is_given_back_with_the_last_user(known: Annotations) -> None:
    cache = opened("ram", known)
    cache.read(0)
    other, folder = pickle.loads(pickle.dumps(cache)), cache.folder
    del cache
    gc.collect()
    assert folder.exists() and only_cached(other, 0)
    del other
    gc.collect()
    assert not folder.exists()


def test_what_a_killed_run_left_in_memory_is_removed(known: Annotations, tmp_path: Path) -> None:
    home = tmp_path / "memory" / f"rankless-{os.getuid()}"
    home.mkdir(mode=0o700)
    (home / "left" / "00").mkdir(parents=True)
    held = CachedImages(FileImages(known, SHOWN), home / "held")
    opened("ram", known)
    assert not (home / "left").exists() and held.folder.exists()


def test_a_cache_in_memory_that_others_can_enter_is_not_used(known: Annotations, tmp_path: Path) -> None:
    home = tmp_path / "memory" / f"rankless-{os.getuid()}"
    home.mkdir(mode=0o700)
    assert isinstance(opened("ram", known), CachedImages)
    home.chmod(0o777)
    images, (note,) = in_memory(known)
    assert isinstance(images, FileImages)
    assert re.search(
        rf"not cached in memory .*: {home} belongs to another user or is accessible to others", note
    )


@pytest.mark.processes
def test_two_processes_that_write_at_once_agree(known: Annotations, tmp_path: Path, forked: Any) -> None:
    with (tmp_path / "known.pickle").open("wb") as file:
        pickle.dump((known, CachedImages(FileImages(known, SHOWN), tmp_path / "shared")), file)
    (tmp_path / "writes.py").write_text(
        "import pickle, sys\n"
        "from rankless.data.images.image_file import Shown, read_for\n"
        "known, cache = pickle.load(open(sys.argv[1], 'rb'))\n"
        "for turn in range(40):\n"
        "    for index in range(3):\n"
        "        shown = Shown((64, 96))\n"
        "        found = cache.read(index)\n"
        "        assert found.image.equal(read_for(known.path(index), shown).image)\n"
        "        if turn % 2: [path.unlink(missing_ok=True) for path in cache.folder.glob('*/*-*')]\n"
    )
    with ThreadPoolExecutor(2) as both:
        for run in both.map(lambda _: forked("writes.py", "known.pickle", cwd=tmp_path), range(2)):
            assert run.returncode == 0, run.stderr
    assert not list((tmp_path / "shared").rglob(".*"))
