"""Command lines: every verb with options that exist, and with anything; and places to write to.

``models`` is left out: it builds every model, which takes longer than a case may.
"""

from __future__ import annotations

from hypothesis import strategies as st

from support.fuzz import seeds
from support.fuzz.case import Case, Entry, Fifo, Folder, Hole, Link
from support.fuzz.mutations import argument, odd

VERBS: tuple[tuple[str, ...], ...] = (
    ("train",), ("evaluate",), ("predict",), ("digest",), ("verify",), ("recipes",), ("import",), ("export",),
    ("data",), ("data", "check"), ("data", "stats"), ("data", "show"), ("data", "anchors"), ("data",
    "convert"),
    ("data", "split"), ("data", "pack"), (), ("--help",), ("--version",),
)  # fmt: skip
OPTIONS = (
    "--out", "--run", "--devices", "--resume", "--json", "--split", "--confidence", "--worlds", "--steps",
    "--model", "--cfg", "--names", "--classes", "--key", "--partial", "--by-order", "--force", "--format",
    "--to", "--copy", "--val", "--test", "--stratify", "--group", "--seed", "--shard-size", "--decoded",
    "--quick", "--fix", "--drop-invalid", "--count", "--class", "--augmented", "--image-size", "--help",
    "--version", "--schema", "--task", "-h", "--no-json",
)  # fmt: skip
_GOOD = (
    "data", "w", "a.png", "n.cfg", "run", "r.yaml", "digits", "train", "val", "2", "1", "0.5", "darknet",
    "coco", "auto", "out", "resnet18", "yolov4-tiny", "cat", "digits:val:0", "digits:val:3-1",
    "digits:val:0-99999999999", "1,2", "(a)", "(", "in", ".", "data/data.yaml", "data/images/train",
    "w.weights", "epochs=1", "model.width=1e6", "batch.images=1000000000", "model.image_size=1000000",
)  # fmt: skip


def _files() -> dict[str, Entry]:
    return {
        **seeds.darknet(), "w": seeds.weights(), "a.png": seeds.encoded_image(), "n.cfg": seeds.CFG.encode(),
        "r.yaml": seeds.RECIPE.encode(), "small.cfg": seeds.CFG.encode(),
        "w.weights": seeds.darknet_weights(),
    }  # fmt: skip


@st.composite
def command_lines(draw: st.DrawFn) -> Case:
    """Words in any order. Places that the words name may be written: what is there may not change."""
    verb = draw(st.sampled_from(VERBS))
    value = st.sampled_from(_GOOD) | odd.map(argument)
    word = st.sampled_from(_GOOD) | st.sampled_from(OPTIONS) | odd.map(argument)
    pair = st.tuples(st.sampled_from(OPTIONS), st.just("=") | st.none(), value).map(
        lambda parts: [parts[0], parts[2]] if parts[1] is None else ["=".join((parts[0], parts[2]))]
    )
    given = draw(st.lists(word.map(lambda text: [text]) | pair, max_size=6))
    words = (*verb, *(each for group in given for each in group))
    return Case(_bounded(words), _files(), ("",), anywhere=True)


def _bounded(words: tuple[str, ...]) -> tuple[str, ...]:
    """Never the built-in data as a whole, which takes its time and is not what is asked here."""
    return tuple("data" if word == "digits" else word for word in words)


_PLACES = (
    "out", "", ".", "..", "/", "//", "~", "data", "data/data.yaml", "data/images/train/a.png",
    "data/labels/train", "w", "r.yaml", "link", "link/x", "loop", "loop/x", "dangling", "dangling/x", "fifo",
    "fifo/x", "folder", "folder/", "folder/x", "full/predictions.json", "full", "x" * 255, "x" * 256,
    "x" * 5000, "a/" * 200 + "b", "no/such/folder/x", "/dev/null", "/dev/full", "/dev/null/x", "/proc/x",
    "/proc/self/x", "a\0b", "\udcff", "\u202e", "a\nb", "\x1b[31mred", "-", "--out", "*", "out.png",
    "out.html", "out.pdf", "out.xyz", "link.png", "dangling.png", "fifo.png", "loop.png", "folder.png",
    "data/images/train/a.png/x", "hidden/../out", "./out", "link-to-data", "link-to-data/images/train",
    "out.safetensors", ".png", "run", "run/checkpoints", "a.png", "/no-such-place", "/no/such/place",
)  # fmt: skip


@st.composite
def output_places(draw: st.DrawFn) -> Case:
    """Sound inputs, and a place to write to where something else is, or nothing can be."""
    files: dict[str, Entry] = {
        **_files(), "link": Link("stranger"), "loop": Link("loop"), "dangling": Link("not-there"),
        "fifo": Fifo(),
        "folder": Folder(), "stranger": b"not ours", "full/predictions.json": b"[]", "full/a.png": b"theirs",
        "link.png": Link("stranger"), "dangling.png": Link("not-there.png"), "fifo.png": Fifo(),
        "loop.png": Link("loop.png"),
        "folder.png": Folder(), "link-to-data": Link("data"), "hole.png": Hole(10), "hidden/x": b"",
        "run/notes.txt": b"theirs", "run/journal.jsonl": b"theirs", "run/logs/rank-0.log": b"theirs",
    }  # fmt: skip
    place = draw(st.sampled_from(_PLACES) | odd.map(argument))
    commands: list[tuple[str, ...]] = [
        ("predict", "w", "a.png", "--out", place), ("predict", "w", "data/images/train", "--out", place),
        ("export", "w", "--format", "darknet", "--out", place), ("train", "r.yaml", "--devices", "1",
        "--run", place),
        ("import", "w.weights", "--cfg", "n.cfg", "--out", place), ("import", "w.weights", "--cfg", "n.cfg",
        "--force", "--out", place),
        ("data", "convert", "data", "--to", "coco", "--out", place), ("data", "split", "data", "--out",
        place, "--val", "0.5"),
        ("data", "pack", "data", "--out", place), ("data", "check", "data", "--fix", "--out", place),
        ("data", "show", "data", "--count", "2", "--out", place), ("data", "stats", "data", "--out", place),
        ("digest", place), ("predict", place, "a.png", "--out", "out"), ("predict", "w", place, "--out",
        "out"),
        ("data", "check", place), ("data", "stats", place), ("evaluate", place), ("import", place, "--model",
        "resnet18", "--out", "out"),
        ("import", "w.weights", "--cfg", place, "--out", "out"), ("data", "anchors", "data", "--model",
        place),
        ("import", "w.weights", "--cfg", "n.cfg", "--names", place, "--out", "out"),
    ]  # fmt: skip
    words = draw(st.sampled_from(commands))
    there = ("w", "r.yaml", "a.png", "stranger", "link", "dangling")  # a link itself, not what it leads to
    replaced = (place,) if "--force" in words and place in there else ()
    return Case(words, files, ("",), replaced, anywhere=True)
