"""Networks and weights of strangers: cfgs, Darknet weights, checkpoints, safetensors."""

from __future__ import annotations

import functools
import io
import json
import struct
import zipfile
from typing import Any

from hypothesis import strategies as st

from support.fuzz import seeds
from support.fuzz.case import Case, Entry, Hole
from support.fuzz.hostile_checkpoints import HARM, legacy
from support.fuzz.mutations import (
    damaged,
    damaged_text,
    damaged_value,
    encoded,
    json_values,
    numbers,
    odd,
    overwritten,
    words,
)

# --- cfg --------------------------------------------------------------------------------------------------

SECTIONS = (
    "convolutional", "shortcut", "maxpool", "route", "upsample", "yolo", "net", "dropout", "avgpool", "sam",
    "scale_channels", "batchnorm", "local", "lstm", "reorg", "reorg3d", "connected", "softmax", "region",
    "Gaussian_yolo", "crnn", "contrastive",
)  # fmt: skip
KEYS = (
    "batch_normalize", "filters", "size", "stride", "pad", "padding", "groups", "group_id", "dilation",
    "activation", "from", "layers", "mask", "anchors", "classes", "num", "width", "height", "channels",
    "scale_x_y", "new_coords", "iou_loss", "nms_kind", "beta_nms", "letter_box", "stride_x", "stride_y",
    "antialiasing", "maxpool_depth", "out_channels", "weights_type", "ignore_thresh", "max", "jitter",
    "random",
)  # fmt: skip
CFG_TOKENS = (
    *(f"[{name}]" for name in SECTIONS),
    *(f"{key}=1" for key in KEYS),
    "-1",
    "-2",
    "1000000",
    "65536",
)

_small = st.sampled_from(["0", "1", "2", "3", "-1", "-2", "4", "8", "14", "32", "1000", "65536", "1000000"])
_section = st.tuples(
    st.sampled_from(SECTIONS[:10]),
    st.dictionaries(
        st.sampled_from(KEYS), _small | st.sampled_from(["leaky", "mish", "linear", "-1,-2",
        "4,6,10,12"]) | odd, max_size=5
    ),
)  # fmt: skip


def _cfg_text(sections: list[tuple[str, dict[str, str]]]) -> bytes:
    lines = ["[net]", "width=32", "height=32"]
    for name, options in sections:
        lines += [f"[{name}]", *(f"{key}={value}" for key, value in options.items())]
    return encoded("\n".join(lines) + "\n" + seeds.CFG[seeds.CFG.rindex("[convolutional]") :])


cfg_texts = damaged_text(seeds.CFG, CFG_TOKENS) | st.lists(_section, max_size=12).map(_cfg_text)


@st.composite
def cfgs(draw: st.DrawFn) -> Case:
    """A cfg with the weights of the one that it was made of, or a recipe that names it."""
    entries: dict[str, Entry] = {"n.cfg": draw(cfg_texts), "w.weights": seeds.darknet_weights()}
    if draw(st.integers(0, 3)):
        return Case(("import", "w.weights", "--cfg", "n.cfg", "--out", "out"), entries, ("out",))
    entries |= seeds.darknet()
    return Case(("train", "model.cfg=n.cfg", "data.root=data", *seeds.FEW, "--run", "out"), entries, ("out",))


# --- Darknet's weights ------------------------------------------------------------------------------------


@st.composite
def darknet_weights(draw: st.DrawFn) -> Case:
    """Weights that are cut, longer, of another header, or for another network."""
    whole = seeds.darknet_weights()
    header = st.tuples(*[st.integers(-(2**31), 2**31 - 1)] * 3, st.integers(0, 2**64 - 1))
    content: Entry = draw(
        damaged(whole)
        | overwritten(whole)
        | overwritten(whole)
        | st.binary(max_size=60)
        | header.map(lambda h: struct.pack("<iiiQ", *h) + whole[20:])
        | st.sampled_from([0, 4, 20, 1516, 2**33]).map(Hole)
    )
    name = draw(st.sampled_from(["w.weights", "w.weights", "darknet53.conv.74", "yolov4-tiny.conv.29", "w"]))
    entries: dict[str, Entry] = {name: content, "n.cfg": seeds.CFG.encode()}
    words: tuple[str, ...] = ("import", name, "--cfg", "n.cfg", "--out", "out")
    if draw(st.integers(0, 4)) == 0:
        words = ("import", name, "--model", "yolov4-tiny", "--out", "out", "model.width=0.125")
    if draw(st.booleans()):
        entries["names"] = draw(
            st.sampled_from([b"cat\ndog\n", b'["cat", "dog"]']) | damaged(b'["cat", "dog"]')
        )
        words = (*words, "--names", "names")
    return Case(words, entries, ("out",))


# --- checkpoints ------------------------------------------------------------------------------------------


def _archive(records: dict[str, bytes], compression: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as file:
        for name, content in records.items():
            file.writestr(zipfile.ZipInfo(name), content, compression)  # of a date that is always the same
    return out.getvalue()


@functools.cache
def _records() -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(seeds.checkpoint(True))) as file:
        return {name: file.read(name) for name in file.namelist()}


PICKLED = (
    "cos\nsystem\n", "cposix\nsystem\n", "c__builtin__\neval\n", "cbuiltins\ngetattr\n", "cevil\nTask\n",
    "\x85R", ")R", "}q\x00", "h\x00", "(", "t", "0", "2", "\x8a\x08", "\x8b\xff\xff\xff\x7f",
    "X\xff\xff\xff\x7f", "Q", "cnumpy.core.multiarray\nscalar\n", "ctorch._utils\n_rebuild_parameter\n", "b",
    "s", "u", "a", "e", "i", "\x93", "\x81", "\x92", "\x82\x01", "\x95\xff\xff\xff\xff\xff\xff\xff\x7f",
)  # fmt: skip


def _pickle_of_a_command() -> st.SearchStrategy[bytes]:
    """What an attacker would write: globals, arguments and calls in an order that may or may not work."""
    piece = st.sampled_from([
        b"cos\nsystem\n", b"cposix\nsystem\n", b"cbuiltins\neval\n", b"c__builtin__\nexec\n",
        b"cevil\nTask\n", b"cbuiltins\ngetattr\n", b"csubprocess\nPopen\n", b"ctorch.hub\nload\n",
        b"ctorch\nload\n", b"ccollections\nOrderedDict\n", b"ctorch._utils\n_rebuild_tensor_v2\n",
        b"c_codecs\nencode\n", b"X\x16\0\0\0touch evil-was-here   ", b"X\x06\0\0\0system", b"X\x04\0\0\0evil",
        b"\x85", b"R", b"(", b"t", b")", b"}", b"]", b"q\0", b"h\0", b"s", b"a", b"b", b"o", b"i", b"0",
        b"K\1", b"\x93", b"\x81", b"ios\nsystem\n",
    ])  # fmt: skip
    return st.lists(piece, max_size=14).map(lambda parts: b"\x80\x02" + b"".join(parts) + b".")


@st.composite
def _zipped(draw: st.DrawFn) -> bytes:
    records = dict(_records())
    kind = draw(st.sampled_from(["bytes", "pickle", "record", "gone", "name", "command", "compressed"]))
    if kind == "bytes":
        return draw(damaged(seeds.checkpoint(True)))
    name = draw(st.sampled_from(sorted(records)))
    pickled = next(each for each in records if each.endswith("data.pkl"))
    if kind == "pickle":
        records[pickled] = draw(damaged(records[pickled], PICKLED))
    elif kind == "record":
        records[name] = draw(damaged(records[name]))
    elif kind == "gone":
        del records[name]
    elif kind == "name":
        other = encoded(draw(words)).decode("utf-8", "replace").replace("\0", "")
        records[other or "x"] = records.pop(name)
    elif kind == "command":
        records[pickled] = draw(_pickle_of_a_command())
    return _archive(records, zipfile.ZIP_DEFLATED if kind == "compressed" else zipfile.ZIP_STORED)


@st.composite
def _legacy(draw: st.DrawFn) -> bytes:
    if draw(st.integers(0, 3)):
        return draw(damaged(seeds.checkpoint(False), PICKLED))
    return legacy(draw(_pickle_of_a_command()))


_bombs = st.builds(
    seeds.bomb,
    st.sampled_from(["system", "eval", "exec", "popen", "import"]),
    st.sampled_from(["zip", "legacy", "plain"]),
)


@st.composite
def _checkpoint(draw: st.DrawFn, content: st.SearchStrategy[bytes]) -> Case:
    entries: dict[str, Entry] = {"w.pt": draw(content), "n.cfg": seeds.CFG.encode(), **seeds.EVIL}
    words: tuple[str, ...] = ("import", "w.pt", "model.cfg=n.cfg", "--out", "out")
    more = [
        "--partial",
        "--by-order",
        "--key=state_dict",
        "--classes=2",
        "--key=a.b",
        "--classes=3",
        "--json",
    ]
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return Case(("digest", "w.pt"), entries)
    if kind == 1:
        entries |= seeds.darknet()
        pretrained = ("model.pretrained=w.pt", "model.cfg=n.cfg", "data.root=data")
        return Case(("train", *pretrained, *seeds.FEW, "--run", "out"), entries, ("out",))
    return Case((*words, *draw(st.lists(st.sampled_from(more), max_size=2, unique=True))), entries, ("out",))


_harm = st.sampled_from(sorted(HARM)).flatmap(lambda name: damaged(HARM[name]) | st.just(HARM[name]))
checkpoints_zipped = _checkpoint(_zipped() | _bombs | _harm)
checkpoints_legacy = _checkpoint(_legacy() | _bombs)

# --- safetensors ------------------------------------------------------------------------------------------


def _split(content: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def _joined(header: Any, data: bytes, length: int | None = None) -> bytes:
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return struct.pack("<Q", len(text) if length is None else length) + text + data


TARGET_VERBS: tuple[tuple[str, ...], ...] = (
    ("digest", "w"), ("predict", "w", "a.png", "--out", "out"), ("evaluate", "w", "--devices", "1"),
    ("export", "w", "--format", "darknet", "--out", "out"), ("predict", "w", "a.png", "--out", "out",
    "--json"),
    ("import", "w", "model.cfg=n.cfg", "--out", "out"),
)  # fmt: skip


@st.composite
def safetensors(draw: st.DrawFn) -> Case:
    """A header that lies about the tensors, or is none."""
    whole = seeds.weights()
    header, data = _split(whole)
    kind = draw(st.sampled_from(["bytes", "header", "offsets", "text", "length", "data", "any"]))
    if kind == "bytes":
        content = draw(damaged(whole))
    elif kind == "header":
        content = _joined(draw(damaged_value(header)), data)
    elif kind == "offsets":
        name = draw(st.sampled_from(sorted(set(header) - {"__metadata__"})))
        header[name] |= draw(
            st.fixed_dictionaries({}, optional={
                "data_offsets": st.lists(st.integers(-9, 6000) | st.integers(0, 2**64), min_size=2,
                max_size=2),
                "shape": st.lists(st.integers(-2, 9) | st.sampled_from([2**31, 2**63, 2**64, 0]), max_size=5),
                "dtype": st.sampled_from(["F32", "F64", "F16", "BF16", "I8", "BOOL", "F8_E4M3", "F4", "C64",
                "U64", "X"]),
            })
        )  # fmt: skip
        content = _joined(header, data)
    elif kind == "text":
        content = _joined(draw(damaged(json.dumps(header).encode())), data)
    elif kind == "length":
        content = _joined(header, data, draw(st.integers(0, 2**64 - 1) | st.integers(0, 9000)))
    elif kind == "data":
        content = _joined(header, draw(damaged(data) | overwritten(data)))
    else:
        content = _joined(draw(json_values), draw(st.binary(max_size=40)))
    entries: dict[str, Entry] = {"w": content, "a.png": seeds.encoded_image(), "n.cfg": seeds.CFG.encode()}
    return Case(draw(st.sampled_from(TARGET_VERBS)), entries | seeds.darknet() | seeds.EVIL, ("out",))


_TASKS = (
    "evil",
    "evil:Task",
    "evil.py:Task",
    "/evil.py:Task",
    "./evil.py:Task",
    "os:system",
    "classify",
    "",
    "rankless",
)
_HOSTILE_RECIPES: dict[str, st.SearchStrategy[Any]] = {
    "task": st.sampled_from(_TASKS) | words,
    "model.name": st.sampled_from(["resnet18", "timm/resnet18", "timm/", "yolov3", "yolox-s", "evil",
    "densenet"]) | words,
    "model.cfg": st.sampled_from(["", "n.cfg", "/dev/zero", "evil.py", seeds.CFG * 2]) | cfg_texts.map(
        lambda text: text.decode("utf-8", "replace")),
    "model.width": st.sampled_from([1e-9, 0, -1, 4, 1000, 1e6, 1e300]),
    "model.image_size": st.sampled_from([0, 1, 32, 33, 10**6, 10**9, 10**30, [32, 10**7], -32]),
    "model.pretrained": st.sampled_from(["evil.py", "w", "/etc/passwd", "timm"]),
    "model.anchors": st.sampled_from(["kmeans", [[1, 1]] * 3, [[0, 0]], [[1e300, 1e-300]] * 2, [[1,
    1]] * 10**4]),
    "data.root": st.sampled_from(["", "/", "/dev/zero", "evil", "digits", "a\0b", "x" * 300,
    "../.."]) | words,
    "data.format": words,
    "data.train_images": st.sampled_from([0, 1, 10**12]),
    "data.val": words,
    "batch.images": st.sampled_from([0, 1, 10**9, 10**30]),
    "evaluate.detections": st.sampled_from([0, 1, 10**12]),
    "evaluate.confidence": st.sampled_from([0, 1, -1, 2, 1e-300]),
    "workers": st.sampled_from([0, -1, 10**6]),
    "threads": st.sampled_from([0, 1, 10**6]),
    "seed": st.sampled_from([-1, 10**40]),
    "unknown": json_values,
}  # fmt: skip


@st.composite
def hostile_metadata(draw: st.DrawFn) -> Case:
    """Sound tensors under a recipe, names and a format that a stranger wrote."""
    header, data = _split(seeds.weights())
    metadata = header["__metadata__"]
    kind = draw(st.sampled_from(["recipe", "recipe", "value", "text", "names", "format", "any"]))
    recipe = json.loads(metadata["recipe"])
    if kind == "recipe":
        for key in draw(
            st.lists(st.sampled_from(sorted(_HOSTILE_RECIPES)), min_size=1, max_size=3, unique=True)
        ):
            section, _, name = key.rpartition(".")
            (recipe[section] if section else recipe)[name] = draw(_HOSTILE_RECIPES[key])
        metadata["recipe"] = json.dumps(recipe)
    elif kind == "value":
        metadata["recipe"] = json.dumps(draw(damaged_value(recipe)))
    elif kind == "text":
        metadata["recipe"] = draw(damaged(metadata["recipe"].encode())).decode("utf-8", "replace")
    elif kind == "names":
        names = draw(json_values | st.lists(words, min_size=2, max_size=2) | st.just([""] * 10**5))
        metadata["class_names"] = json.dumps(names) if draw(st.booleans()) else draw(words | numbers)
    elif kind == "format":
        metadata["format"] = draw(st.sampled_from(["rankless 2", "rankless", "pt", "rankless 1\n"]) | words)
    else:
        header["__metadata__"] = draw(st.dictionaries(words, words, max_size=5) | json_values)
    entries: dict[str, Entry] = {
        "w": _joined(header, data),
        "a.png": seeds.encoded_image(),
        "n.cfg": seeds.CFG.encode(),
    }
    return Case(draw(st.sampled_from(TARGET_VERBS)), entries | seeds.darknet() | seeds.EVIL, ("out",))
