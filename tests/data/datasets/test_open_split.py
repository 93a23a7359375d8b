"""A split is opened from the cache; an image that was replaced in secret is reported, and then read again."""

import pickle
import shutil
from pathlib import Path

import pytest
from PIL import Image

from rankless.data.datasets.annotated import BoxedImages
from rankless.data.datasets.open_split import examine, open_annotations
from rankless.errors import UserError


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three images, 10 to 12 pixels high, each with a box that extends over the lower edge."""
    monkeypatch.chdir(tmp_path)
    for folder in ("images/train", "labels/train"):
        Path("data", folder).mkdir(parents=True)
    Path("data/classes.txt").write_text("thing\n")
    for number in range(3):
        Image.new("RGB", (20, 10 + number)).save(f"data/images/train/{number}.png")
        Path(f"data/labels/train/{number}.txt").write_text("0 0.25 1 0.3 1\n")


def test_what_was_kept_says_the_same() -> None:
    first, again = (open_annotations("data", "train") for _ in range(2))
    assert first.folder == again.folder and first.about == again.about
    assert again.about[0].startswith("data: read as Darknet (YOLO) because ")
    assert again.about[0].endswith(": 3 images of 'train'")
    assert again.findings.counts == {"over the edge": 3}
    assert again.boxes[:, 3].tolist() == [10, 11, 12]
    again = [opened("data", "train", rescan=True).folder for opened in (open_annotations, examine)]
    assert len({first.folder, *again}) == 3


def test_what_was_kept_is_reported_as_it_is_opened_now(tmp_path: Path) -> None:
    first = open_annotations("data", "train")
    again = open_annotations(f"{tmp_path}/data", "train", "darknet")
    assert again.folder == first.folder
    said = "read as Darknet (YOLO) because data.format is set: 3 images of 'train'"
    assert again.about == (f"{tmp_path}/data: {said}", *first.about[1:])
    Path("data/images/train/3.png").touch()  # the data is read again, and what was cached is still there
    assert len(open_annotations("data", "train").paths()) == 4
    sent = pickle.loads(pickle.dumps(again))
    assert [Path(path).name for path in sent.paths()] == ["0.png", "1.png", "2.png"]


@pytest.mark.parametrize(("before", "found"), [(True, "20 × 11"), (False, "unreadable")])
def test_a_replaced_image_is_reported(before: bool, found: str) -> None:
    file = Path("data/images/train/1.png")
    if not before:
        file.write_bytes(b"half an image")
    images = BoxedImages(open_annotations("data", "train"))
    assert tuple(images.read(2).image.shape) == (3, 12, 20)
    Image.new("RGB", (30, 44)).save(file)
    with pytest.raises(UserError, match=rf"1\.png: the image changed .*: it was {found} and is now 30 × 44"):
        images.read(1)
    again = BoxedImages(open_annotations("data", "train"))
    assert again.read(1).boxes.tolist() == [[3, 22, 12, 44]]


def test_a_digest_is_of_what_is_annotated_wherever_it_lies() -> None:
    first = open_annotations("data", "train").digest()
    shutil.copytree("data", "other")
    assert open_annotations("other", "train").digest() == first
    Path("other/labels/train/0.txt").write_text("0 0.25 1 0.3 0.9\n")
    assert open_annotations("other", "train").digest() != first
