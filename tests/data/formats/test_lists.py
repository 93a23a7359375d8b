"""Lists of images, with boxes or beside label files, as old trainers leave them."""

from pathlib import Path

import pytest
from PIL import Image

from rankless.data.datasets.open_split import examine, split_to_train_on
from rankless.data.formats.registry import format_named, recognize
from rankless.errors import UserError
from rankless.recipe.schema import Data, Recipe
from rankless.tasks import open_task


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("RANKLESS_CACHE", str(tmp_path / "cache"))


def image(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 20)).save(file)
    return file


def names(found) -> list[str]:
    return [Path(path).name for path in found.paths()]


def lines(root: Path, **splits: int) -> Path:
    root.mkdir(exist_ok=True)
    (root / "classes.txt").write_text("cat\ndog\n")
    for split, count in splits.items():
        rows = []
        for number in range(count):
            file = image(root / "all" / f"{split}-{number:02}.jpg")
            rows.append(f"{file.relative_to(root)} 1,2,11,12,{number % 2}")
        (root / f"{split.lstrip('_')}.txt").write_text("\n".join(rows))
    return root


@pytest.mark.parametrize("joined", ["2007_{}", "{}2007", "voc2007_{}", "{}_2012"])
def test_a_year_is_no_part_of_a_splits_name(tmp_path, joined):
    root = lines(tmp_path / "d", **{f"_{joined.format(name)}": n for name, n in (("train", 3), ("val", 2))})
    if joined.startswith("voc"):
        with pytest.raises(UserError, match="no split 'train'; expected one of 'voc2007_train'"):
            examine(str(root), "train")
        return
    assert recognize(str(root))[0] == "lines"
    assert [len(examine(str(root), name)) for name in ("train", "val")] == [3, 2]


@pytest.mark.parametrize("as_file", [False, True])
def test_a_lone_list_is_divided_and_says_so(tmp_path, as_file):
    root = lines(tmp_path / "d", _2007_train=20)
    given = str(root / "2007_train.txt" if as_file else root)
    assert format_named("lines").splits(Path(given)) == ["train", "val"]
    train, val, whole = (examine(given, name) for name in ("train", "val", "2007_train"))
    assert (len(train), len(val), len(whole)) == (16, 4, 20)
    assert sorted(names(train) + names(val)) == names(whole)
    assert train.labels.tolist() == [int(name[-6:-4]) % 2 for name in names(train)]
    said = "2007_train.txt is the only list, so it is divided by a hash of the image paths: 4 of"
    assert any(
        note.startswith(said) and "use data.val=none to train on all images" in note for note in val.notes
    )
    assert not any("only list" in note for note in whole.notes)
    assert split_to_train_on(given, "train", "none") == "2007_train"
    assert split_to_train_on(given, "train", "val") == "train"
    # The order of the lines decides nothing, nor does where the folder lies.
    rows = (root / "2007_train.txt").read_text().splitlines()
    other = lines(tmp_path / "elsewhere", _2007_train=20)
    (other / "2007_train.txt").write_text("\n".join(reversed(rows)))
    assert set(names(examine(str(other), "val"))) == set(names(val))


def test_a_list_called_train_or_val_is_that(tmp_path):
    root = lines(tmp_path / "d", train=5)
    assert len(examine(str(root), "train")) == 5
    with pytest.raises(UserError, match="no split 'val'; expected 'train'"):
        examine(str(root), "val")
    root = lines(tmp_path / "e", _2007_val=5)
    assert len(examine(str(root), "val")) == 5
    with pytest.raises(UserError, match="no split 'train'"):
        examine(str(root), "train")


def darknet(root: Path, images: str = "images", labels: str = "labels") -> Path:
    for number in range(5):
        image(root / images / f"{number}.jpg")
        label = root / labels / f"{number}.txt"
        label.parent.mkdir(parents=True, exist_ok=True)
        label.write_text(f"{number % 2} 0.5 0.5 0.2 0.2\n")
    (root / "classes.txt").write_text("cat\ndog\n")
    return root


@pytest.mark.parametrize(
    ("val", "written"),
    [
        *(("val", path) for path in ("images/{}", "./images/{}", "/old/d/images/{}", "{}", "d/images/{}")),
        *((name, "images/{}") for name in ("valid", "2007_val")),
    ],
)
def test_lists_beside_images_and_labels(tmp_path, val, written):
    root = darknet(tmp_path / "d")
    for stem, numbers in (("2007_train" if val == "2007_val" else "train", (4, 0, 2)), (val, (1, 3))):
        (root / f"{stem}.txt").write_text("".join(f"{written.format(f'{n}.jpg')}\n" for n in numbers))
    name, why = recognize(str(root))
    assert (name, "lists images that have label files" in why) == ("darknet", True)
    assert names(examine(str(root), "train")) == ["4.jpg", "0.jpg", "2.jpg"]
    assert names(examine(str(root), "val")) == ["1.jpg", "3.jpg"]
    assert examine(str(root), "val").labels.tolist() == [1, 1]


def test_lists_of_vocs_images_with_darknets_labels(tmp_path):
    root = darknet(tmp_path / "d", "VOC2007/JPEGImages", "VOC2007/labels")
    for stem, number in (("2007_train", 0), ("2007_val", 1)):
        (root / f"{stem}.txt").write_text(f"/home/me/darknet/d/VOC2007/JPEGImages/{number}.jpg\n")
    assert recognize(str(root))[0] == "darknet"
    assert names(examine(str(root), "val")) == ["1.jpg"]


def test_folders_of_splits_go_before_lists(tmp_path):
    root = darknet(tmp_path / "d", "images/train", "labels/train")
    (root / "train.txt").write_text("images/train/0.jpg\n")
    assert len(examine(str(root), "train")) == 5


def voc(root: Path) -> Path:
    for number, name in enumerate(("cat", "dog")):
        image(root / "JPEGImages" / f"{number}.jpg")
        xml = root / "Annotations" / f"{number}.xml"
        xml.parent.mkdir(parents=True, exist_ok=True)
        box = "<bndbox><xmin>2</xmin><ymin>3</ymin><xmax>11</xmax><ymax>12</ymax></bndbox>"
        xml.write_text(f"<annotation><object><name>{name}</name>{box}</object></annotation>")
        lists = root / "ImageSets" / "Main"
        lists.mkdir(parents=True, exist_ok=True)
        (lists / f"{('train', 'val')[number]}.txt").write_text(f"{number}\n")
    return root


def test_a_second_format_beside_the_first_is_said(tmp_path):
    root = tmp_path / "d"
    voc(root / "VOCdevkit" / "VOC2007")
    (root / "classes.txt").write_text("cat\ndog\n")
    (root / "2007_train.txt").write_text("VOCdevkit/VOC2007/JPEGImages/0.jpg 1,2,11,12,0\n")
    (root / "2007_val.txt").write_text("VOCdevkit/VOC2007/JPEGImages/1.jpg 1,2,11,12,1\n")
    found = examine(str(root), "train")
    assert found.format == "voc"
    assert "annotation lines with data.format=lines ('2007_train.txt' has lines" in found.about[1]
    assert "data.format=lines" in found.about[1]
    other = examine(str(root), "train", "lines")
    assert (other.format, other.boxes.tolist()) == ("lines", found.boxes.tolist())
    assert "data.format=voc" in other.about[1]


def coco(root: Path, *splits: str) -> Path:
    (root / "annotations").mkdir(parents=True)
    for split in splits:
        image(root / split / "0.jpg")
        (root / "annotations" / f"instances_{split}.json").write_text(
            '{"images": [{"id": 1, "file_name": "0.jpg", "width": 40, "height": 20}],'
            ' "annotations": [{"id": 1, "image_id": 1, "category_id": 7, "bbox": [1, 2, 10, 10]}],'
            ' "categories": [{"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}]}'
        )
    return root


@pytest.mark.parametrize("split", ["val2017", "valid"])
def test_what_has_no_training_images_can_be_evaluated(tmp_path, split):
    root = coco(tmp_path / "d", split)
    task = open_task(Recipe(data=Data(root=str(root)), model={"name": "yolov4-tiny"}), ("cat", "dog"))
    assert task.class_names == ("cat", "dog")
    assert len(task.evaluation_data()) == 1
    with pytest.raises(UserError, match="no split 'train'"):
        task.training_data()


def test_classes_without_training_images_can_be_evaluated(tmp_path):
    for name in ("cat", "dog"):
        image(tmp_path / "d" / "val" / name / "0.jpg")
    recipe = Recipe(task="classify", data=Data(root=str(tmp_path / "d")), model={"name": "resnet18"})
    task = open_task(recipe, ("cat", "dog"))
    assert task.class_names == ("cat", "dog")
    assert len(task.evaluation_data()) == 2
    with pytest.raises(UserError, match="no split 'train'"):
        task.training_data()


def test_a_missing_val_names_the_command_that_makes_one(tmp_path):
    root = lines(tmp_path / "my data", train=3)
    with pytest.raises(UserError) as caught:
        examine(str(root), "val")
    problem = str(caught.value)
    assert "no split 'val'; expected 'train'" in problem
    command = f"rankless data split '{root}' --val 0.2 --out '{root}-split'"
    assert problem.endswith(f", or divide the images with `{command}`")
