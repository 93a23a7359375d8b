"""Data sets by torchvision's names: read as torchvision reads them, without unpickling anything."""

from __future__ import annotations

import hashlib
import pickle
import struct
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision
from PIL import Image

from rankless import cli
from rankless.data.datasets.open_split import examine
from rankless.data.datasets.torchvision_sets import download, located
from rankless.data.images.sources import FileImages
from rankless.errors import UserError
from rankless.recipe import load
from rankless.recipe.schema import Data, Recipe
from rankless.tasks import data_digest, open_task, resolve_recipe

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def python2(value: Any) -> bytes:
    """The operations by which Python 2 pickles it with protocol 2, an array as NumPy does."""
    if isinstance(value, dict):
        items = b"".join(python2(name) + python2(one) for name, one in value.items())
        return b"}(" + items + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(python2, value)) + b"e"
    if isinstance(value, str):
        return b"U" + bytes([len(value)]) + value.encode()
    if isinstance(value, int):
        return b"K" + bytes([value]) if value < 256 else b"J" + struct.pack("<i", value)
    rows, columns = value.shape
    made = b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\x09"
    kind = (
        b"cnumpy\ndtype\nq\x0aU\x02u1K\x00K\x01\x87Rq\x0b(K\x03U\x01|NNN"
        + b"J\xff\xff\xff\xff" * 2
        + b"K\x00tb"
    )
    shape = python2(rows) + python2(columns) + b"\x86"
    return (
        made + b"(K\x01" + shape + kind + b"\x89T" + struct.pack("<i", value.size) + value.tobytes() + b"tb"
    )


def cifar(folder: Path, hundred: bool = False) -> Path:
    rng = np.random.default_rng(5)
    top = folder / ("cifar-100-python" if hundred else "cifar-10-batches-py")
    top.mkdir(parents=True)
    batches = ["train", "test"] if hundred else [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
    for name in batches:
        data = rng.integers(0, 256, (7, 3072), dtype=np.uint8)
        labels = rng.integers(0, 10, 7).tolist()
        key = {"fine_labels": labels, "coarse_labels": [0] * 7} if hundred else {"labels": labels}
        content = {"batch_label": "a batch", **key, "data": data, "filenames": ["x.png"] * 7}
        (top / name).write_bytes(b"\x80\x02" + python2(content) + b".")
    meta = {"fine_label_names" if hundred else "label_names": NAMES, "num_vis": 3072}
    (top / ("meta" if hundred else "batches.meta")).write_bytes(b"\x80\x02" + python2(meta) + b".")
    return folder


def theirs(folder: Path, kind: Any, train: bool) -> Any:
    top = folder / kind.base_folder

    def md5(name: str) -> str:
        return hashlib.md5((top / name).read_bytes()).hexdigest()

    sums = {
        part: [[name, md5(name)] for name, _ in getattr(kind, part)] for part in ("train_list", "test_list")
    }
    sums["meta"] = {**kind.meta, "md5": md5(kind.meta["filename"])}
    return type(kind.__name__, (kind,), sums)(str(folder), train=train)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of NumPy's names in old pickles
@pytest.mark.parametrize(("hundred", "split"), [(False, "train"), (False, "test"), (True, "train")])
def test_cifar_is_what_torchvision_reads(tmp_path, hundred, split):
    folder = cifar(tmp_path / "d", hundred)
    kind = torchvision.datasets.CIFAR100 if hundred else torchvision.datasets.CIFAR10
    wanted = theirs(folder, kind, split == "train")
    found = examine(str(folder), split)
    assert found.format == "cifar"
    assert len(found) == len(wanted) == (35 if split == "train" and not hundred else 7)
    assert found.class_names == tuple(NAMES) == tuple(wanted.classes)
    assert found.labels.tolist() == wanted.targets
    images = FileImages(found)
    for index in range(len(found)):
        assert np.array_equal(images.read(index).image.permute(1, 2, 0).numpy(), np.asarray(wanted[index][0]))


def test_val_means_the_test_images_and_says_so(tmp_path):
    folder = str(cifar(tmp_path / "d"))
    val, test = examine(folder, "val"), examine(folder, "test")
    assert val.digest() == test.digest()
    assert any("'val' is the test split" in note for note in val.about)
    with pytest.raises(UserError, match="no split 'other'; expected 'train', 'test' or 'val'"):
        examine(folder, "other")


class Evil:
    def __init__(self, command: tuple[Any, ...]) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return self.command


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_nothing_in_a_file_is_run(tmp_path, protocol):
    folder, witness = cifar(tmp_path / "d"), tmp_path / "witness"
    for name in ("data_batch_1", "batches.meta"):
        file = folder / "cifar-10-batches-py" / name
        before = file.read_bytes()
        evil = {"labels": [1], "data": Evil((Path.touch, (witness,))), "label_names": Evil((print, ("x",)))}
        file.write_bytes(pickle.dumps(evil, protocol))
        with pytest.raises(
            UserError,
            match=rf"{name}: (is damaged or does not belong|'.*' is not a list|'data' or '.*' is missing)",
        ):
            examine(str(folder), "train")
        file.write_bytes(before)
    assert not witness.exists()
    assert len(examine(str(folder), "train")) == 35


@pytest.mark.parametrize("change", ["cut", "zeros", "labels", "bytes", "gone"])
def test_a_damaged_file_is_named(tmp_path, change):
    folder = cifar(tmp_path / "d")
    file = folder / "cifar-10-batches-py" / "data_batch_3"
    data = file.read_bytes()
    labels = {"labels": [11] * 7, "data": np.zeros((7, 3072), np.uint8)}
    fewer = {"labels": [1] * 7, "data": np.zeros((6, 3072), np.uint8)}
    made = {
        "cut": data[: len(data) // 2],
        "zeros": bytes(len(data)),
        "labels": b"\x80\x02" + python2(labels) + b".",
        "bytes": b"\x80\x02" + python2(fewer) + b".",
    }
    file.write_bytes(made[change]) if change in made else file.unlink()
    with pytest.raises(UserError, match=r"data_batch_3: .*; expected .*"):
        examine(str(folder), "train")


def test_both_kinds_in_one_folder_are_told_apart_by_name(tmp_path):
    folder = cifar(cifar(tmp_path / "d"), hundred=True)
    with pytest.raises(UserError, match="both 'cifar-10-batches-py' and 'cifar-100-python'"):
        examine(str(folder), "train")
    for name, count in (("CIFAR10", 35), ("CIFAR100", 7)):
        recipe = Recipe(
            task="classify",
            model={"name": "resnet18"},
            data={
                "root": f"torchvision/{name}",
                "folder": str(folder),
                "classes": ["dog", "cat", *NAMES[:3]],
            },
        )
        resolved = resolve_recipe(recipe)
        assert resolved.data.format == "cifar" and resolved.data.folder == "data"
        task = open_task(recipe)
        assert task.class_names[:2] == ("dog", "cat")
        assert len(task.training_data()) < count
        assert data_digest(recipe) == data_digest(resolved) is not None


def test_cifar_becomes_class_folders(tmp_path, capsys):
    folder = str(cifar(tmp_path / "d"))
    assert cli.main(["data", "convert", folder, "--to", "image-folder", "--out", str(tmp_path / "new")]) == 0
    assert "read back and compared" in capsys.readouterr().out
    old, new = examine(folder, "test"), examine(str(tmp_path / "new"), "test")
    assert sorted(old.class_names[label] for label in old.labels) == sorted(
        new.class_names[label] for label in new.labels
    )
    assert cli.main(["data", "convert", folder, "--to", "cifar", "--out", str(tmp_path / "no")]) == 2
    assert "--to is 'cifar'" in (shown := capsys.readouterr().err) and "image-folder" in shown
    assert not (tmp_path / "no").exists()
    assert cli.main(["data", "split", folder, "--out", str(tmp_path / "split")]) == 0
    assert {*examine(str(tmp_path / "split"), "val").class_names} <= {*old.class_names}


def pets(folder: Path) -> Path:
    top = folder / "oxford-iiit-pet"
    (top / "annotations").mkdir(parents=True)
    (top / "images").mkdir()
    rows: dict[str, list[str]] = {"trainval": [], "test": []}
    for number, breed in enumerate(("Abyssinian", "american_bulldog", "Bengal"), 1):
        for copy, split in enumerate(("trainval", "test", "trainval")):
            Image.new("RGB", (30 + number, 20 + copy), (number, copy, 9)).save(
                top / "images" / f"{breed}_{copy}.jpg"
            )
            rows[split].append(f"{breed}_{copy} {number} 1 {number}\n")
    for split, lines in rows.items():
        (top / "annotations" / f"{split}.txt").write_text("".join(reversed(lines)))
    return folder


@pytest.mark.parametrize(("split", "list_"), [("train", "trainval"), ("val", "test"), ("test", "test")])
def test_pets_are_what_torchvision_reads(tmp_path, split, list_):
    folder = pets(tmp_path / "d")
    wanted = torchvision.datasets.OxfordIIITPet(str(folder), split=list_)
    found = examine(str(folder), split)
    assert found.format == "oxford-pets"
    assert found.class_names == tuple(wanted.classes) == ("Abyssinian", "American Bulldog", "Bengal")
    assert found.labels.tolist() == wanted._labels
    assert [Path(path) for path in found.paths()] == wanted._images
    assert any(f"'{split}' refers to the list '{list_}'" in note for note in found.about) == (split != list_)


def voc(folder: Path) -> Path:
    top = folder / "VOCdevkit" / "VOC2012"
    for each in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (top / each).mkdir(parents=True)
    for number, split in enumerate(("train", "val")):
        Image.new("RGB", (40, 20)).save(top / "JPEGImages" / f"{number}.jpg")
        box = "<bndbox><xmin>2</xmin><ymin>3</ymin><xmax>11</xmax><ymax>12</ymax></bndbox>"
        text = f"<filename>{number}.jpg</filename><object><name>cat</name>{box}</object>"
        (top / "Annotations" / f"{number}.xml").write_text(f"<annotation>{text}</annotation>")
        (top / "ImageSets" / "Main" / f"{split}.txt").write_text(f"{number}\n")
    return folder


def test_pascal_voc_is_what_torchvision_reads(tmp_path):
    folder = voc(tmp_path / "d")
    wanted = torchvision.datasets.VOCDetection(str(folder), year="2012", image_set="val")
    data = located(Data(root="torchvision/VOCDetection", folder=str(folder)))
    found = examine(data.root, "val", data.format)
    assert found.paths() == wanted.images
    box = wanted[0][1]["annotation"]["object"][0]["bndbox"]
    corners = [float(box[side]) for side in ("xmin", "ymin", "xmax", "ymax")]
    assert found.boxes.tolist() == [[corners[0] - 1, corners[1] - 1, *corners[2:]]]


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"root": "torchvision/CIFAR11"}, r"expected one of torchvision/CIFAR10, .*did you mean 'CIFAR10'\?"),
        ({"root": "torchvision/CIFAR10"}, r"no files found in data .*set data\.folder, or add --download"),
        (
            {"root": "torchvision/CocoDetection", "folder": "x"},
            r"as stored by torchvision; set data\.folder$",
        ),
    ],
)
def test_what_is_not_there_is_not_downloaded(tmp_path, monkeypatch, keys, sentence):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=sentence):
        located(Data(**keys))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_name_has_no_effect(capsys):
    with pytest.raises(UserError, match=r"'data\.folder' is 'x', which has an effect only with"):
        load.default(["data.root=mine", "data.folder=x"])
    assert cli.main(["data", "check", "torchvision/CIFAR10"]) == 2
    assert "this name is valid only in recipes" in capsys.readouterr().err


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def published(tmp_path, monkeypatch):
    made = cifar(tmp_path / "published")
    file = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(file, "w:gz") as tar:
        tar.add(made / "cifar-10-batches-py", "cifar-10-batches-py")
    digest = hashlib.md5(file.read_bytes()).hexdigest()
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "tgz_md5", digest)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(tmp_path))) as server:
        url = f"http://127.0.0.1:{server.server_port}/{file.name}"
        monkeypatch.setattr(torchvision.datasets.CIFAR10, "url", url)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield url
        server.shutdown()
        thread.join()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Python, on how torchvision unpacks
def test_a_download_is_asked_for_and_only_once(tmp_path, published):
    data = Data(root="torchvision/CIFAR10", folder=str(tmp_path / "here"))
    (said,) = download(data)
    assert said == f"downloaded {published} to {tmp_path / 'here'}"
    assert len(examine(located(data).root, "train", "cifar")) == 35
    assert download(data) == []


def test_other_bytes_than_published_are_refused(tmp_path, published):
    (tmp_path / published.rpartition("/")[2]).write_bytes(b"other bytes")
    data = Data(root="torchvision/CIFAR10", folder=str(tmp_path / "here"))
    with pytest.raises(
        UserError, match=r"cannot be downloaded: .*; check the network connection and try again"
    ):
        download(data)
    assert not (tmp_path / "here" / "cifar-10-batches-py").exists()


def test_the_command_says_what_it_cannot_download(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (["digits"], ["data.root=torchvision/CocoDetection"]):
        assert cli.main(["train", *words, "--download"]) == 2
        assert "error: --download: " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
