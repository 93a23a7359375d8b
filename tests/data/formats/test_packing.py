"""Packing: what is read back is bit for bit what was packed, in its order; like data gives like bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import webdataset
from PIL import Image

from rankless.data.datasets.annotated import BoxedImages
from rankless.data.datasets.detection import DetectionExamples
from rankless.data.formats import image_folder
from rankless.data.formats import webdataset as page
from rankless.data.formats.packing import pack
from rankless.data.formats.writing import ImageFiles
from rankless.data.index.annotations import Annotations
from rankless.data.index.byte_ranges import content
from rankless.data.index.raw import RawBuilder
from rankless.data.index.validation import validate
from rankless.errors import UserError
from rankless.recipe.schema import Augment
from support.small_disk import small_files

ARRAYS = ("sizes", "offsets", "boxes", "labels", "flags", "areas")


def samples(root: Path, names: list[str], size: tuple[int, int] = (20, 16)) -> list[str]:
    rng = np.random.default_rng(len(names))
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        image = rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(image).save(root / name, format="PNG" if name.endswith("png") else "JPEG")
    return [str(root / name) for name in names]


def boxed(paths: list[str], rows: list[tuple[int, list[float], int, int, float]]) -> Annotations:
    """Rows of (image, box, label, flag, area)."""
    made = RawBuilder()
    for path in paths:
        made.add_image(path, path, size=(16, 20))
    for line, (image, box, label, flag, area) in enumerate(rows):
        made.add_box(image, box, label, line, flag, area)
    return validate(made.raw(names=["cat", "dög", "big owl"]), "test")


def equal(before: Annotations, after: Annotations) -> bool:
    same = all(
        np.array_equal(getattr(before, name), getattr(after, name), equal_nan=name == "areas")
        for name in ARRAYS
    )
    bodies = (content(before, i) == content(after, i) for i in range(len(before)))
    return same and before.class_names == after.class_names and len(before) == len(after) and all(bodies)


def unpacked(out: Path, split: str) -> Annotations:
    return validate(page.read(out, split), "webdataset")


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    names = ["a/1.JPG", "b/1.jpg", "ü 1.v2.png", "b/1.jpeg"]
    return samples(tmp_path_factory.mktemp("images"), names)


def test_classes_come_back_and_webdataset_reads_them(tmp_path):
    root = tmp_path / "from"
    samples(
        root, [f"{split}/{name}/{n}.jpg" for split in ("train", "val") for name in "ab" for n in range(9)]
    )
    made = {split: validate(image_folder.read(root, split), "image-folder") for split in ("train", "val")}
    assert page.write(tmp_path / "to", made, ImageFiles()) == []
    assert page.splits(tmp_path / "to") == ["train", "val"]
    for split, before in made.items():
        assert equal(before, unpacked(tmp_path / "to", split))
        url = str(tmp_path / "to" / f"{split}-000000.tar")
        with (tmp_path / "to" / f"{split}-000000.tar").open("rb") as stream:
            opened = webdataset.tariterators.tar_file_expander([{"url": url, "stream": stream}])
            known = webdataset.DataPipeline(
                lambda opened=opened: webdataset.tariterators.group_by_keys(opened),
                webdataset.decode("pil"),
                webdataset.to_tuple("jpg", "cls"),
            )
            seen = [(np.array(image), label) for image, label in known]
        assert [label for _, label in seen] == before.labels.tolist()
        for index, (image, _) in enumerate(seen):
            assert np.array_equal(image, np.array(Image.open(before.path(index))))


def test_names_of_classes_are_joined_by_name(tmp_path):
    for split, names in (("train", "bd"), ("val", "abd")):
        samples(tmp_path / "from", [f"{split}/{name}/1.png" for name in names])
    made = {
        split: validate(image_folder.read(tmp_path / "from", split), "image-folder")
        for split in ("train", "val")
    }
    pack(made, tmp_path / "to")
    val = unpacked(tmp_path / "to", "val")
    assert val.class_names == ("b", "d", "a")
    assert [val.class_names[label] for label in val.labels] == ["a", "b", "d"]


def test_odd_class_names(tmp_path, four):
    made = boxed(four, [(0, [1, 1, 2, 2], 0, 0, 1.0)])
    odd = Annotations(**{**made.__dict__, "class_names": ("two\nlines", " ", "c")})
    pack({"train": odd}, tmp_path / "out")
    assert unpacked(tmp_path / "out", "train").class_names == ("two\nlines", " ", "c")


@pytest.mark.processes
def test_the_same_data_gives_the_same_bytes_and_no_shard_is_too_large(tmp_path, four):
    made = boxed(four, [(2, [1, 1, 9, 9], 1, 0, 5.0)])
    parts = [pack({"train": made, "a/b": made}, tmp_path / name, 7000) for name in ("1", "2")]
    assert parts[0] == parts[1] and parts[0][0] == "train-000000.tar" and parts[0][-1].startswith("a-b-")
    for name in (*parts[0], "classes.txt"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()
    assert all((tmp_path / "1" / name).stat().st_size <= 7000 for name in parts[0])
    assert len(parts[0]) > 2
    assert len(pack({"train": made}, tmp_path / "3", 1)) == 4  # one image each
    assert equal(made, unpacked(tmp_path / "3", "train"))


def test_shards_are_packed_again_and_unpacked_to_files(tmp_path, four):
    made = boxed(four, [(2, [1, 1, 9, 9], 1, 0, 5.0)])
    pack({"train": made}, tmp_path / "1")
    first = unpacked(tmp_path / "1", "train")
    pack({"train": first}, tmp_path / "2")
    assert (tmp_path / "1/train-000000.tar").read_bytes() == (tmp_path / "2/train-000000.tar").read_bytes()
    ImageFiles("link").put(first, 2, tmp_path / "x/out.png")
    assert (tmp_path / "x/out.png").read_bytes() == Path(four[2]).read_bytes()


def test_nothing_is_overwritten_and_nothing_half_done_stays(tmp_path, four):
    made = boxed(four, [])
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").touch()
    with pytest.raises(UserError, match="already exists, and existing files are not replaced"):
        pack({"train": made}, tmp_path / "full")
    gone = boxed([*four, str(tmp_path / "gone.jpg")], [])
    with pytest.raises(UserError, match=r"gone.jpg: the image cannot be read: No such file"):
        pack({"train": gone}, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"]


def test_a_disk_without_room(tmp_path, four):
    said = r"out: cannot be written: File too large .*make room"
    with pytest.raises(UserError, match=said), small_files(1500):
        pack({"train": boxed(four, [])}, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.processes
def test_detection_sees_the_same_from_shards(tmp_path, four):
    made = boxed(four, [(n, [1, 1, 9 + n, 9], n % 3, n == 3, 5.0) for n in range(4)])
    pack({"train": made}, tmp_path / "out", 4000)
    seen = []
    for one in (made, unpacked(tmp_path / "out", "train")):
        examples = DetectionExamples(BoxedImages(one), (32, 32), 0, Augment(mosaic=0.5), 9)
        seen.append([*examples.items([(0, 0), (1, 3)], 0), *examples.items([(5, 1), (0, 2)], 1)])
    for files, shards in zip(*seen, strict=True):
        assert torch.equal(files.image, shards.image) and torch.equal(files.boxes, shards.boxes)
        assert torch.equal(files.labels, shards.labels)
