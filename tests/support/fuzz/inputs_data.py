"""Data sets of every format with something wrong in them, and images."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zlib
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from support.fuzz import seeds
from support.fuzz.case import Case, Entry, Fifo, Folder, HardLink, Hole, Link
from support.fuzz.mutations import (
    argument,
    damaged,
    damaged_text,
    damaged_value,
    encoded,
    json_values,
    numbers,
    words,
)

TOKENS: dict[str, tuple[str, ...]] = {
    "darknet": ("train", "images/train", "names", "[x]", "nc", "path", "..", "/", "~", "!!python/x",
    "classes", "&a [*a]",
                "0 0.5 0.5 1 1", "0 0.5 0.5 nan 1", "-1 .5 .5 .1 .1", "1 0.1 0.1 0.9 0.1 0.9 0.9"),
    "darknet lists": ("classes", "train", "valid", "names", "list.txt", "/dev/zero", "images/train/a.png",
    "../data/images"),
    "voc": ("annotation", "object", "name", "bndbox", "xmin", "size", "<!--", "<![CDATA[", "]]>", "&lt;",
    "nan",
            '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]>', "&x;",
            "<?xml version='1.0' encoding='utf-7'?>",
            '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]>', "&b;", "a 1", "a -1"),
    "coco": ('"images"', '"annotations"', '"id"', '"bbox"', "[1,2,3,4]", '"segmentation"',
    '{"size": [4, 4], "counts": [1]}',
             "NaN", "Infinity", "1e400", '"file_name"', '"../../x"', "null", '"counts": "aaaa"'),
    "csv": ("filename", "class", "xmin", ",", ";", '"', "a.png,24,16,cat,1,1,5,5", "a.png", "é", "x1",
    "label", "image"),
    "lines": ("a.png", " ", ",", "1,2,9,8,0", "nan", "\\", "é", "1e9", "train/a.png 1,1,5,5,0",
    "train/a.png 1,1,5,5,99999999"),
    "image-folder": ("a",),
    "labeling tools": ("null", "1e400", "NaN", "[]", "{}", '"image"', '"label"', '"points"', '"value"',
    "a.png", "<image>", "<track>", 'rotation="9"', "&x;",
    '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]>'),
    "webdataset": ("a.png", "a.json", "ustar", "../x", "/etc/x", "{}"),
}  # fmt: skip

_NAMES = st.sampled_from([
    "\u202egnp.png", "a\nb.png", "x\x1b[31m.png", "é.png", "e\u0301.png", "-x.png", "%s.png", " .png",
    "a b.png", "x" * 251 + ".png", "a.png.png", ".png", "..png", "\udcff.png", "😀.jpg", "*.png", "~.png",
    "$HOME.png", "a.txt", "a.PNG",
])  # fmt: skip

_odd_entries: st.SearchStrategy[Entry] = st.sampled_from(
    [
        Fifo(), Folder(), Link("/dev/zero"), Link("gone"), Link("."), Link(".."), Link("/proc/1/cwd"),
        Link("loop/loop"), Link("/etc/passwd"), Link("/proc/self/mem"), Hole(0), Hole(2**34), b"",
        b"\0" * 300, b"<html>404</html>", b"version https://git-lfs.github.com/spec/v1\noid sha256:12\n",
    ]
)  # fmt: skip


def _is_text(content: Entry) -> bool:
    return isinstance(content, bytes) and content.isascii()


def _is_json(content: bytes) -> bool:
    try:
        json.loads(content)
    except ValueError:  # it is damaged already
        return False
    return True


@st.composite
def _damaged_file(draw: st.DrawFn, kind: str, files: dict[str, Entry]) -> None:
    texts = [name for name, content in files.items() if _is_text(content)]
    others = sorted(set(files) - set(texts))
    name = draw(st.sampled_from(texts if texts and draw(st.integers(0, 4)) else others or texts))
    content = files[name]
    assert isinstance(content, bytes)
    if name.endswith(".json") and _is_json(content) and draw(st.booleans()):
        files[name] = json.dumps(draw(damaged_value(json.loads(content)))).encode()
    elif name in texts:
        files[name] = draw(damaged_text(content.decode(), TOKENS[kind]))
    else:
        files[name] = draw(damaged(content))


@st.composite
def _damaged_tree(draw: st.DrawFn, files: dict[str, Entry]) -> None:
    """What lies there is another thing, has another name or is gone, or there is more."""
    name = draw(st.sampled_from(sorted(files)))
    folder = name.rpartition("/")[0]
    kind = draw(st.sampled_from(["odd", "gone", "renamed", "copied", "beside", "hard", "parent"]))
    if kind == "odd":
        files[name] = draw(_odd_entries)
    elif kind == "gone":
        del files[name]
    elif kind == "renamed":
        files[f"{folder}/{draw(_NAMES)}"] = files.pop(name)
    elif kind == "copied":
        files[f"{folder}/{draw(_NAMES)}"] = files[name]
    elif kind == "beside":
        more = draw(st.sampled_from(["loop", "x.png", "x.txt", "x", "train", "val.csv", "data.yaml"]))
        files[f"{folder}/{more}"] = draw(_odd_entries)
    elif kind == "hard":
        files[f"{folder}/twin.png"] = HardLink(name)
    else:
        for each in [each for each in files if each.startswith(f"{folder}/")]:
            del files[each]
        files[folder] = draw(_odd_entries)


@st.composite
def _verb(draw: st.DrawFn, root: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A command that reads a data set, and where it may write."""
    to = draw(st.sampled_from(["darknet", "voc", "coco", "csv", "lines", "image-folder", "webdataset"]))
    return draw(
        st.sampled_from([
            (("data", "check", root), ()), (("data", "check", root), ()), (("data", "check", root, "--json"),
            ()),
            (("data", "check", root, "--quick"), ()), (("data", "stats", root), ()),
            (("data", "check", root, "--fix", "--out", "out"), ("out",)),
            (("data", "stats", root, "--json"), ()), (("data", "show", root, "--out", "out.png"), ("out",)),
            (("data", "show", root, "--out", "out.html"), ("out",)), (("data", "anchors", root, "--count",
            "2"), ()),
            (("data", "convert", root, "--to", to, "--out", "out"), ("out",)),
            (("data", "split", root, "--out", "out", "--val", "0.5"), ("out",)),
            (("data", "pack", root, "--out", "out"), ("out",)),
        ])
    )  # fmt: skip


def data_sets(kind: str) -> st.SearchStrategy[Case]:
    """Data of a format, damaged in up to three places."""

    @st.composite
    def made(draw: st.DrawFn) -> Case:
        if kind == "labeling tools":
            files = seeds.of_tool(draw(st.sampled_from(seeds.TOOLS)))
        elif kind == "webdataset":
            files = seeds.shards(draw(st.sampled_from(["json", "txt", "cls"])))
        else:
            files = seeds.DATA[kind]()
        if kind == "webdataset" and draw(st.integers(0, 2)):
            files["data/train-000000.tar"] = draw(_tar())
        else:
            for _ in range(draw(st.integers(1, 3))):
                if not files:
                    break
                if draw(st.integers(0, 2)) and all(isinstance(each, bytes) for each in files.values()):
                    draw(_damaged_file(kind, files))
                else:
                    draw(_damaged_tree(files))
        if kind == "coco" and draw(st.integers(0, 3)) == 0:
            files["data/annotations/instances_train.json"] = draw(_coco()).encode()
        tops = [name for name in files if name.count("/") == 1]
        root = draw(st.sampled_from(["data", "data", "data", "data", *tops]))
        words, out = draw(_verb(argument(root)))
        return Case(words, files, out)

    return made()


_coco_entry = st.dictionaries(
    st.sampled_from(["id", "image_id", "category_id", "file_name", "bbox", "name", "area", "iscrowd",
    "width", "height",
                     "segmentation"]),
    json_values | st.integers(1, 3) | st.sampled_from(["a.png", "b.png"])
    | st.lists(st.floats(-5, 60), min_size=4, max_size=4),
)  # fmt: skip


@st.composite
def _coco(draw: st.DrawFn) -> str:
    part = json_values | st.lists(_coco_entry | json_values, max_size=4)
    names = ["images", "annotations", "categories"]
    whole: dict[str, Any] = draw(st.dictionaries(st.sampled_from(names), part))
    if draw(st.booleans()):
        whole = seeds.coco_json("train") | whole
    return json.dumps(whole)


@st.composite
def _tar(draw: st.DrawFn) -> bytes:
    """Members that are links, devices, of odd names, sizes and kinds; or a damaged archive."""
    if draw(st.integers(0, 2)) == 0:
        return draw(
            damaged(seeds.shard("train", draw(st.sampled_from(["json", "txt", "cls"]))), TOKENS["webdataset"])
        )
    target = io.BytesIO()
    form = draw(st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
    name = st.tuples(
        st.sampled_from(["", "x/", "../", "/", "x.y/", "./"]), st.sampled_from(["a", "b", "é",
        "a" * 150]) | words,
        st.sampled_from([".png", ".json", ".cls", ".txt", ".jpg", "", ".seg.png", ".PNG"]),
    ).map("".join)  # fmt: skip
    label = json_values.map(json.dumps) | numbers | st.just('{"boxes": [[1, 1, 5, 5]], "labels": [0]}')
    with tarfile.open(fileobj=target, mode="w", format=form, errors="surrogateescape") as archive:
        for _ in range(draw(st.integers(0, 6))):
            about = tarfile.TarInfo(argument(draw(name)) or "x")
            content = seeds.encoded_image(1) if about.name.endswith("png") else encoded(draw(label))
            about.type = draw(st.sampled_from([tarfile.REGTYPE] * 6 + [
                tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE,
                tarfile.GNUTYPE_SPARSE, b"V", b"9", tarfile.CONTTYPE,
            ]))  # fmt: skip
            about.linkname = draw(st.sampled_from(["/etc/passwd", "../../x", "a.png", ""]))
            about.size = len(content) if about.isreg() else 0
            try:
                archive.addfile(about, io.BytesIO(content))
            except (ValueError, OSError):
                continue
    found = target.getvalue()
    return draw(damaged(found)) if draw(st.integers(0, 3)) == 0 else found


# --- images -----------------------------------------------------------------------------------------------

KINDS = ("png", "jpeg", "webp", "tiff", "gif", "bmp")


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, depth: int, color: int, data: bytes, more: bytes = b"") -> bytes:
    """A PNG of a header and data that need not fit each other."""
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + more
        + _chunk(b"IDAT", zlib.compress(data))
        + _chunk(b"IEND", b"")
    )


_sides = st.sampled_from([0, 1, 2, 16, 1000, 13_000, 20_000, 65_535, 2**31 - 1, 2**32 - 1])
_images = (
    st.sampled_from(KINDS).flatmap(lambda kind: damaged(seeds.encoded_image(3, kind)))
    | st.builds(png, _sides, _sides, st.sampled_from([1, 8, 16, 3]), st.sampled_from([0, 2, 3, 4, 6, 7]),
    st.binary(max_size=60))
    | st.builds(png, st.just(24), st.just(16), st.just(8), st.just(2), st.just(bytes(24 * 16 * 3 + 16)),
                st.builds(_chunk, st.sampled_from([b"tEXt", b"zTXt", b"iCCP", b"iTXt", b"eXIf", b"acTL"]),
                          st.binary(max_size=30) | st.just(b"a\0\0" + zlib.compress(bytes(10**6)))))
    | st.builds(lambda start, rest: start + rest,
                st.sampled_from([b"", b"\xff\xd8\xff\xe1", b"\x89PNG\r\n\x1a\n", b"II*\0", b"GIF89a",
                b"RIFF\xff\xff\xff\xffWEBPVP8 ",
                                 b"BM", b"%PDF-1.4\n", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"\0\0\1\0",
                                 b"P6 99999 99999 255\n"]),
                st.binary(max_size=200))
)  # fmt: skip


@st.composite
def images(draw: st.DrawFn) -> Case:
    """Images to predict on, and in a data set."""
    ending = draw(st.sampled_from(["png", "jpg", "jpeg", "webp", "tif", "bmp", "gif", "JPG"]))
    content: Entry = draw(_images) if draw(st.integers(0, 9)) else draw(_odd_entries)
    if draw(st.booleans()):
        name = draw(_NAMES) if draw(st.integers(0, 3)) == 0 else f"a.{ending}"
        entries: dict[str, Entry] = {
            "w": seeds.weights(),
            f"in/{name}": content,
            "in/sound.png": seeds.encoded_image(),
        }
        source = draw(st.sampled_from(["in", "in/*", f"in/{argument(name)}", "in/**", "in/[a-"]))
        return Case(("predict", "w", source, "--out", "out", "--confidence", "0"), entries, ("out",))
    files = seeds.darknet()
    files[f"data/images/train/x.{ending}"] = content
    files["data/labels/train/x.txt"] = b"0 0.5 0.5 0.5 0.5\n"
    words, out = draw(_verb("data"))
    return Case(words, files, out)


ALL: dict[str, Callable[[], st.SearchStrategy[Case]]] = {
    **{f"data: {kind}": (lambda kind=kind: data_sets(kind)) for kind in seeds.DATA},
    "images": images,
}
