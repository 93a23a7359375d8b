"""What was read is taken from the cache exactly as long as it is true, and no state of the cache is fatal."""

import json
import os
import pickle
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankless.data.index import file_states
from rankless.data.index.annotation_cache import cached, forget
from rankless.data.index.annotations import Annotations, flat_paths
from rankless.data.index.scan import scan
from rankless.data.index.validation import validate
from rankless.errors import UserError
from rankless.files import cache_folder
from support import works_for_scan as works
from support.small_disk import small_files


class Data:
    """A folder of files of numbers that is read as a data set; counts how often."""

    def __init__(self, root: Path) -> None:
        self.root, self.times = root, 0
        (root / "labels").mkdir(parents=True)
        for number in range(30):
            self.put(f"{number:02}", f"{number + 1}")

    def put(self, name: str, text: str) -> None:
        (self.root / "labels" / name).write_text(text)

    def read(self) -> tuple[Annotations, list[str]]:
        self.times += 1
        folder = str(self.root / "labels")
        items = [(f"{folder}/{name}",) for name in sorted(path.name for path in Path(folder).iterdir())]
        raw = scan(works.numbers, items, "files", chunk=4, processes=1)
        return validate(raw, "voc"), [folder, *raw.depends]

    def open(self, rescan: bool = False) -> Annotations:
        return cached(str(self.root), "train", "voc", self.read, rescan=rescan)

    def widths(self) -> list[float]:
        found: list[float] = self.open().boxes[:, 2].tolist()
        return found


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RANKLESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def data(tmp_path: Path, cache: Path) -> Data:
    return Data(tmp_path / "data")


def entry(cache: Path) -> Path:
    (current,) = cache.glob("annotations/*/current.json")
    return current.parent / json.loads(current.read_text())["entry"]


WIDTHS = [float(number + 1) for number in range(30)]


def test_it_is_read_once(data: Data) -> None:
    first = data.open()
    second = data.open()
    assert data.times == 1
    assert first.boxes[:, 2].tolist() == second.boxes[:, 2].tolist() == WIDTHS
    assert [second.path(number) for number in (0, 29)] == [
        str(data.root / "labels" / n) for n in ("00", "29")
    ]
    assert second.class_names == ("a class",) and second.format == "voc"
    assert second.about == first.about and second.findings == first.findings
    assert second.folder in mapped_from(second.boxes) and not second.boxes.flags.writeable
    data.open(rescan=True)
    assert data.times == 2


def mapped_from(array: np.ndarray) -> str:
    address = array.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(bound, 16) for bound in line.split()[0].split("-"))
        if start <= address < end:
            return line
    return ""


def test_an_entry_is_few_files(data: Data, cache: Path) -> None:
    data.open()
    assert len(list(entry(cache).iterdir())) <= 5  # each waits for the disk, some milliseconds


def test_findings_are_kept(data: Data) -> None:
    data.put("05", "")
    data.put("06", "150")
    data.open()
    assert data.open().findings.counts == {"empty": 1, "over the edge": 1, "a pixel thin": 29}
    assert data.times == 1


@pytest.mark.slow
@pytest.mark.parametrize("change", ["edit", "same size", "add", "remove", "rename", "swap folder"])
def test_every_change_is_noticed(data: Data, change: str) -> None:
    assert data.widths() == WIDTHS
    time.sleep(0.05)
    labels = data.root / "labels"
    if change == "edit":
        data.put("07", "77")
    elif change == "same size":
        data.put("07", "9")
    elif change == "add":
        data.put("07a", "5")
    elif change == "remove":
        (labels / "07").unlink()
    elif change == "rename":
        (labels / "07").rename(labels / "99")
    else:
        shutil.copytree(labels, data.root / "new")
        (data.root / "new" / "07").write_text("70")
        labels.rename(data.root / "old")
        (data.root / "new").rename(labels)
    expected = [float(path.read_text()) for path in sorted(labels.iterdir())]
    assert expected != WIDTHS and data.widths() == expected == data.widths()
    assert data.times == 2


def test_a_missing_file_that_comes_is_noticed(data: Data, tmp_path: Path) -> None:
    wanted = tmp_path / "classes.txt"
    read = lambda: (data.read()[0], [str(wanted)])  # noqa: E731
    key = str(tmp_path / "other"), "train", "voc"
    cached(*key, read)
    cached(*key, read)
    assert data.times == 1
    wanted.write_text("")
    cached(*key, read)
    assert data.times == 2


def test_splits_and_formats_are_kept_apart(data: Data) -> None:
    for split, format in (("train", "voc"), ("val", "voc"), ("train", "coco")):
        cached(str(data.root), split, format, data.read)
    assert data.times == 3


def test_other_code_reads_anew(data: Data, cache: Path) -> None:
    data.open()
    (entry(cache) / "entry.json").write_text('{"reader": "of yesterday"}')
    data.open()
    assert data.times == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("annotations", lambda content: content[:-5]),
        ("annotations", lambda content: content[:40]),
        ("annotations", lambda content: b""),
        ("annotations", lambda content: bytes(len(content))),
        ("annotations", lambda content: content.replace(rb"\"class_names\": ", rb"\"class_names\"; ", 1)),
        ("annotations", None),
        ("../current.json", lambda content: b"[]"),
        ("depends-000000000000", lambda content: content[:40]),
        ("depends-000000000000", lambda content: content[:-8]),
    ],
)
def test_a_damaged_entry_is_made_anew(data: Data, cache: Path, name: str, harm: Any) -> None:
    data.open()
    place = entry(cache)
    if harm:
        (place / name).write_bytes(harm((place / name).read_bytes()))
    else:
        (place / name).unlink()
    assert data.widths() == WIDTHS and data.times == 2
    assert data.widths() == WIDTHS and data.times == 2
    assert not place.exists()


def test_half_an_entry_is_not_seen_and_goes(data: Data, cache: Path) -> None:
    data.open()
    place = entry(cache)
    (place.parent / "current.json").unlink()
    (place / "entry.json").unlink()
    place.rename(place.parent / "building-killed")
    assert data.widths() == WIDTHS and data.times == 2
    assert not list(cache.glob("annotations/*/building-*"))


def test_no_folder_can_be_made(data: Data, cache: Path) -> None:
    cache.write_text("a file in its place")
    found = data.open()
    assert found.boxes[:, 2].tolist() == WIDTHS
    assert re_opened(found) == WIDTHS
    assert "cannot be written to" in found.about[-1] and "RANKLESS_CACHE" in found.about[-1]


def test_no_room(data: Data, cache: Path) -> None:
    made = data.read()
    with small_files(1000):
        found = cached(str(data.root), "train", "voc", lambda: made)
    assert found.folder is None and re_opened(found) == WIDTHS
    assert "does not have enough space" in found.about[-1] and "File too large" in found.about[-1]
    assert not list(cache.glob("annotations/*/building-*"))


def re_opened(found: Annotations) -> list[float]:
    widths: list[float] = pickle.loads(pickle.dumps(found)).boxes[:, 2].tolist()
    return widths


def test_who_has_the_old_one_keeps_it(data: Data, cache: Path) -> None:
    old = data.open()
    place = entry(cache)
    time.sleep(0.05)
    data.put("00", "50")
    new = data.open()
    assert (new.boxes[0, 2], old.boxes[0, 2]) == (50, 1)
    assert re_opened(old) == WIDTHS  # a loader process that starts only now
    del old
    time.sleep(0.05)
    data.put("00", "51")
    data.open()
    assert not place.exists()


def test_a_removed_cache_is_reported(data: Data, cache: Path) -> None:
    found = data.open()
    sent = pickle.dumps(found)
    assert len(sent) < 500
    shutil.rmtree(cache)
    for attempt in (lambda: pickle.dumps(found), lambda: pickle.loads(sent)):
        with pytest.raises(UserError, match="start again"):
            attempt()
    assert data.widths() == WIDTHS


def test_it_can_be_forgotten(data: Data) -> None:
    forget(data.open())
    data.open()
    assert data.times == 2
    forget(replace(data.open(), folder=None))


def test_a_change_while_it_is_read_is_read_again(data: Data) -> None:
    class Changing(Data):
        until = 1

        def read(self) -> tuple[Annotations, list[str]]:
            found = super().read()
            if self.times <= self.until:
                self.put("03", str(50 + self.times))
            return found

    data.__class__ = Changing
    assert data.widths()[3] == 51
    assert data.times == 2 and data.widths()[3] == 51 and data.times == 2
    data.__class__.until = 99  # type: ignore[attr-defined]
    time.sleep(0.05)
    data.put("03", "9")
    with pytest.raises(UserError, match=r"labels/03 changed during all 3 attempts"):
        data.open()


def test_what_nobody_used_for_a_month_goes(data: Data, cache: Path, tmp_path: Path) -> None:
    data.open()
    month_ago = time.time() - cache_folder.UNUSED - 1
    first = entry(cache)
    os.utime(first.parent / "current.json", (month_ago, month_ago))
    data.open()  # used, so it stays
    Data.open(Data(tmp_path / "second"))
    assert first.exists()
    os.utime(first.parent / "current.json", (month_ago, month_ago))
    Data.open(Data(tmp_path / "third"))
    assert not first.parent.exists()
    assert len(list(cache.glob("annotations/*"))) == 2


def test_the_place_of_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("RANKLESS_CACHE", "~/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder.cache_folder() == Path("/home/someone/own")
    monkeypatch.setenv("RANKLESS_CACHE", "")
    assert cache_folder.cache_folder() == Path("/xdg/rankless")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder.cache_folder() == Path("/home/someone/.cache/rankless")


OPENING = """
import os, sys, time
sys.path[:0] = {folders!r}
from pathlib import Path
import test_annotation_cache as page

class Slow(page.Data):
    def read(self):
        time.sleep(1)
        return super().read()

data = Slow.__new__(Slow)
data.root, data.times = Path({root!r}), 0
(data.root / f"ready-{{os.getpid()}}").touch()
while len(list(data.root.glob("ready-*"))) < 2:
    time.sleep(0.01)
print(sum(data.widths()))
"""


@pytest.mark.processes
def test_of_several_processes_one_reads(data: Data, tmp_path: Path, forked: Any) -> None:
    log = tmp_path / "log"
    here = Path(__file__).parent
    text = OPENING.format(folders=[str(here), str(here.parents[1])], root=str(data.root))
    (tmp_path / "opens.py").write_text(text)
    with ThreadPoolExecutor(2) as both:
        done = [*both.map(lambda _: forked("opens.py", cwd=tmp_path, LOG=str(log)), range(2))]
    assert [one.stdout for one in done] == ["465.0\n"] * 2, done
    assert len(log.read_text().split()) == 30  # each file once


@pytest.mark.processes
@pytest.mark.parametrize("threads", [1, 3])
def test_states_of_many_files(tmp_path: Path, threads: int) -> None:
    paths = [f"{tmp_path}/{number} \n é" for number in range(2 * file_states.BLOCK + 5)]
    paths[1] = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    for number in (0, 1, file_states.BLOCK, 2 * file_states.BLOCK, len(paths) - 1):
        Path(paths[number]).write_text(str(number))
    folder = tmp_path / "kept"
    folder.mkdir()
    file_states.save_states(str(folder), paths, [file_states.state(path) for path in paths])
    assert file_states.changed_file(str(folder), threads) == ""
    for number in (len(paths) - 1, file_states.BLOCK, 1):
        content = Path(paths[number]).read_bytes()
        times = Path(paths[number]).stat()
        Path(paths[number]).write_bytes(content + b"!")
        assert file_states.changed_file(str(folder), threads) == paths[number]
        Path(paths[number]).write_bytes(content)
        os.utime(paths[number], ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file_states.changed_file(str(folder), threads) == ""
    Path(paths[7]).write_text("")  # one that was missing
    assert file_states.changed_file(str(folder), threads) == paths[7]


def test_no_dependencies_at_all(tmp_path: Path) -> None:
    file_states.save_states(str(tmp_path), [], [])
    assert file_states.changed_file(str(tmp_path), 4) == ""
    assert flat_paths([])[1].tolist() == []
