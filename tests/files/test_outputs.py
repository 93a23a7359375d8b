"""No command replaces what it did not write: real files, links and processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rankless.errors import UserError
from rankless.files.outputs import LIST, SHEETS, Outputs, drawing

KILLED = """
import os, signal, sys
from pathlib import Path
from rankless.files.outputs import Outputs
out = Path(sys.argv[1])
outputs = Outputs([out / "a", out / "b"], verb="predict")
with outputs.writing(out / "a") as file:
    file.write_text("second a")
with outputs.writing(out / "b") as file:
    file.write_text("half of b")
    os.kill(os.getpid(), signal.SIGKILL)
"""

# Prints the exit code and what is there, for each change of a name before which a child is killed.
KILLED_IN_A_SET = """
import json, os, signal, sys
from pathlib import Path
from rankless.files.outputs import Outputs
real = {name: getattr(os, name) for name in ("rename", "replace", "unlink")}
def counted(name):
    def call(*words, **named):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return real[name](*words, **named)
    return call
files = [Path(sys.argv[1], name) for name in ("head", "body", "tail")]
for left in range(20):
    for file in files:
        file.write_text("old")
    if not os.fork():
        for name in real:
            setattr(os, name, counted(name))
        with Outputs(files, verb=None, force=True).as_one(files) as parts:
            for part in parts:
                part.write_text("new")
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.wait()[1])
    print(json.dumps([code, {file.name: file.read_text() for file in files if file.exists()}]))
    if code == 0:
        break
"""


def write(folder: Path, files: dict[str, str], verb: str | None = "predict", force: bool = False) -> None:
    outputs = Outputs([folder / name for name in files], verb=verb, force=force)
    for name, text in files.items():
        with outputs.writing(folder / name, durable=False) as file:
            file.write_text(text)


def tree(folder: Path) -> dict[str, tuple[object, ...]]:
    return {
        str(each): (
            each.lstat()[:7],
            each.lstat().st_mtime_ns,
            each.read_bytes() if each.is_file() else each.readlink() if each.is_symlink() else None,
        )
        for each in sorted(folder.rglob("*"))
    }


def refused(folder: Path, act: Callable[[], object], *, says: str) -> tuple[str, ...]:
    before = tree(folder)
    with pytest.raises(UserError, match=says) as error:
        act()
    assert tree(folder) == before
    return error.value.problems


def test_what_the_same_command_wrote_is_replaced(tmp_path):
    out = tmp_path / "deep" / "out"
    for text in ("first", "second", "second", "first"):
        write(out, {"a": text, "b": text})
        assert (out / "a").read_text() == (out / "b").read_text() == text
    assert sorted(each.name for each in out.iterdir()) == [LIST, "a", "b"]


def test_anything_else_stays_unless_it_is_forced(tmp_path):
    (tmp_path / "theirs").write_text("precious")
    says = "already exists and was not written by rankless predict, or has changed since; .* --force"
    refused(tmp_path, lambda: write(tmp_path, {"theirs": "ours", "new": "ours"}), says=says)
    write(tmp_path, {"theirs": "ours"}, force=True)
    assert (tmp_path / "theirs").read_text() == "ours"
    write(tmp_path, {"theirs": "ours by now"})
    for verb, says in (("data show", "by rankless data show"), (None, "already exists; .* --force")):
        refused(tmp_path, lambda verb=verb: write(tmp_path, {"theirs": "x"}, verb), says=says)


def test_an_output_that_was_changed_is_the_users(tmp_path):
    write(tmp_path, {"a": "ours", "b": "ours"})
    state = (tmp_path / "a").stat()
    (tmp_path / "a").write_text("mine")  # as long as before
    os.utime(tmp_path / "a", ns=(state.st_atime_ns, state.st_mtime_ns))
    (problem,) = refused(tmp_path, lambda: write(tmp_path, {"a": "x", "b": "x"}), says="changed since")
    assert str(tmp_path / "a") in problem
    shutil.copy(tmp_path / "b", tmp_path / "kept")
    refused(tmp_path, lambda: write(tmp_path, {"kept": "x"}), says="kept: already exists")


def test_all_that_stays_is_listed_at_once(tmp_path):
    for number in range(25):
        (tmp_path / f"{number:02}").write_text("precious")
    files = {f"{number:02}": "x" for number in range(30)}
    faults = refused(tmp_path, lambda: write(tmp_path, files), says="00: already exists")
    listed = [f"{number:02}: already exists" in problem for number, problem in enumerate(faults)]
    assert listed == [True] * 20 + [False]
    assert faults[-1].startswith("… and 5 more; nothing was changed; use another --out, or add --force")


def test_a_link_is_never_written_through(tmp_path):
    out, theirs = tmp_path / "out", tmp_path / "theirs"
    out.mkdir()
    theirs.write_text("precious")
    (out / "soft").symlink_to(theirs)
    os.link(theirs, out / "hard")
    (out / "lost").symlink_to(tmp_path / "nothing")
    for name in ("soft", "lost"):
        refused(tmp_path, lambda name=name: write(out, {name: "x"}), says="is a symbolic link; .* --force")
    refused(tmp_path, lambda: write(out, {"hard": "x"}), says="already exists")
    write(out, {"soft": "ours", "hard": "ours", "lost": "ours"}, force=True)
    assert theirs.read_text() == "precious" and not (tmp_path / "nothing").exists()
    assert [(out / name).read_text() for name in ("soft", "hard", "lost")] == ["ours"] * 3
    os.link(out / "hard", tmp_path / "kept")  # of an output that may be replaced
    write(out, {"hard": "again"})
    assert (tmp_path / "kept").read_text() == "ours"


def test_a_folder_may_be_reached_through_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "theirs").write_text("precious")
    (tmp_path / "out").symlink_to("real")
    refused(tmp_path, lambda: write(tmp_path / "out", {"theirs": "x"}), says="already exists")
    write(tmp_path / "out", {"a": "ours"})
    write(tmp_path / "real", {"a": "again"})
    assert (tmp_path / "out").is_symlink() and (tmp_path / "real" / "a").read_text() == "again"


@pytest.mark.parametrize("force", [False, True])
def test_what_is_no_regular_file_is_never_replaced(tmp_path, force):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("precious")
    (tmp_path / "loop").symlink_to("loop")
    for name, says in {
        "pipe": "pipe: is not a regular file; use another --out",
        "folder": "folder: is a folder; expected the name of a file; use",
        "file/a": "cannot be written: .*file is a file",
        "loop/a": "cannot be written: Too many levels of symbolic links",
        "n" * 256: "File name too long",
        "nul\0": "embedded null",
        "nul\0/a": "embedded null",
    }.items():
        faults = refused(tmp_path, lambda name=name: write(tmp_path, {name: "x"}, force=force), says=says)
        assert "--force" not in faults[-1]
    for device in ("/dev/null", "/dev/stdout"):
        with pytest.raises(UserError, match=r"is not a regular file|is a symbolic link"):
            Outputs([Path(device)], verb=None)
    with pytest.raises(UserError, match="/dev/null: is not a regular file"):
        Outputs([Path("/dev/null")], verb=None, force=True)


def test_a_place_that_cannot_be_written_to_is_a_sentence(tmp_path):
    with pytest.raises(UserError, match=r"/proc/none/a: .*(cannot be written|No such file)"):
        write(Path("/proc/none"), {"a": "x"})
    files = [tmp_path / "file" / "a", tmp_path / "file" / "b"]
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file: cannot be used as the output folder: .*file is a file"):
        Outputs(files, verb="predict", force=True)


@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_an_input_is_never_an_output(tmp_path, link):
    read, out = tmp_path / "read", tmp_path / "out"
    read.write_text("precious")
    if link:
        link(read, out)

    def force() -> None:
        target = out if link else tmp_path / "." / "read"
        Outputs([target, tmp_path / "new"], verb="predict", force=True).refuse_inputs(["gone", read])

    assert "--force" not in refused(tmp_path, force, says="is an input of this command; use another")[-1]
    Outputs([tmp_path / "new"], verb="predict").refuse_inputs([read])


def test_what_came_or_was_changed_since_the_check_stays(tmp_path):
    write(tmp_path, {"a": "ours"})
    outputs = Outputs([tmp_path / "a", tmp_path / "b"], verb="predict", force=True)
    (tmp_path / "a").write_text("edited")
    (tmp_path / "b").write_text("came")
    for name in ("a", "b"):
        with (
            pytest.raises(UserError, match="was created or changed while this command ran"),
            outputs.writing(tmp_path / name) as file,
        ):
            file.write_text("lost")
    assert (tmp_path / "a").read_text() == "edited" and (tmp_path / "b").read_text() == "came"


def test_an_error_leaves_what_was_there(tmp_path):
    write(tmp_path, {"a": "ours"})
    before = tree(tmp_path)
    with pytest.raises(ValueError), Outputs([tmp_path / "a"], verb="predict").writing(tmp_path / "a") as file:
        file.write_text("half")
        raise ValueError
    assert tree(tmp_path) == before


@pytest.mark.processes
def test_a_killed_command_may_be_repeated(tmp_path):
    write(tmp_path, {"a": "first a", "b": "first b"})
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "a").read_text() == "second a" and (tmp_path / "b").read_text() == "first b"
    assert len(list(tmp_path.iterdir())) == 4, "half of b lies there under another name"
    write(tmp_path, {"a": "third", "b": "third"})
    assert sorted(each.name for each in tmp_path.iterdir()) == [LIST, "a", "b"]


@pytest.mark.processes
def test_a_kill_leaves_no_mixed_set(tmp_path):
    """Whatever change of a name it comes before: all old, all new, or nothing where readers begin."""
    words = [sys.executable, "-c", KILLED_IN_A_SET, str(tmp_path)]
    done = subprocess.run(words, timeout=60, check=True, capture_output=True, text=True)
    codes, found = zip(*map(json.loads, done.stdout.splitlines()), strict=True)
    assert codes == (-signal.SIGKILL,) * (len(codes) - 1) + (0,)
    names = ("head", "body", "tail")
    old, new = dict.fromkeys(names, "old"), dict.fromkeys(names, "new")
    assert all(there in (old, new) or "head" not in there for there in found)
    assert found[0] == old and found[-1] == new
    assert len(found) > 6 and sorted(each.name for each in tmp_path.iterdir()) == sorted(names)


def test_a_listed_output_that_never_got_its_name_spares_the_one_before(tmp_path):
    write(tmp_path, {"a": "first"})
    listed = (tmp_path / LIST).read_text()
    write(tmp_path, {"a": "second"})
    more = (tmp_path / LIST).read_text()
    (tmp_path / "a").write_text("first")
    (tmp_path / LIST).write_text(more)  # as if killed between the two
    write(tmp_path, {"a": "third"})
    assert listed in more and (tmp_path / "a").read_text() == "third"


def test_a_list_that_is_cut_keeps_the_rest(tmp_path):
    write(tmp_path, {"a": "ours", "b": "ours"})
    content = (tmp_path / LIST).read_text()
    (tmp_path / LIST).write_text(content[:-7])
    refused(tmp_path, lambda: write(tmp_path, {"b": "x"}), says="b: already exists")
    write(tmp_path, {"a": "again", "c": "new"})
    write(tmp_path, {"a": "again", "c": "newer"})


@pytest.mark.parametrize("kind", ["text", "folder", "link", "pipe"])
def test_a_list_of_somebody_elses_stays(tmp_path, kind):
    place = tmp_path / LIST
    if kind == "text":
        place.write_text("my own notes\n")
    elif kind == "folder":
        place.mkdir()
    elif kind == "link":
        (tmp_path / "notes").write_text('{"format": "rankless outputs 1"}\n')
        place.symlink_to("notes")
    else:
        os.mkfifo(place)
    refused(tmp_path, lambda: write(tmp_path, {"a": "x"}, force=True), says="was not written by rankless")


def test_a_backup_by_hard_links_is_not_appended_to(tmp_path):
    out, backup = tmp_path / "out", tmp_path / "backup"
    write(out, {"a": "first"})
    shutil.copytree(out, backup, copy_function=os.link)
    before = {each.name: each.read_bytes() for each in backup.iterdir()}
    write(out, {"a": "second", "b": "new"})
    assert {each.name: each.read_bytes() for each in backup.iterdir()} == before


def test_the_list_does_not_grow_without_end(tmp_path):
    for number in range(130):
        write(tmp_path, {"a": f"text {number}"})
    assert len((tmp_path / LIST).read_text().splitlines()) < 125


def test_a_chart_needs_matplotlib_and_a_contact_sheet_does_not(tmp_path, monkeypatch):
    drawing(tmp_path / "a.svg", "test")
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    with pytest.raises(UserError, match=r"a.svg: needs matplotlib; run `pip install 'rankless\[plot\]'`"):
        drawing(tmp_path / "a.svg", "test")
    drawing(tmp_path / "a.png", "test", SHEETS)
