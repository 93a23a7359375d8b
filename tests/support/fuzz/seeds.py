"""Small valid files of every kind, made by the package's own writers and by other libraries."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import pickle
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from support.fuzz.case import Case, Entry, build
from support.fuzz.ranks import in_this_process, one_rank

CFG = """\
[net]
width=32
height=32
channels=3

[convolutional]
batch_normalize=1
filters=4
size=3
stride=2
pad=1
activation=leaky

[convolutional]
batch_normalize=1
filters=4
size=3
stride=2
pad=1
activation=mish

[convolutional]
filters=4
size=1
stride=1
activation=logistic

[shortcut]
from=-2
activation=linear

[maxpool]
size=2
stride=2

[route]
layers=-1,-1
groups=2
group_id=1

[upsample]
stride=1

[convolutional]
size=1
stride=1
pad=1
filters=14
activation=linear

[yolo]
mask=0,1
anchors=4,6, 10,12
classes=2
num=2
scale_x_y=1.05
iou_loss=ciou
nms_kind=diounms
"""

RECIPE = """\
# a small one
model:
  name: yolov4-tiny
  width: 0.125
  image_size: 32
  cfg: small.cfg
data:
  root: data
  train: train
  val: val
  augment: {flip: 0.5, hue: 0.02, scale: 0.3, translate: 0.1}
batch: {images: 2, micro: 1}
epochs: 1
seed: 0
optim: {name: sgd, lr: 0.01, momentum: 0.9}
schedule: {name: cosine, warmup: 1, final: 0.1}
precision: fp32
workers: 0
ema: {decay: 0.9}
evaluate: {every: 1 epoch, confidence: 0.01}
checkpoint: {every: 1, keep: 2}
"""


@functools.cache
def encoded_image(seed: int = 0, ending: str = "png", size: tuple[int, int] = (24, 16)) -> bytes:
    """An image as PIL writes it, with an EXIF orientation where the format has one."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 1 + seed % 8
    target = io.BytesIO()
    image = Image.fromarray(pixels)
    image = image.quantize(16) if ending == "gif" else image
    options: dict[str, Any] = {"exif": exif} if ending in ("jpeg", "png", "webp", "tiff") else {}
    image.save(target, format=ending, **options)
    return target.getvalue()


# --- data sets --------------------------------------------------------------------------------------------

BOXES = {"a": [(0, 2, 2, 12, 10), (1, 8, 4, 20, 15)], "b": [(1, 1, 1, 23, 15)], "c": [(0, 3, 3, 9, 9)]}
"""Image to its boxes: class, then corners in pixels of an image of 24 × 16."""
SPLITS = {"train": "ab", "val": "c"}
CLASSES = ("cat", "dog")


def darknet() -> dict[str, Entry]:
    """A ``data.yaml``, images and labels."""
    files: dict[str, Entry] = {}
    for split, names in SPLITS.items():
        for name in names:
            lines = [
                f"{label} {(x1 + x2) / 48} {(y1 + y2) / 32} {(x2 - x1) / 24} {(y2 - y1) / 16}"
                for label, x1, y1, x2, y2 in BOXES[name]
            ]
            files[f"data/images/{split}/{name}.png"] = encoded_image(ord(name))
            files[f"data/labels/{split}/{name}.txt"] = ("\n".join(lines) + "\n").encode()
    files["data/data.yaml"] = b"path: .\ntrain: images/train\nval: images/val\nnc: 2\nnames: [cat, dog]\n"
    return files


def darknet_lists() -> dict[str, Entry]:
    """Darknet's own: an ``obj.data``, names, and lists of images."""
    files = darknet()
    del files["data/data.yaml"]
    files["data/obj.data"] = (
        b"classes = 2\ntrain = train.txt\nvalid = val.txt\nnames = obj.names\nbackup = b\n"
    )
    files["data/obj.names"] = b"cat\ndog\n"
    for split, names in SPLITS.items():
        files[f"data/{split}.txt"] = "".join(f"images/{split}/{name}.png\n" for name in names).encode()
    return files


@functools.cache
def _converted(to: str) -> dict[str, Entry]:
    """The data in another format, as the package writes it."""
    from rankless.curation.data_set import open_data_set
    from rankless.data.formats.registry import write
    from rankless.data.formats.writing import ImageFiles

    with _folder() as folder:
        build(Case((), darknet()), folder)
        Path("data-2").mkdir()
        write(to, folder / "data-2", open_data_set("data").splits, ImageFiles("copy"))
        files = (path for path in Path("data-2").rglob("*") if path.is_file())
        return {f"data{str(path)[6:]}": path.read_bytes() for path in files}


def coco_json(split: str) -> dict[str, Any]:
    """COCO's ``instances``, with an outline of each object."""
    (text,) = (each for name, each in _converted("coco").items() if name.endswith(f"{split}.json"))
    assert isinstance(text, bytes)
    content: dict[str, Any] = json.loads(text)
    for each in content["annotations"]:
        x, y, width, height = each["bbox"]
        each["segmentation"] = [[x, y, x + width, y, x + width, y + height]]
    return content


def coco() -> dict[str, Entry]:
    files = dict(_converted("coco"))
    for split in SPLITS:
        (name,) = (name for name in files if name.endswith(f"{split}.json"))
        files[name] = json.dumps(coco_json(split)).encode()
    return files


def class_folders() -> dict[str, Entry]:
    """A folder per split, in it a folder per class."""
    return {
        f"data/{split}/{name}/{n}.png": encoded_image(n + 3 * k + 10 * len(split))
        for split in ("train", "val")
        for k, name in enumerate(CLASSES)
        for n in range(2)
    }


def shard(split: str, kind: str) -> bytes:
    """A tar as Python's tarfile writes it: images with a label beside each."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for n, name in enumerate(SPLITS[split]):
            box = [list(map(float, each[1:])) for each in BOXES[name]]
            numbers = [each[0] for each in BOXES[name]]
            label = {
                "cls": str(n % 2),
                "json": json.dumps({"boxes": box, "labels": numbers}),
                "txt": "".join(
                    f"{k} {(x1 + x2) / 48} {(y1 + y2) / 32} {(x2 - x1) / 24} {(y2 - y1) / 16}\n"
                    for k, x1, y1, x2, y2 in BOXES[name]
                ),
            }[kind]
            for ending, content in (("png", encoded_image(ord(name))), (kind, label.encode())):
                about = tarfile.TarInfo(f"{name}.{ending}")
                about.size = len(content)
                archive.addfile(about, io.BytesIO(content))
    return target.getvalue()


def shards(kind: str = "json") -> dict[str, Entry]:
    """Tar shards and the names of the classes."""
    files: dict[str, Entry] = {f"data/{split}-000000.tar": shard(split, kind) for split in SPLITS}
    return files | {"data/classes.txt": b"cat\ndog\n"}


TOOLS = ("createml", "cvat", "label-studio", "labelme", "via")


def of_tool(kind: str = "label-studio") -> dict[str, Entry]:
    """The images of a split, and the files of a labeling tool."""
    files: dict[str, Entry] = {}
    for split, names in SPLITS.items():
        files |= {f"data/{split}/{name}.png": encoded_image(ord(name)) for name in names}
        made = {name: [_of_tool(kind, *box) for box in BOXES[name]] for name in names}
        whole: Any = {
            "createml": [{"image": f"{name}.png", "annotations": each} for name, each in made.items()],
            "label-studio": [
                {"id": 1, "data": {"image": f"{name}.png"}, "annotations": [{"result": each}]}
                for name, each in made.items()
            ],
            "via": {
                name: {"filename": f"{name}.png", "regions": each, "file_attributes": {}}
                for name, each in made.items()
            },
        }.get(kind)
        if kind == "cvat":
            images = (f'<image id="{n}" name="{n}.png">{"".join(each)}</image>' for n, each in made.items())
            files[f"data/{split}/a.xml"] = f"<annotations>{''.join(images)}</annotations>".encode()
        elif kind == "labelme":
            for name, each in made.items():
                entry = {"shapes": each, "imagePath": f"{name}.png", "imageHeight": 16, "imageWidth": 24}
                files[f"data/{split}/{name}.json"] = json.dumps(entry).encode()
        else:
            files[f"data/{split}/a.json"] = json.dumps(whole).encode()
    return files


def _of_tool(kind: str, label: int, x1: int, y1: int, x2: int, y2: int) -> Any:
    name, keys = CLASSES[label], ("x", "y", "width", "height")
    box = dict(zip(keys, (x1, y1, x2 - x1, y2 - y1), strict=True))
    value = {"x": x1 / 0.24, "y": y1 / 0.16, "width": (x2 - x1) / 0.24, "height": (y2 - y1) / 0.16}
    return {
        "createml": {"label": name, "coordinates": {**box, "x": (x1 + x2) / 2, "y": (y1 + y2) / 2}},
        "cvat": f'<box label="{name}" xtl="{x1}" ytl="{y1}" xbr="{x2}" ybr="{y2}" rotation="0"></box>',
        "label-studio": {
            "original_width": 24,
            "original_height": 16,
            "value": {**value, "rotation": 0, "rectanglelabels": [name]},
        },
        "labelme": {"label": name, "shape_type": "polygon", "points": [[x1, y1], [x2, y1], [x2, y2]]},
        "via": {"shape_attributes": {"name": "rect", **box}, "region_attributes": {"class": name}},
    }[kind]


DATA: dict[str, Callable[[], dict[str, Entry]]] = {
    "darknet": darknet, "darknet lists": darknet_lists, "coco": coco, "image-folder": class_folders,
    "webdataset": shards, "labeling tools": of_tool,
    **{to: (lambda to=to: dict(_converted(to))) for to in ("voc", "csv", "lines")},
}  # fmt: skip


# --- weights ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _folder() -> Any:
    with tempfile.TemporaryDirectory(prefix="fuzz-seed-") as folder:
        before = Path.cwd()
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


@functools.cache
def _network() -> Any:
    from rankless.models.darknet.cfg import read_cfg

    return read_cfg(CFG).network


def recipe(*words: str) -> Any:
    from rankless.recipe.load import default

    own = (f"model.cfg={json.dumps(CFG)}", "data.root=data", "epochs=1", "batch.images=2", "batch.micro=1")
    return default([*own, "precision=fp32", "ema.decay=0.9", *words])


@functools.cache
def state() -> dict[str, torch.Tensor]:
    from rankless.models import zoo

    torch.manual_seed(0)
    return dict(zoo.build(recipe().model, 2).state_dict())


@functools.cache
def darknet_weights() -> bytes:
    from rankless.models.weights_files.darknet_weights import write_weights

    with _folder() as folder:
        write_weights(folder / "w", _network(), state())
        return (folder / "w").read_bytes()


@functools.cache
def weights() -> bytes:
    from rankless.models.weights_files import weights as page

    with _folder() as folder:
        page.save(folder / "w", state(), recipe=recipe(), class_names=CLASSES, extra={"step": "1"})
        return (folder / "w").read_bytes()


@functools.cache
def checkpoint(zipped: bool) -> bytes:
    """A checkpoint as ``torch.save`` writes it, with what trainers put beside the weights."""
    target = io.BytesIO()
    content = {
        "state_dict": state(),
        "epoch": 3,
        "half": torch.ones(2).half(),
        "names": list(CLASSES),
        "lr": 0.1,
    }
    torch.save(content, target, _use_new_zipfile_serialization=zipped)
    return target.getvalue()


class Marks:
    """Unpickling it runs a command; the command leaves a file."""

    def __init__(self, call: str) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        import builtins

        return {
            "system": (os.system, ("touch evil-was-here",)),
            "eval": (builtins.eval, ("__import__('evil')",)),
            "exec": (builtins.exec, ("import evil",)),
            "popen": (os.popen, ("touch evil-was-here",)),
            "import": (__import__, ("evil",)),
        }[self.call]


def bomb(call: str, kind: str) -> bytes:
    """A pickle that runs code, in the files that PyTorch writes, and plain."""
    content = {"state_dict": state(), "x": Marks(call)}
    if kind == "plain":
        return pickle.dumps(content, protocol=2)
    target = io.BytesIO()
    torch.save(content, target, _use_new_zipfile_serialization=kind == "zip")
    return target.getvalue()


# --- runs -------------------------------------------------------------------------------------------------


@functools.cache
def run_files() -> dict[str, bytes]:
    """A finished run with a checkpoint after each of its two steps, below ``run/``; one rank has made it."""
    from rankless import cli

    with _folder() as folder, in_this_process(one_rank), contextlib.redirect_stdout(io.StringIO()):
        build(Case((), darknet()), folder)
        (folder / "small.cfg").write_text(CFG)
        (folder / "r.yaml").write_text(RECIPE)
        code = cli.main(["train", "r.yaml", "epochs=2", "--run", "run", "--devices", "1"])
        assert code == 0, code
        files = (path for path in (folder / "run").rglob("*") if path.is_file() and not path.is_symlink())
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}


FEW = ("batch.images=2", "batch.micro=1", "epochs=1", "precision=fp32", "workers=0", "--devices", "1")
"""The rest of a small recipe on the command line."""

EVIL: dict[str, Entry] = {"evil.py": b"open('evil-was-here', 'w').close()\n\n\nclass Task:\n    pass\n"}
"""A module beside the files, which nothing may import."""
