"""A prediction that was stopped goes on, and ends with the same files."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from PIL import Image

from rankless.errors import UserError
from rankless.inference.predict import predict
from rankless.inference.prediction_journal import NAME, Entry, Journal
from rankless.recipe.schema import Model, Recipe

KILLED = """
import os, signal, sys
from pathlib import Path
import rankless.inference.saving as saving
from rankless.inference.predict import predict
left, real = 4, saving.write
def write(*words):
    global left
    real(*words)
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
saving.write = write
save = ["annotated", "json", "crops"]
weights, images, out = map(Path, sys.argv[1:])
predict(weights, [str(images)], out=out, save=save, device="cpu", confidence=0.0)
"""


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".rankless-outputs")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def run(weights, sources, **options):
    return predict(weights, sources, device="cpu", **{"save": ["annotated", "json", "crops"], **options})


@pytest.fixture
def stopped(colors, painted_file, tmp_path):
    """The folder of a prediction that was stopped at its fourth image, and what it was asked."""
    for number in range(6):
        painted_file(f"{number}.png", "red", shift=number)
    (tmp_path / "images/1.jpg").write_text("no image")
    out, sources = tmp_path / "out", [str(tmp_path / "images")]
    in_the_way = out / "crops/red/3-1.png"
    in_the_way.mkdir(parents=True)
    with pytest.raises(UserError, match=r"3-1\.png: is a folder"):
        run(colors, sources, out=out, force=True)
    in_the_way.rmdir()
    return out, sources


def test_it_goes_on_where_it_was(colors, stopped, tmp_path):
    out, sources = stopped
    before = {path: path.stat().st_ino for path in out.glob("*.png")}
    assert len(before) == 3 and (out / NAME).exists() and not (out / "predictions.json").exists()
    with (out / NAME).open("ab") as file:
        file.write(b'{"stem": "cut in the mid')
    report = run(colors, sources, out=out, resume=True)
    assert report.computed == 3 and len(report.images) == 6 and len(report.failed) == 1
    assert all(path.stat().st_ino == inode for path, inode in before.items()), "nothing is done again"
    whole = run(colors, sources, out=tmp_path / "whole")
    assert content(out) == content(whole.out)
    assert report.failed == whole.failed


@pytest.mark.processes
def test_after_a_kill(forked, untrained, tmp_path):
    """A real process, a real kill, a real detector."""
    path = untrained(Recipe(model=Model(image_size=64, width=0.25)), ("a", "b"))
    images = tmp_path / "images"
    images.mkdir()
    for number in range(4):
        Image.effect_noise((90, 70), 50 + number).convert("RGB").save(images / f"{number}.png")
    out = tmp_path / "out"
    (tmp_path / "killed.py").write_text(KILLED)
    done = forked(str(tmp_path / "killed.py"), str(path), str(images), str(out), cwd=tmp_path)
    assert done.returncode == -signal.SIGKILL
    with pytest.raises(UserError, match=r"unfinished prediction; add --resume .* or --force"):
        run(path, [str(images)], out=out, confidence=0.0)
    run(path, [str(images)], out=out, resume=True, confidence=0.0)
    run(path, [str(images)], out=tmp_path / "whole", confidence=0.0)
    assert content(out) == content(tmp_path / "whole")


def test_another_prediction_does_not_go_on(colors, stopped, tmp_path, painted_file):
    out, sources = stopped
    before = content(out)
    more = [*sources, str(painted_file("../more.png"))]
    for words, options, said in (
        (more, {}, "different images"),
        (sources, {"confidence": 0.5}, "different options"),
        (sources, {"save": ["json"]}, "different outputs"),
        (more, {"classes": ["red"]}, "different images and options"),
    ):
        with pytest.raises(UserError, match=f"was started with {said}; repeat the original command"):
            run(colors, words, out=out, resume=True, **options)
    os.utime(colors)
    with pytest.raises(UserError, match="different weights"):
        run(colors, sources, out=out, resume=True)
    assert content(out) == before
    report = run(colors, sources, out=out, force=True)
    assert report.computed == 6 and len(report.images) == 6 and not (out / NAME).exists()


def test_what_cannot_go_on(colors, stopped, tmp_path):
    out, sources = stopped
    for options, said in (
        ({"resume": True}, "--resume needs the folder of the stopped prediction; add --out FOLDER"),
        ({"resume": True, "out": tmp_path / "none"}, "none: contains no unfinished prediction"),
        ({"resume": True, "out": out, "force": True}, "remove one of them"),
    ):
        with pytest.raises(UserError, match=said):
            run(colors, sources, **options)
    assert not (tmp_path / "none").exists()
    (out / NAME).write_text("not ours")
    with pytest.raises(UserError, match="was written by another version of Rankless; add --force to start"):
        run(colors, sources, out=out, resume=True)


def test_the_journal_reads_any_entry_alone(tmp_path):
    journal = Journal(tmp_path, {"a": 1}, resume=False)
    entries = [Entry(str(n), {"source": str(n), "text": "ü" * (n * 997)}) for n in range(12)]
    for entry in entries:
        journal.add(entry)
    journal.add_failure("bad", "cut")
    journal.remove()
    assert not (tmp_path / NAME).exists()
    assert list(journal) == entries and [journal[number] for number in range(12)] == entries
    assert journal[-1] == entries[-1] and len(journal) == 12
    with pytest.raises(IndexError):
        journal[12]
    assert json.dumps(journal[3].image)


def test_frames_of_a_video_without_its_end_are_forgotten(tmp_path):
    still = Entry("a", {"source": "a.png"})
    journal = Journal(tmp_path, {}, resume=False)
    journal.add(still)
    for number in range(3):
        journal.add(Entry(f"v-{number}", {"source": "v.mp4", "frame": number, "text": "long" * 99}))
    again = Journal(tmp_path, {}, resume=True)
    assert list(again) == [still] and again.done == {"a.png"}
    again.add(Entry("b", {"source": "b.png"}))
    assert len(again) == 2 and again[1].image == {"source": "b.png"}
    assert [entry.stem for entry in Journal(tmp_path, {}, resume=True)] == ["a", "b"]
