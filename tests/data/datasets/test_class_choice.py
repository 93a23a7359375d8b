"""``data.classes``: a subset and an order by name in every format, and names for what only has numbers."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rankless.curation.converting import convert
from rankless.data.datasets.open_split import examine, open_annotations
from rankless.data.index.annotations import CROWD
from rankless.errors import UserError
from rankless.recipe import load
from rankless.recipe.schema import Data, Recipe
from rankless.structures import IGNORED_LABEL
from rankless.tasks import open_task, resolve_recipe
from rankless.tasks.detect import Detect

NAMES = ("ant", "bee", "cat")
BOXES = {"train": [[0, 1], [2], [], [1, 1, 2]], "val": [[2, 0], [1]]}
"""Split to the classes of the boxes on each image."""


def image(file: Path, seed: int = 0) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)


def boxes(root: Path, names: tuple[str, ...] = NAMES) -> Path:
    """The boxes of ``BOXES`` as Darknet's labels, each at another position."""
    for split, images in BOXES.items():
        for number, classes in enumerate(images):
            image(root / "images" / split / f"{number}.png", number)
            label = root / "labels" / split / f"{number}.txt"
            label.parent.mkdir(parents=True, exist_ok=True)
            rows = (f"{c} 0.5 0.5 0.{at + 2} 0.5\n" for at, c in enumerate(classes))
            label.write_text("".join(rows))
    (root / "classes.txt").write_text("".join(f"{name}\n" for name in names))
    return root


def by_name(found) -> list[list[tuple[str, list[float]]]]:
    return [
        [(found.class_names[label], box) for box, label, _, _ in found.objects(index)]
        for index in range(len(found))
    ]


def problem(*args, **options) -> str:
    with pytest.raises(UserError) as caught:
        examine(*args, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("format", "chosen"),
    [
        *((format, ("cat", "ant")) for format in ("darknet", "voc", "coco", "csv", "lines", "webdataset")),
        *(("darknet", names) for names in (("bee",), ("cat", "bee", "ant"))),
    ],
)
def test_a_choice_of_classes_in_every_format_of_boxes(tmp_path, format, chosen):
    root = str(boxes(tmp_path / "darknet"))
    if format != "darknet":
        assert not convert(root, format, tmp_path / format).differences
        root = str(tmp_path / format)
    for split in BOXES:
        whole = examine(root, split)
        found = examine(root, split, classes=chosen)
        assert found.class_names == chosen
        assert found.paths() == whole.paths()  # an image without its boxes is one without objects
        kept = [[one for one in objects if one[0] in chosen] for objects in by_name(whole)]
        assert by_name(found) == kept
        assert whole.class_names == NAMES  # what was cached of all classes stays as it was
        lost = sum(map(len, by_name(whole))) - sum(map(len, kept))
        others = "1 other class" if len(chosen) == 2 else "2 other classes"
        about = [note for note in found.about if f"dropped {lost} box" in note and others in note]
        assert len(about) == (len(chosen) < 3)


@pytest.mark.parametrize("format", ["image-folder", "csv", "webdataset"])
def test_a_choice_of_classes_in_every_format_of_classes(tmp_path, format):
    for number, name in enumerate(("ant", "bee", "cat", "cat")):
        image(tmp_path / "d" / "train" / name / f"{number}.png", number)
    image(tmp_path / "d" / "val" / "bee" / "9.png", 9)
    root = str(tmp_path / "d")
    if format != "image-folder":
        assert not convert(root, format, tmp_path / format).differences
        root = str(tmp_path / format)
    found = examine(root, "train", classes=("cat", "ant"))
    assert found.class_names == ("cat", "ant")
    assert [found.class_names[label] for label in found.labels] == ["ant", "cat", "cat"]
    assert len(found) == 3
    assert "dropped 1 image of 1 other class: 'bee' (1)" in found.about[-1]
    assert "the split has no images of the selected classes ('cat', 'ant')" in problem(
        root, "val", classes=("cat", "ant")
    )
    of_val = examine(root, "val", classes=("cat", "bee"))  # val has no cat, which train has
    assert (of_val.class_names, of_val.labels.tolist()) == (("cat", "bee"), [1])


def test_names_that_the_data_does_not_have(tmp_path):
    text = problem(str(boxes(tmp_path / "d")), "train", classes=("ct", "dog"))
    assert "data.classes: the data has no class 'ct'; did you mean 'cat'?" in text
    assert "the data has no class 'dog'\n" in text
    assert "/d has 3 classes: 'ant', 'bee', 'cat'; correct the names" in text
    assert "data.classes contains 'ant' more than once" in problem(
        str(tmp_path / "d"), "train", classes=("ant", "bee", "ant")
    )


def lines(root: Path, *names_files: str) -> Path:
    image(root / "a.png")
    (root / "train.txt").write_text("a.png 1,2,11,12,1 3,3,9,9,0\n")
    for number, file in enumerate(names_files):
        (root / file).parent.mkdir(exist_ok=True)
        (root / file).write_text("".join(f"{number}-{name}\n" for name in NAMES[number:]))
    return root


@pytest.mark.parametrize("format", ["darknet", "coco"])
def test_classes_of_one_name_stop_every_command(tmp_path, format):
    """The data has 6 boxes: ant 1, bee 3, ant 2. A label 9 without a name stays one."""
    root = boxes(tmp_path / "a", ("ant", "bee", "cat"))
    if format == "coco":
        convert(str(root), "coco", tmp_path / "b")
        root = tmp_path / "b"
        for file in (root / "annotations").glob("*.json"):
            file.write_text(file.read_text().replace('"cat"', '"ant"'))
    else:
        (root / "classes.txt").write_text("ant\nbee\nant\n")
        (root / "labels/train/2.txt").write_text("9 .5 .5 .2 .2\n")
    for refused in (examine, open_annotations):
        with pytest.raises(UserError, match="several classes have the same name \\('ant'\\); expected 3"):
            refused(str(root), "train")
    with pytest.raises(UserError, match=r"join those of the same name with data\.classes='\[ant, bee\]'"):
        convert(str(root), "csv", tmp_path / "c")
    joined = examine(str(root), "train", classes=("ant", "bee"))
    assert [[name for name, _ in found] for found in by_name(joined)] == [
        ["ant", "bee"],
        ["ant"],
        [],
        ["bee", "bee", "ant"],
    ]
    assert joined.findings.counts.get("class out of range", 0) == (format == "darknet")
    assert "classes of the same name are joined: 'ant'" in joined.about
    named = examine(str(root), "train", classes=("fly", "bee", "ant"))
    assert [name for found in by_name(named) for name, _ in found] == [
        "fly",
        "bee",
        "ant",
        "bee",
        "bee",
        "ant",
    ]


@pytest.mark.parametrize("folder", ["", "model_data/"])
def test_two_files_of_names_that_differ_are_an_error_that_names_both(tmp_path, folder):
    root = lines(tmp_path / "d", f"{folder}coco_classes.txt", f"{folder}voc_classes.txt")
    text = problem(str(root), "train")
    assert "'coco_classes.txt' (3) and 'voc_classes.txt' (2)" in text
    assert f"data.classes={root}/{folder}coco_classes.txt" in text
    found = examine(str(root), "train", classes=f"{folder}voc_classes.txt")  # as seen from the data's folder
    assert found.class_names == ("1-bee", "1-cat")
    assert found.labels.tolist() == [1, 0]


def test_two_files_of_the_same_names_are_one(tmp_path):
    root = lines(tmp_path / "d", "a_classes.txt")
    (root / "b_classes.txt").write_text((root / "a_classes.txt").read_text())
    assert examine(str(root), "train").class_names == ("0-ant", "0-bee", "0-cat")


@pytest.mark.parametrize("format", ["lines", "darknet", "webdataset"])
def test_a_list_names_what_only_has_numbers(tmp_path, format):
    if format == "lines":
        root = lines(tmp_path / "d")
    else:
        root = boxes(tmp_path / "d", ("0", "1", "2"))
        if format == "webdataset":
            assert not convert(str(root), "webdataset", tmp_path / "w").differences
            root = tmp_path / "w"
        (root / "classes.txt").unlink()
    if format != "webdataset":  # there a number is its own name
        assert "data.classes" in problem(str(root), "train", format)
    found = examine(str(root), "train", format, classes=("x", "y", "z"))
    assert found.class_names == ("x", "y", "z")
    assert found.labels.tolist()[:2] == ([1, 0] if format == "lines" else [0, 1])
    if format == "webdataset":
        assert "the data has a class 2, but data.classes has only 2 names" in problem(
            str(root), "train", classes=("x", "y")
        )
        assert examine(str(root), "train", classes=("2",)).labels.tolist() == [0, 0]


def test_a_number_without_a_name_stops(tmp_path):
    root = lines(tmp_path / "d")
    with pytest.raises(UserError, match="class out of range"):
        open_annotations(str(root), "train", classes=("only",))


def test_a_recipe_is_resolved_to_the_names(tmp_path, monkeypatch):
    root = boxes(tmp_path / "d")
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").write_text("cat\n\nbee\n")
    recipe = Recipe(data=Data(root=str(root), classes="mine.txt"), model={"name": "yolov4-tiny"})
    resolved = resolve_recipe(recipe)
    assert resolved.data.classes == ("cat", "bee")
    task = open_task(resolved)
    assert task.class_names == ("cat", "bee")
    assert len(task.evaluation_data()) == 2
    with pytest.raises(UserError, match=r"data\.classes is 'cat,bee': no such file .*classes='\[cat, bee\]'"):
        resolve_recipe(Recipe(data=Data(root=str(root), classes="cat,bee")))


def test_names_that_look_like_something_else_survive_a_recipe(tmp_path):
    recipe = load.default(["data.root=x", "data.classes=[no, '007', 7, ~tilde, 'a: b']"])
    assert recipe.data.classes == ("no", "007", "7", "~tilde", "a: b")
    (tmp_path / "r.yaml").write_text(load.dump(recipe))
    assert load.load(tmp_path / "r.yaml", []) == recipe
    for wrong in ("[]", "[true]", "[1.5]", "''"):
        with pytest.raises(UserError, match=r"'data\.classes' is"):
            load.default([f"data.classes={wrong}"])


def test_the_digits_have_no_choice():
    with pytest.raises(UserError, match="not supported for the built-in digits"):
        open_task(Recipe(data=Data(classes=("1", "2"))))


@pytest.mark.parametrize("format", ["darknet", "voc"])
@pytest.mark.parametrize("chosen", ["auto", ("cat", "ant")])
def test_boxes_of_a_class_to_ignore_are_regions(tmp_path, format, chosen):
    root = str(boxes(tmp_path / "darknet"))
    if format != "darknet":
        assert not convert(root, format, tmp_path / format).differences
        root = str(tmp_path / format)
    for split in BOXES:
        whole = examine(root, split, classes=chosen if chosen == "auto" else (*chosen, "bee"))
        found = examine(root, split, classes=chosen, ignore=("bee",))
        assert found.class_names == (("ant", "cat") if chosen == "auto" else chosen)
        assert np.array_equal(found.boxes, whole.boxes) and found.paths() == whole.paths()
        bees = whole.labels == whole.class_names.index("bee")
        assert found.labels[bees].tolist() == [IGNORED_LABEL] * bees.sum()
        assert found.flags.tolist() == (CROWD * bees).tolist()
        kept = zip(found.labels[~bees], whole.labels[~bees], strict=True)
        assert all(found.class_names[new] == whole.class_names[old] for new, old in kept)
        boxes_of = "3 boxes" if split == "train" else "1 box"
        assert f"data.ignore_class: {boxes_of} of 'bee' to ignore" in found.about


def test_classes_to_ignore_that_do_not_fit_the_data(tmp_path):
    root = str(boxes(tmp_path / "d"))
    every = "data.ignore_class names all 3 classes of "
    assert every in problem(root, "train", ignore=("ant", "bee", "cat"))
    assert "data.ignore_class: the data has no class 'be'; did you mean 'bee'?" in problem(
        root, "train", ignore=("be",)
    )
    with pytest.raises(UserError, match=r"data\.ignore_class is not supported for the built-in digits"):
        Detect(Recipe(data=Data(ignore_class=("3",))))
