"""Shards: which are of which split, their class names, samples as webdataset groups them, and damage."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest
import webdataset
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rankless.cli import main
from rankless.data.formats.shards import (
    Sample,
    class_names,
    first_member,
    known_as,
    looks_like_shards,
    samples,
    shards_of,
)
from rankless.data.formats.webdataset import recognize
from rankless.data.index.findings import Findings
from rankless.errors import UserError


def tar(path: Path, *members: str | tuple[str, bytes], kind: str = "w") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, kind) as archive:
        for member in members:
            name, content = (member, b"x") if isinstance(member, str) else member
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def found(path: Path) -> tuple[list[Sample], Findings]:
    findings = Findings()
    return list(samples(str(path), findings)), findings


_KEYS = st.text("ab1_-é", min_size=1, max_size=4)
_NAMES = st.tuples(
    st.sampled_from(["", "x/", "x.y/z/"]), _KEYS, st.sampled_from(["jpg", "cls", "seg.png", "x.Y"])
)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # webdataset leaves its files to the collector
@given(st.lists(_NAMES, max_size=12, unique=True).map(sorted))
def test_samples_are_webdatasets(tmp_path_factory, names):
    path = tmp_path_factory.mktemp("tar") / "a.tar"
    contents = {
        f"{folder}{key}.{ending}": f"{place}".encode() for place, (folder, key, ending) in enumerate(names)
    }
    tar(path, *contents.items())
    expected = []
    if names:
        for each in webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False):
            inside = {name: body for name, body in each.items() if not name.startswith("__")}
            expected.append((each["__key__"], inside))
    ours, findings = found(path)
    assert not findings.counts
    content = path.read_bytes()
    read = [
        (each.key, {ending: content[at : at + size] for ending, (_, at, size) in each.members.items()})
        for each in ours
    ]
    assert read == expected


def test_the_image_is_the_one_of_the_plain_ending(tmp_path):
    names = ["1.mask.png", "1.JPG", "1.webp", "1.cls", "2.in.jpg", "2.out.jpg", "3.txt"]
    ours, _ = found(tar(tmp_path / "a.tar", *names))
    assert [each.image and each.image.name for each in ours] == ["1.JPG", "2.in.jpg", None]


@pytest.mark.parametrize(
    ("names", "keys", "kinds"),
    [
        (["a.jpg", "a.jpg", "a.cls"], ["a"], {"listed twice": 1}),
        (["a.jpg", "a.cls", "b.jpg", "a.jpg", "a.cls"], ["a", "b"], {"listed twice": 1}),
        (["a.jpg", "b.jpg", "a.cls", "b.cls"], ["a", "b"], {"not understood": 2}),
        (["./a.jpg", "./a.cls"], ["a"], {}),
        (["classes.txt", "info.json", "a.jpg"], ["a"], {}),
        (["._a.jpg", "b", "c.", "a.jpg"], ["a"], {"left out": 3}),
    ],
)
def test_names(tmp_path, names, keys, kinds):
    ours, findings = found(tar(tmp_path / "a.tar", *names))
    assert [each.key for each in ours] == keys and findings.counts == kinds


def test_links_are_left_out(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"x")
    (tmp_path / "b.jpg").symlink_to("a.jpg")
    (tmp_path / "d.jpg").mkdir()
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in ("a.jpg", "b.jpg", "d.jpg"):
            archive.add(tmp_path / name, name)
    ours, findings = found(tmp_path / "a.tar")
    assert [each.key for each in ours] == ["a"] and findings.counts == {"left out": 1}


SPARSE = {
    "GNU.sparse.major": "1", "GNU.sparse.minor": "0",
    "GNU.sparse.name": "a.jpg", "GNU.sparse.realsize": str(1 << 50),
}  # fmt: skip


@pytest.mark.processes
def test_sparse_members_are_left_out(tmp_path):
    with (tmp_path / "a.jpg").open("wb") as file:
        file.truncate(1 << 30)
    (tmp_path / "b.jpg").write_bytes(b"x")
    for style in ("gnu", "pax"):
        words = ["tar", "--sparse", f"--format={style}", "-cf", f"{style}.tar", "a.jpg", "b.jpg"]
        subprocess.run(words, cwd=tmp_path, check=True)
        assert (tmp_path / f"{style}.tar").stat().st_size < 100_000
    with tarfile.open(tmp_path / "hand.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("a.jpg")
        info.pax_headers, info.size = SPARSE, 512
        archive.addfile(info, io.BytesIO(b"1\n0\n%d\n".ljust(512, b"\0") % (1 << 50)))
        archive.addfile(tarfile.TarInfo("b.jpg"))
    for name in ("gnu", "pax", "hand"):
        ours, findings = found(tmp_path / f"{name}.tar")
        assert [each.key for each in ours] == ["b"] and findings.counts == {"left out": 1}, name
        assert "a sparse" in findings.first["left out"][0].problem
        assert first_member(str(tmp_path / f"{name}.tar")) == ("", b"")


def test_names_that_lead_out_of_the_archive_are_names_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    content = io.BytesIO()
    Image.new("RGB", (8, 8), (200, 9, 9)).save(content, "PNG")
    Path("d").mkdir()
    Path("far").mkdir()
    names = [f"{tmp_path}/far/a", "../far/b", "d/../../far/c", "./../far/d", "//far/e", "..", "../", "f/."]
    members = [
        (f"{name}.{ending}", body)
        for name in names
        for ending, body in (("png", content.getvalue()), ("json", b'{"boxes": [], "labels": []}'))
    ]
    tar(Path("d/train-000000.tar"), *members)
    tar(Path("d/val-000000.tar"), ("x.png", content.getvalue()), ("x.json", members[1][1]))
    Path("d/classes.txt").write_text("cat\n")
    for words in (
        ["check", "d"], ["show", "d", "--out", "o.png"],
        *(["convert", "d", "--to", kind, "--out", f"out/{kind}"] for kind in ("coco", "darknet", "voc")),
        ["pack", "d", "--out", "out/packed"],
    ):  # fmt: skip
        assert main(["data", *words]) in (0, 1), capsys.readouterr()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "o.png") == [
        ".rankless-outputs",
        "d",
        "far",
        "out",
    ]
    assert not list(Path("far").iterdir()) and len(list(Path("d").iterdir())) == 3
    shards = [*Path("out").rglob("*.tar")]
    for shard in shards:
        with tarfile.open(shard) as archive:
            names = archive.getnames()
        assert not [name for name in names if name.startswith("/") or ".." in name.split("/")]
    assert shards


def test_every_cut_is_reported(tmp_path):
    whole = tar(tmp_path / "a.tar", ("a.jpg", b"x" * 700), "a.cls", "b.jpg").read_bytes()
    end = 512 + 1024 + 2 * 1024
    for cut in range(0, end + 512, 128):
        (tmp_path / "a.tar").write_bytes(whole[:cut])
        ours, findings = found(tmp_path / "a.tar")
        assert findings.counts == {"unreadable file": 1}, cut
        keys = [each.key for each in ours]
        assert keys == ["a", "b"][: len(keys)] and len(keys) <= (cut >= 1212) + (cut >= 3073), cut
    (tmp_path / "a.tar").write_bytes(whole[: end + 512])
    assert not found(tmp_path / "a.tar")[1].counts


def test_a_damaged_header_is_not_the_end(tmp_path):
    content = bytearray(tar(tmp_path / "a.tar", "a.jpg", "b.jpg").read_bytes())
    content[1024 + 5] ^= 255
    (tmp_path / "a.tar").write_bytes(content)
    _, findings = found(tmp_path / "a.tar")
    (reported,) = findings.first["unreadable file"]
    assert "damaged at byte 1024 after the member 'a.jpg'" in reported.problem


@pytest.mark.parametrize(("kind", "name"), [("w:gz", "gzip"), ("w:bz2", "bzip2"), ("w:xz", "xz")])
def test_compressed_archives_are_refused(tmp_path, kind, name):
    ours, findings = found(tar(tmp_path / "a.tar", "a.jpg", kind=kind))
    assert not ours and f"compressed with {name}" in findings.first["unreadable file"][0].problem


def test_what_is_no_archive(tmp_path):
    (tmp_path / "a.tar").write_text("a text" * 200)
    assert found(tmp_path / "a.tar")[1].counts == {"unreadable file": 1}
    assert (
        found(tmp_path / "none.tar")[1]
        .first["unreadable file"][0]
        .problem.endswith("No such file or directory")
    )
    assert first_member(str(tmp_path / "none.tar")) == ("", b"")


def test_class_names_at_the_head(tmp_path):
    names = ("./classes.txt", b"a\nb")
    assert first_member(str(tar(tmp_path / "a.tar", names, "1.jpg"))) == ("classes.txt", b"a\nb")
    assert first_member(str(tar(tmp_path / "b.tar", "1.jpg", names))) == ("", b"")


@pytest.mark.parametrize(
    ("files", "splits"),
    [
        (["val-000.tar", "train-001.tar", "train-000.tar"], {"train": 2, "val": 1}),
        (["test/a.tar", "val/1.tar", "val/2.TAR", "train/x-7.tar"], {"train": 1, "val": 2, "test": 1}),
        (["zoo/1.tar", "val/1.tar", "extra/1.tar"], {"val": 1, "extra": 1, "zoo": 1}),
        (["000000.tar", "000001.tar"], {"train": 2}),
        (["in1k-validation-00.tar", "in1k-train-00.tar"], {"in1k-train": 1, "in1k-validation": 1}),
        (["train-00-of-02.tar", "train-01-of-02.tar"], {"train": 2}),
        (["VOC2012-train-2-000000.tar"], {"VOC2012-train-2": 1}),
        (["train.tar", ".train-7.tar", "notes.txt"], {"train": 1}),
    ],
)  # fmt: skip
def test_splits(tmp_path, files, splits):
    for name in files:
        tar(tmp_path / name)
    found = shards_of(tmp_path)
    assert {name: len(shards) for name, shards in found.items()} == splits
    assert list(found) == list(splits)
    assert all(shards == sorted(shards) for shards in found.values())


def test_a_split_may_be_named_by_its_last_word():
    assert known_as("train", ["in1k-train", "in1k-val"]) == "in1k-train"
    assert known_as("train", ["a-train", "b-train"]) == "train"
    assert known_as("train", ["train", "b-train"]) == "train"
    assert known_as("val", ["train", "valid"]) == "valid"
    assert known_as("val", ["in1k-train", "in1k-validation"]) == "in1k-validation"
    assert known_as("val", ["valid", "dev"]) == "val"


@pytest.mark.parametrize(
    ("name", "members", "known"),
    [
        ("train-000000.tar", (), True),
        ("data/00012.tar", (), True),
        ("train-00000.tar.gz", (), True),
        ("images.tar", ("a/1.jpg", "a/1.json"), True),
        ("VOCtrainval_11-May-2012.tar", ("VOC/JPEGImages/1.jpg", "VOC/Annotations/1.xml"), False),
        ("all.tar", ("images/1.jpg", "images/2.jpg", "labels/1.txt"), False),
        ("backup.tar.gz", (), False),
    ],
)
def test_shards_are_reported_from_other_archives(tmp_path, name, members, known):
    tar(tmp_path / name, *members)
    assert bool(recognize(tmp_path)) == known == (looks_like_shards(tmp_path) is not None)


@pytest.mark.parametrize(
    ("name", "content", "names"),
    [
        ("classes.txt", "\ufeffcat\r\nbig dog\n\n", ["cat", "big dog"]),
        ("classnames.txt", "cat\nowl", ["cat", "owl"]),
        ("info.json", '{"classes": ["a ", "b"]}', ["a ", "b"]),
        ("_info.json", '["a"]', ["a"]),
        ("info.json", '{"splits": {}}', None),
    ],
)
def test_class_names(tmp_path, name, content, names):
    shard = tar(tmp_path / "train/0.tar")
    for folder in (tmp_path, tmp_path / "train"):
        (folder / name).write_text(content)
        found, file = class_names(tmp_path, [shard])
        assert found == names and file == (str(folder / name) if names else "")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("classes.txt", "cat\ncat", "the class name 'cat' is repeated"),
        ("classes.txt", "cat\n\ndog", "line 2 is empty"),
        ("classes.txt", "", "no class names"),
        ("info.json", '{"classes": [1]}', r"the classes are \[1\]; expected"),
        ("info.json", "{", "expected one class name per line"),
        ("classes.txt", b"\xff", "'utf-8' codec"),
    ],
)
def test_errors_of_class_names(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=words):
        class_names(tmp_path, [tar(tmp_path / "0.tar")])
