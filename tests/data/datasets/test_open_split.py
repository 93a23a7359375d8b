"""A split is opened from the cache; an image that was replaced in secret is reported, and then read again."""

import pickle
from pathlib import Path

import pytest
from PIL import Image

from rankless.data.datasets import open_split
from rankless.data.datasets.annotated import BoxedImages
from rankless.data.datasets.open_split import examine, open_annotations
from rankless.data.index.raw import Raw, RawBuilder
from rankless.data.index.scan import with_headers
from rankless.errors import UserError


class OneBoxEach:
    """A format: every ``.png`` of a folder has one box. Counts how often it is read."""

    TITLE = "one box each"

    def __init__(self) -> None:
        self.times = 0

    def read(self, root: Path, split: str) -> Raw:
        self.times += 1
        assert root.is_absolute()
        made = RawBuilder()
        for path in map(str, sorted(root.glob("*.png"))):
            made.add_box(made.add_image(path, path), (2, 1, 8, 90), 0, 1)
        return with_headers(made.raw(names=["thing"], depends=[str(root)], about=["a sentence"]))


@pytest.fixture
def format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OneBoxEach:
    monkeypatch.setenv("RANKLESS_CACHE", str(tmp_path / "cache"))
    made = OneBoxEach()
    monkeypatch.setattr(open_split, "recognize", lambda root, format: ("voc", "its files end so"))
    monkeypatch.setattr(open_split, "format_named", lambda name: made)
    (tmp_path / "data").mkdir()
    for number in range(3):
        Image.new("RGB", (20, 10 + number)).save(tmp_path / "data" / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    return made


def test_what_was_kept_says_the_same(format: OneBoxEach) -> None:
    first = open_annotations("data", "train")
    again = open_annotations("data", "train")
    assert format.times == 1
    assert first.about == again.about
    assert again.about == (
        "data: read as one box each because its files end so: 3 images of 'train'",
        "a sentence",
    )
    assert again.findings.counts == {"over the edge": 3}
    assert again.boxes[:, 3].tolist() == [10, 11, 12]
    open_annotations("data", "train", rescan=True)
    examine("data", "train", rescan=True)
    assert format.times == 3


def test_what_was_kept_is_reported_as_it_is_opened_now(
    format: OneBoxEach, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_annotations("data", "train")
    monkeypatch.setattr(open_split, "recognize", lambda root, format: ("voc", "data.format is set"))
    again = open_annotations(f"{tmp_path}/data", "train")
    assert format.times == 1
    said = "read as one box each because data.format is set: 3 images of 'train'"
    assert again.about == (f"{tmp_path}/data: {said}", "a sentence")
    Path("data/3.png").touch()  # the data is read again, and what was cached is still there
    assert len(open_annotations("data", "train").paths()) == 4
    sent = pickle.loads(pickle.dumps(again))
    assert [Path(path).name for path in sent.paths()] == ["0.png", "1.png", "2.png"]


@pytest.mark.parametrize(("before", "found"), [(True, "20 × 11"), (False, "unreadable")])
def test_a_replaced_image_is_reported(format: OneBoxEach, before: bool, found: str) -> None:
    file = Path("data/1.png")
    if not before:
        file.write_bytes(b"half an image")
    images = BoxedImages(open_annotations("data", "train"))
    assert tuple(images.read(2).image.shape) == (3, 12, 20)
    Image.new("RGB", (30, 44)).save(file)
    with pytest.raises(UserError, match=rf"1\.png: the image changed .*: it was {found} and is now 30 × 44"):
        images.read(1)
    again = BoxedImages(open_annotations("data", "train"))
    assert format.times == 2
    assert again.read(1).boxes.tolist() == [[2, 1, 8, 44]]


def test_a_digest_is_of_what_is_annotated_wherever_it_lies(tmp_path: Path) -> None:
    for name in ("one", "two"):
        for place in ("images/train", "labels/train"):
            (tmp_path / name / place).mkdir(parents=True)
        Image.new("RGB", (40, 30)).save(tmp_path / name / "images/train/a.png")
        (tmp_path / name / "labels/train/a.txt").write_text("0 0.5 0.5 0.25 0.5\n")
        (tmp_path / name / "classes.txt").write_text("cat\n")
    first = open_annotations(str(tmp_path / "one"), "train").digest()
    assert open_annotations(str(tmp_path / "two"), "train").digest() == first
    (tmp_path / "two/labels/train/a.txt").write_text("0 0.5 0.5 0.25 0.6\n")
    assert open_annotations(str(tmp_path / "two"), "train").digest() != first
