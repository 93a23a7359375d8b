"""A scan gives the same with any number of processes, goes on where it was killed, and leaves none behind."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankless.data.index.findings import Findings
from rankless.data.index.raw import Raw
from rankless.data.index.scan import chunks, load, save, scan, storing_in
from rankless.errors import UserError
from support import works_for_scan as works

COUNT = 60


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    (tmp_path / "files").mkdir()
    for number in range(COUNT):
        (tmp_path / "files" / f"{number:02}").write_text(" ".join([str(number + 0.1)] * (number % 3)))
    time.sleep(0.05)  # longer than a tick of the clock: now they count as old
    return [(str(tmp_path / "files" / f"{number:02}"),) for number in range(COUNT)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


def read_since(log: str, before: int = 0) -> list[str]:
    return Path(log).read_text().split()[before:] if Path(log).exists() else []


def check(raw: Raw, files: list[tuple[str, ...]]) -> None:
    assert raw.paths == [path for (path,) in files] == raw.annotated_in == raw.depends
    counts = [number % 3 for number in range(COUNT)]
    assert raw.image.tolist() == np.repeat(np.arange(COUNT), counts).tolist()
    assert raw.boxes is not None and raw.boxes[:, 2].tolist() == [n + 0.1 for n in raw.image.tolist()]
    assert raw.findings.counts == {"empty": COUNT // 3}
    assert [Path(one.where).name for one in raw.findings.first["empty"][:3]] == ["00", "03", "06"]
    assert list(raw.names) == ["a class"]


@pytest.mark.processes
def test_the_number_of_processes_changes_nothing(files: list[tuple[str, ...]]) -> None:
    for processes in (1, 2):
        check(scan(works.numbers, files, "files", chunk=5, processes=processes), files)
    check(scan(works.numbers, files, "files"), files)


def test_nothing_to_scan() -> None:
    assert scan(works.numbers, [], "files").paths == []


@pytest.mark.processes
def test_a_killed_scan_goes_on(
    files: list[tuple[str, ...]], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = os.environ["LOG"]
    monkeypatch.setenv("FATAL", files[COUNT - 1][0])
    with storing_in(store), pytest.raises(UserError, match=r"was killed.* the cached results"):
        scan(works.dying, files, "files", chunk=5, processes=2)
    monkeypatch.delenv("FATAL")
    before = read_since(log)
    assert before and files[COUNT - 1][0] not in before
    with storing_in(store):
        check(scan(works.dying, files, "files", chunk=5, processes=2), files)
    again = read_since(log, len(before))
    assert files[COUNT - 1][0] in again and len(again) < COUNT
    # Each file was read to the end once, except in chunks that were at work when the process died.
    assert set(before) | set(again) == {path for (path,) in files}


@pytest.mark.slow
@pytest.mark.parametrize("change", ["edited", "added", "removed", "cut store"])
def test_a_change_costs_its_chunk(files: list[tuple[str, ...]], store: Path, change: str) -> None:
    log = os.environ["LOG"]
    with storing_in(store):
        scan(works.numbers, files, "files", chunk=5, processes=1)
        assert len(read_since(log)) == COUNT
        kept = {path.name for path in store.iterdir()}
        scan(works.numbers, files, "files", chunk=5, processes=1)
        assert len(read_since(log)) == COUNT  # nothing was read
        if change == "edited":
            Path(files[30][0]).write_text("7 8 9")
        elif change == "added":
            files.insert(30, (files[30][0] + "b",))
            Path(files[30][0]).write_text("5")
        elif change == "removed":
            del files[30]
        else:
            path = store / max(kept)
            path.write_bytes(path.read_bytes()[:-40])
        raw = scan(works.numbers, files, "files", chunk=5, processes=1)
    assert raw.paths == [path for (path,) in files]
    assert raw.boxes is not None
    if change == "edited":
        assert raw.boxes[raw.image == 30, 2].tolist() == [7, 8, 9]
    again = len(read_since(log, COUNT))
    assert again <= 4 * 5 * 2
    assert again or change == "removed"  # that may have been a chunk by itself


def test_what_changes_while_it_is_read_is_not_kept(files: list[tuple[str, ...]], store: Path) -> None:
    with storing_in(store):
        path = Path(files[0][0])
        path.write_text("1")
        scan(works.numbers, files, "files", chunk=5, processes=1)
        stamp = path.stat().st_mtime_ns
        path.write_text("2")
        os.utime(path, ns=(stamp, stamp))  # as if it had happened within one tick of the clock
        raw = scan(works.numbers, files, "files", chunk=5, processes=1)
    assert raw.boxes is not None and raw.boxes[0, 2] == 2


@pytest.mark.processes
def test_errors_cross_from_the_processes(files: list[tuple[str, ...]]) -> None:
    with pytest.raises(UserError) as caught:
        scan(works.refusing, files, "files", chunk=5, processes=2)
    assert caught.value.problems[0].endswith(": bad")
    assert caught.value.problems[1] == "expected better"
    with pytest.raises(RuntimeError, match=r"(?s)works_for_scan\.py.*ZeroDivisionError: in the work"):
        scan(works.damaged, files, "files", chunk=5, processes=2)


SCRIPT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # started in the background it would be ignored
sys.path.insert(0, {folder!r})
from support import works_for_scan
from rankless.data.index.scan import scan
print("main", flush=True)
scan(works_for_scan.{work}, [(name,) for name in {files!r}], "files", chunk=5, processes=2)
print("done")
"""


def script(files: list[tuple[str, ...]], work: str) -> list[str]:
    text = SCRIPT.format(folder=str(Path(__file__).parents[2]), work=work, files=[path for (path,) in files])
    return [sys.executable, "-c", text]


@pytest.mark.processes
def test_a_main_script_needs_no_guard(files: list[tuple[str, ...]]) -> None:
    done = subprocess.run(script(files, "numbers"), capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["main", "done"]


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_nobody_is_left_behind(files: list[tuple[str, ...]], tmp_path: Path, ending: int) -> None:
    log = Path(os.environ["LOG"])
    with subprocess.Popen(script(files, "slow"), stderr=subprocess.DEVNULL, text=True) as process:
        until = time.monotonic() + 60
        while not (log.exists() and log.read_text()) and time.monotonic() < until:
            time.sleep(0.05)
        worker = int(log.read_text())
        assert Path(f"/proc/{worker}").exists()
        process.send_signal(ending)
        try:
            process.wait(10)
        finally:
            process.kill()
    until = time.monotonic() + 5
    while Path(f"/proc/{worker}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists()


@given(st.lists(st.text("abc", max_size=4), max_size=60), st.integers(1, 8))
def test_chunks_part_the_items(names: list[str], about: int) -> None:
    items: list[tuple[str, ...]] = [(name,) for name in names]
    parts = list(chunks(items, about))
    assert [item for part in parts for item in part] == items
    assert all(0 < len(part) <= 4 * about for part in parts)


def test_a_part_comes_back_as_it_was(tmp_path: Path) -> None:
    name = os.fsdecode(b"/data/\xff \xe2\x82\xac.jpg")  # no text, but a file's name
    findings = Findings()
    findings.add("empty", name, "nothing")
    given = Raw(
        paths=[name],
        sizes=np.array([[3, 4]], np.int32),
        stated=np.zeros((1, 2), np.int32),
        annotated_in=(name,),
        image=np.zeros(1, np.int64),
        boxes=np.array([[0.1, np.nan, np.inf, 1 / 3]]),
        labels=np.array([5], np.int64),
        flags=np.array([1], np.uint8),
        areas=np.array([np.nan], np.float32),
        lines=np.array([9], np.int64),
        names=("é",),
        normalized=True,
        byte_ranges=np.array([[512, 99]], np.int64),
        findings=findings,
    )
    save(given, tmp_path / "part.npz")
    found = load(tmp_path / "part.npz")
    for each in fields(Raw):
        expected, value = getattr(given, each.name), getattr(found, each.name)
        if isinstance(expected, np.ndarray):
            assert value.dtype == expected.dtype
            np.testing.assert_array_equal(value, expected)
        else:
            assert value == (list(expected) if isinstance(expected, tuple) else expected)
    assert [path.name for path in tmp_path.iterdir()] == ["part.npz"]
