"""``rankless data``: what its commands take, print, write and exit with, on data in real formats."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rankless import cli
from rankless.data.datasets.classification import open_images
from rankless.data.datasets.open_split import examine
from rankless.data.formats.registry import NAMES, format_named
from rankless.errors import UserError
from rankless.recipe.load import load
from rankless.recipe.schema import Data
from rankless.tasks import _read_data
from support.thorough import THOROUGH

VERBS = ("check", "stats", "show", "anchors", "convert", "split", "pack")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty working directory, and nothing kept from other tests."""
    monkeypatch.setenv("RANKLESS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def image(file: Path, seed: int, size: tuple[int, int] = (64, 48)) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)


@pytest.fixture
def cells():
    """Darknet labels: eight training images with a red and every other a white one, two for validation."""
    for number in range(10):
        split = "train" if number < 8 else "val"
        image(Path(f"cells/images/{split}/{number}.png"), number)
        lines = ["0 0.5 0.5 0.25 0.25"] + ["1 0.25 0.25 0.125 0.5"] * (number % 2)
        label = Path(f"cells/labels/{split}/{number}.txt")
        label.parent.mkdir(parents=True, exist_ok=True)
        label.write_text("\n".join(lines) + "\n")
    Path("cells/data.yaml").write_text("train: images/train\nval: images/val\nnames: [red, white]\n")
    return "cells"


@pytest.fixture
def pets():
    for number in range(12):
        split, kind = "train" if number < 8 else "val", ("cat", "dog")[number % 2]
        image(Path(f"pets/{split}/{kind}/{number}.png"), number)
    return "pets"


def run(capsys, *words, code=0):
    assert cli.main(["data", *words]) == code, capsys.readouterr()
    return capsys.readouterr().out


def report(capsys, *words, code=0):
    return json.loads(run(capsys, *words, "--json", code=code))


# --- help and mistakes ------------------------------------------------------------------------------------


def test_help_names_every_command_with_an_example(capsys):
    page = run(capsys, "--help")
    for verb in VERBS:
        assert f"│ {verb} " in page
        own = run(capsys, verb, "--help")
        assert own.startswith(f"Usage: rankless data {verb} ROOT ")
        assert f"Example:\n  rankless data {verb}" in own.replace("Examples", "Example")
        assert len(own.splitlines()) < 40


MISTAKES = [
    ("chek", "'chek': no such command; did you mean 'check'?"),
    ("check", "ROOT is missing: expected a data folder, or a file such as data.yaml; see: rankless data"),
    ("check gone", "gone: no such file or folder"),
    ("check /gone", "/gone: no such file or folder"),
    ("check digits", "'digits': this data is generated"),
    ("check cells --format yolov8", "--format is 'yolov8': expected one of auto, "),
    ("check cells --split tset", "tset"),
    ("check cells --out new", "--out: has no effect without --fix"),
    ("check cells --fix --out cells", "--out cells: already exists"),
    ("stats cells --out stats.doc", "ends in one of .png, .jpg, "),
    ("show cells epochs=1", "'epochs=1'"),
    ("show cells --count 0", "--count is '0'"),
    ("show cells --class blue", "--class is 'blue': expected one of 'red', 'white'"),
    ("show cells --out sheet.doc", "ends in one of .html, .png, .jpg, .jpeg"),
    ("show cells --augmented data.augment.mosiac=1", "did you mean 'data.augment.mosaic'?"),
    ("show cells --augmented digits more", "'more': expected key=value"),
    ("show cells --seed -1", "--seed"),
    ("anchors cells --image-size wide", "--image-size is 'wide'"),
    ("anchors cells --image-size 4", "--image-size is '4'"),
    ("anchors cells --image-size 100", "--image-size is '100': a detector needs multiples of 32, such as 96"),
    ("anchors cells --count x", "--count is 'x'"),
    ("anchors pets", "the images have classes but no boxes"),
    ("convert cells --out new", "--to"),
    ("convert cells --to coco", "--out"),
    ("convert cells --to coc --out new", "--to is 'coc': expected one of web"),
    ("convert cells --to yollo --out new", "; did you mean 'yolo'?"),
    ("convert cells --to coco --out cells", "--out cells: already exists"),
    ("convert pets --to voc --out new", "this format requires boxes, but"),
    ("convert cells --to coco --out cells/a/b", "is inside the data set cells"),
    ("split cells", "--out"),
    ("split cells --out new --val 2", "--val is '2': expected a number from 0 to 1"),
    ("split cells --out new --val 20%", "--val is '20%': expected a number from 0 to 1"),
    ("split cells --out new --group [", "--group is '['"),
    ("split cells --out pets", "--out pets: already exists"),
    ("split cells --out new --group images", "into one group, 'images'"),
    ("split cells --out cells/new", "--out cells/new: this folder is inside the data set"),
    ("pack cells --out cells/../cells/shards", "is inside the data set cells"),
    ("pack cells --out new --shard-size big", "--shard-size is 'big'"),
    ("pack cells --out pets", "--out pets: already exists"),
]


@pytest.mark.slow
def test_a_mistake_is_one_sentence_and_writes_nothing(cells, pets, capsys):
    before = sorted(Path().rglob("*"))
    for words, sentence in MISTAKES:
        assert cli.main(["data", *words.split()]) == 2, words
        out, err = capsys.readouterr()
        assert out == "", words
        assert err.startswith("error: ") and err.count("\n") == 1, err
        assert sentence in err, (words, err)
        assert sorted(Path().rglob("*")) == before, words


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([], "the folder is empty"),
        (["b.jpg", "c.png"], "images (2) and no labels"),
        (["a.jpg", "b.xyz", "c.xyz"], "images (1) and other files (2) of no known layout, such as 'b.xyz'"),
        (
            ["a.md", "b.md", "c"],
            "no images, but other files (3: 2 .md, 1 without an extension); 'a.md' is empty (0 bytes)",
        ),
    ],
)
def test_what_is_no_data_set_is_reported_first(capsys, files, said):
    Path("new").mkdir()
    for name in files:
        Path("new", name).write_text("")
    assert cli.main(["data", "check", "new"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: new: no known data format: {said}; expected one of these formats: ")
    assert all(format_named(name).TITLE in line for name in NAMES)


def test_a_format_that_does_not_fit_is_told_apart(cells, capsys):
    for words, said in (
        ("check cells/images/val/8.png", "no known data format: it is an image; expected"),
        ("check cells --format voc", "cells: looks like "),
        ("stats cells --format coco", "; remove --format\n"),
    ):
        assert cli.main(["data", *words.split()]) == 2
        assert said in capsys.readouterr().err, words


# --- the verbs --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_check_and_fix(cells, capsys):
    assert run(capsys, "check", cells).endswith("\nno errors found\n")
    Path("cells/labels/train/3.txt").write_text(
        "0 0.5 0.5 0.25 0.25\n7 0.5 0.5 0.25 0.25\n1 0.9 0.5 0.5 0.5\n"
    )
    Path("cells/images/train/5.png").write_bytes(Path("cells/images/train/5.png").read_bytes()[:3000])
    Path("cells/images/val/8.png").write_bytes(Path("cells/images/train/2.png").read_bytes())
    said = run(capsys, "check", cells, code=1)
    assert "✗ class out of range: 1 box has a class number without a class name (training stops)" in said
    assert "cells/labels/train/3.txt:2: class 7 at" in said
    assert "✗ over the edge: 1 box extends beyond the edge of the image (training clips them)" in said
    assert "✗ unreadable image: 1 image cannot be read (training stops)" in said
    assert "between the splits\n  ✗ same in two splits: 1 image is in two splits (identical bytes)" in said
    assert "\nerrors: 4 findings (✗); correct the findings that stop training" in said
    quick = report(capsys, "check", cells, "--quick", code=1)
    assert list(quick["splits"]["train"]["findings"]) == ["class out of range", "over the edge"]
    fixed = report(capsys, "check", cells, "--fix", "--drop-invalid", code=1)["fixed"]
    assert fixed["out"] == str(Path("cells-fixed").absolute())
    assert len(fixed["changes"]) == 4
    again = report(capsys, "check", "cells-fixed")
    assert again["ok"] is True
    assert {name: split["images"] for name, split in again["splits"].items()} == {"train": 6, "val": 2}


def test_images_of_unknown_range_need_a_range(cells, capsys):
    for file in sorted(Path("cells/images").glob("*/*.png")):
        with Image.open(file) as opened:
            values = np.asarray(opened.convert("L"), np.int32) * 10
        file.unlink()
        Image.fromarray(values).save(file.with_suffix(".tif"))
    said = run(capsys, "check", cells, code=1)
    assert (
        "✗ unknown range: 8 images have values of unknown range (training stops without data.range)" in said
    )
    assert "errors: 10 findings (✗); set data.range in the recipe, and add --range" in said
    assert "no errors found" in run(capsys, "check", cells, "--range", "0,2550")
    for words in (["check", cells, "--fix"], ["show", cells]):
        assert cli.main(["data", *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "range" in line and "--range" in line and not Path("cells-fixed").exists()
    assert "unreadable" not in run(capsys, "show", cells, "--range", "auto")
    assert "no changes were needed" in run(capsys, "check", cells, "--range", "auto", "--fix")


def test_check_finds_the_classes_that_a_training_refuses(pets, capsys):
    image(Path("pets/val/eel/1.png"), 99)
    Path("pets/val/empty").mkdir()
    Path("pets/train/cat/notes.txt").write_text("not an image")
    said = run(capsys, "check", pets, code=1)
    further = f"'val' has classes that 'train' does not have: 'eel'; see '{pets}/val/eel'"
    assert f"✗ {further} (training stops)" in said
    assert "  · ignored: 1 folder without images: 'empty'" in said
    assert "notes.txt" in said
    assert said.endswith("errors: 1 finding (✗); give the splits the same classes\n")
    found = report(capsys, "check", pets, code=1)
    assert found["classes"] == [further]
    assert any("'empty'" in sentence for sentence in found["splits"]["val"]["notes"])
    assert report(capsys, "check", pets, "--split", "val")["ok"] is True
    with pytest.raises(UserError, match="the model has no class 'eel'"):  # so does a training
        names = open_images(Data(root="pets"), "train").class_names
        open_images(Data(root="pets"), "val", names)


def test_check_says_that_a_training_finds_no_split_to_be_scored_on(cells, capsys):
    described = Path("cells/data.yaml")
    described.write_text("".join(x for x in described.read_text().splitlines(True) if "val" not in x))
    said = run(capsys, "check", str(described), code=1)
    assert "no split 'val'" in said and "rankless data split" in said
    assert said.endswith("; add the missing splits or boxes, or select only the usable splits\n")
    (sentence,) = report(capsys, "check", str(described), code=1)["missing"]
    assert "no split 'val'" in sentence


def test_a_recipe_in_the_place_of_data_is_told_apart(cells, capsys):
    recipe = Path("my.yaml")

    def said(*words):
        assert cli.main(["data", *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: my.yaml: this is a recipe, not a data set; ")
        return line

    recipe.write_text("data:\n  root: cells\n  format: darknet\nepochs: 3\n")
    for words in (["check"], ["stats"], ["convert", "--to", "coco", "--out", "x"]):
        command = said(words[0], "my.yaml", *words[1:]).partition("to check it: rankless ")[2]
        assert command == "data check cells --format darknet"
    assert cli.main(command.split()) in (0, 1)  # a data set, whatever is wrong with it
    capsys.readouterr()
    recipe.write_text("epochs: 3\n")
    assert said("show", "my.yaml").endswith(
        "is the built-in data.root=digits; to see it: rankless data show digits"
    )
    recipe.write_text("epochs: x\ndata: {root: cells}\n")
    assert "my.yaml:1: 'epochs' is 'x'" in said("check", "my.yaml")
    recipe.write_text("data: {root: torchvision/CIFAR10}\n")
    assert "torchvision/CIFAR10: no files found in data" in said("check", "my.yaml")


@pytest.mark.slow
def test_stats(cells, capsys):
    said = run(capsys, "stats", cells, "--out", "stats.png")
    rows = {" ".join(line.split()[:-2]): line.split()[-2:] for line in said.splitlines() if line}
    assert rows["images"] == ["8", "2"]
    assert rows["width"] == ["64", "64"]
    assert "red        8  66.7%    2  66.7%" in said
    assert said.endswith("\nwritten: stats.png\n")
    assert run(capsys, "stats", cells, "--out", "stats.png").endswith("stats.png (replaced)\n")
    numbers = report(capsys, "stats", cells)["splits"]["train"]
    assert numbers["classes"] == {"red": 8, "white": 4}
    assert numbers["boxes"] == 12


def test_stats_point_at_check(cells, capsys):
    assert "rankless data check" not in run(capsys, "stats", cells)
    Path("cells/labels/train/3.txt").write_text("7 0.5 0.5 0.25 0.25\n1 0.9 0.5 0.5 0.5\n")
    assert run(capsys, "stats", cells).endswith("run `rankless data check cells`\n")
    assert "\n2 findings in annotations and image headers" in run(capsys, "stats", cells)


def test_stats_of_class_folders(pets, capsys):
    said = run(capsys, "stats", pets)
    assert "boxes" not in said
    assert "cat        4  50.0%    2  50.0%" in said


@pytest.mark.slow
def test_show(cells, capsys):
    assert run(capsys, "show", cells) == "cells · train · 8 of 8: contact-sheet.png\n"
    said = run(capsys, "show", cells, "--class", "white", "--count", "3", "--out", "a/b.html")
    assert said == "cells · train · 3 of 4 · with 'white': a/b.html\n"
    assert Path("a/b.html").read_text().count("<figure ") == 3
    assert run(capsys, "show", cells).endswith("contact-sheet.png (replaced)\n")


@pytest.mark.slow
def test_show_as_trained_on(cells, pets, capsys):
    words = ["--augmented", "model.image_size=64", "--count", "2", "--out"]
    assert "augmented" in run(capsys, "show", cells, "data.augment.mosaic=1", *words, "a.png")
    assert "augmented" in run(capsys, "show", pets, *words, "b.png")
    assert "augmented" in run(capsys, "show", "digits", *words, "c.png")
    for name in "abc":
        with Image.open(f"{name}.png") as sheet:
            assert sheet.width == 2 * 300 + 3 * 14


def test_anchors(cells, capsys):
    said = run(capsys, "anchors", cells, "--model", "yolov4-tiny", "--count", "2", "--image-size", "64")
    assert said.splitlines()[0] == "2 anchors for 12 boxes on an input of 64 × 64 pixels"
    assert "model.anchors=[[16,12],[8,24]]" in said or "model.anchors=[[8,24],[16,12]]" in said
    assert "yolov4-tiny has 6 anchors" in said
    found = report(capsys, "anchors", cells, "--count", "2", "--image-size", "[96,128]")
    assert (found["image_size"], found["average_iou"]) == ([96, 128], 1.0)


@pytest.mark.slow
def test_convert(cells, pets, capsys):
    for format in ("voc", "coco", "lines", "csv", "webdataset", "darknet"):
        said = run(capsys, "convert", cells, "--to", format, "--out", format)
        assert "read back and compared: image sizes, classes and boxes are bit-identical" in said
        assert run(capsys, "check", format).endswith("\nno errors found\n")
        back = f"{format}-back"
        assert report(capsys, "convert", format, "--to", "yolo", "--out", back)["equal"] is True
    for format in ("image-folder", "webdataset", "csv"):
        words = ["convert", pets, "--to", format, "--out", f"pets-{format}", "--link"]
        assert report(capsys, *words)["equal"] is True


def test_split(cells, capsys):
    words = ["--val", "0.3", "--stratify", "--out", "new"]
    said = run(capsys, "split", cells, *words)
    rows = [line.split() for line in said.splitlines()]
    assert ["images", "7", "70.0%", "3", "30.0%"] in rows
    assert ["wanted", "70.0%", "30.0%"] in rows
    assert {split["images"] for split in report(capsys, "check", "new")["splits"].values()} == {7, 3}


def test_pack(cells, capsys):
    assert report(capsys, "pack", cells, "--out", "shards", "--shard-size", "1")["equal"] is True
    assert {file.name for file in Path("shards").glob("*.tar")} == {"train-000000.tar", "val-000000.tar"}
    assert report(capsys, "check", "shards")["ok"] is True


# --- nobody's files are replaced --------------------------------------------------------------------------


def snapshot(folder):
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@pytest.mark.parametrize("verb", ["show", "stats"])
@pytest.mark.parametrize("force", [False, True])
def test_a_image_of_the_data_is_never_replaced(cells, capsys, verb, force):
    Path("linked.png").symlink_to(f"{cells}/images/train/0.png")
    before = snapshot(cells)
    for out in (f"{cells}/images/train/0.png", "linked.png"):
        words = [verb, cells, "--out", out, *(["--force"] if force else [])]
        assert cli.main(["data", *words]) == 2
        said = capsys.readouterr().err
        expected = "is an input of this command" if force else "--force to replace existing files"
        assert said.startswith((f"error: {out}: is ", f"error: {out}: already exists"))
        assert expected in said
    assert snapshot(cells) == before and Path("linked.png").is_symlink()
    assert sorted(path.name for path in Path().iterdir()) == ["cells", "linked.png"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "root"),
    [("show", "cells"), ("stats", "cells/data.yaml")]
    + [("show", "cells/data.yaml"), ("stats", "cells")] * THOROUGH,
)
def test_no_file_of_another_split_is_replaced(cells, capsys, verb, root):
    """Neither an image nor an annotation, wherever it lies; in the folder nothing at all."""
    Path("cells/images/val").rename("elsewhere")
    Path("cells/images/val").symlink_to(Path("elsewhere").absolute())
    Path("cells/masks").mkdir()
    image(Path("cells/masks/8.png"), 8)
    Path("label.png").symlink_to("cells/labels/val/8.txt")
    before = snapshot(".")
    outs = ["elsewhere/8.png", "cells/images/val/9.png", "label.png"]
    for out in [*outs, "cells/masks/8.png"] if root == "cells" else outs:
        assert cli.main(["data", verb, root, "--split", "train", "--out", out, "--force"]) == 2
        assert f"error: {out}: is an input of this command" in capsys.readouterr().err
    assert snapshot(".") == before
    assert run(capsys, verb, root, "--split", "train", "--out", "cells/own.png").endswith("own.png\n")


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["show", "stats"])
def test_only_its_own_sheet_is_replaced(cells, capsys, verb):
    Path("own.png").write_text("precious")
    assert cli.main(["data", verb, cells, "--out", "own.png"]) == 2
    assert f"own.png: already exists and was not written by rankless data {verb}" in capsys.readouterr().err
    assert Path("own.png").read_text() == "precious"
    assert run(capsys, verb, cells, "--out", "own.png", "--force").endswith("own.png (replaced)\n")
    assert run(capsys, verb, cells, "--out", "own.png").endswith("own.png (replaced)\n")
    with Path("own.png").open("ab") as file:
        file.write(b"my remark")
    assert cli.main(["data", verb, cells, "--out", "own.png"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("words", ["convert cells --to coco", "split cells --val 0.3", "check cells --fix"])
def test_a_new_data_set_has_images_of_its_own_unless_links_are_asked_for(cells, capsys, words, linked):
    words = [*words.split(), "--out", "new", *["--link"] * linked]
    run(capsys, *words)
    old = {path.stat().st_ino: path.read_bytes() for path in Path(cells).rglob("*.png")}
    new = {path.stat().st_ino: path.read_bytes() for path in Path("new").rglob("*.png")}
    assert sorted(old.values()) == sorted(new.values())
    assert (old == new) is linked and (not linked) is old.keys().isdisjoint(new)
    assert cli.main(["data", *words]) == 2
    assert "--out new: already exists, and existing files are not replaced" in capsys.readouterr().err


FINE = (("train", "val"), ("train", "test"), ("train", "val", "test"), ("training", "testing"))
WRONG = (("train",), ("val", "test"), ("test",), ("train", "holdout"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "splits", "fine"),
    [
        (layout, splits, splits in FINE)
        for layout in ("data.yaml", "folders", "coco", "voc", "csv", "image-folder")
        for splits in ((*FINE, *WRONG) if layout in ("data.yaml", "image-folder") else (FINE[1], WRONG[0]))
    ],
)
def test_a_training_takes_what_a_check_calls_fine(tmp_path, capsys, monkeypatch, splits, fine, layout):
    """One judgment for both; a split for tests is for validation where nothing else is."""
    monkeypatch.chdir(tmp_path)
    for number in range(8 * len(splits)):
        split, kind = splits[number % len(splits)], "ab"[number // len(splits) % 2]
        folder = f"{split}/{kind}" if layout == "image-folder" else f"images/{split}"
        image = Path("mine", folder, f"{number}.png")
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (number, 2 * number, 90)).save(image)
        if layout != "image-folder":
            label = Path(f"mine/labels/{split}/{number}.txt")
            label.parent.mkdir(parents=True, exist_ok=True)
            label.write_text("0 .5 .5 .4 .4\n")
    if layout == "folders":
        Path("mine/classes.txt").write_text("a\n")
    elif layout != "image-folder":
        Path("mine/data.yaml").write_text("".join(f"{x}: images/{x}\n" for x in splits) + "names: [a]\n")
    if layout in ("coco", "voc", "csv"):
        run(capsys, "convert", "mine", "--to", layout, "--out", "converted")
        Path("mine").rename("source")
        Path("converted").rename("mine")
    found = report(capsys, "check", "mine", code=0 if fine else 1)
    assert found["ok"] is fine and bool(found["missing"]) is not fine
    recipe = load("resnet18" if layout == "image-folder" else "yolov4-tiny", ["data.root=mine"])
    if not fine:
        with pytest.raises(UserError, match=r"no split '(train|val)'"):
            _read_data(recipe)
        return
    _read_data(recipe)
    test = next((x for x in splits if x.startswith("test")), "")
    said = " ".join(examine("mine", "val").about)
    assert (f"so '{test}' is used instead" in said) is ("val" not in splits)


def test_formats_that_can_only_be_read_are_not_offered_for_writing(capsys):
    writable = {name for name in NAMES if hasattr(format_named(name), "write")}
    assert cli.main(["data", "convert", "x", "--to", "tfrecord", "--out", "new"]) == 2
    offered = capsys.readouterr().err.partition("expected one of ")[2].strip().split(", ")
    assert set(offered) == writable != set(NAMES)
    assert cli.main(["data", "convert", "--help"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    listed = page.partition("The format to write: ")[2].partition(".")[0]
    assert {name.split()[0] for name in listed.split(", ")} == writable
