"""What a prediction leaves on the disk, read back by others: pycocotools, ElementTree, csv, Pillow."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from matplotlib import colormaps
from PIL import Image
from torch import nn

from rankless.data.datasets.classification_input import place, placement
from rankless.data.images.image_file import Decoded
from rankless.errors import UserError
from rankless.inference import heatmaps, predict_classify
from rankless.inference.finder import PredictOptions
from rankless.inference.predict import predict
from rankless.inference.predict_detect import BoxFinder
from rankless.inference.saving import KINDS
from rankless.models.weights_files import weights
from rankless.recipe.schema import Model, Recipe

BOXES = {"red": (40, 60, 140, 220), "green": (200, 20, 380, 120), "blue": (220, 160, 300, 280)}


@pytest.fixture
def saved(colors, painted_file, tmp_path):
    """``saved("yolo", …)``: the folder of a prediction on three images."""
    painted_file("a.jpg", "red", "blue", quality=95)
    painted_file("b.png")
    painted_file("sub/a.png", "green")
    sources = [str(tmp_path / "images")]

    def save(*kinds, out="out", **options):
        return predict(colors, sources, out=tmp_path / out, save=kinds, device="cpu", **options).out

    return save


def files(out: Path) -> set[str]:
    return {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file() and path.name[0] != "."}


def test_only_what_was_asked_for_is_written(saved):
    assert files(saved("json", out="1")) == {"predictions.json"}
    assert files(saved("annotated", out="2")) == {"a.jpg", "b.png", "a-2.png"}
    several = saved("jsonl", "csv", "counts", out="3")
    assert files(several) == {"predictions.jsonl", "predictions.csv", "counts.csv"}
    for wrong, said in ((["jsn"], "--save contains 'jsn'; .*did you mean 'json'"), ([], "--save is empty")):
        with pytest.raises(UserError, match=said):
            saved(*wrong, out="4")


def test_coco_results_are_read_by_pycocotools(saved, tmp_path, capsys):
    coco = pytest.importorskip("pycocotools.coco")
    out = saved("coco", "json")
    known = coco.COCO(str(out / "coco_images.json"))
    found = known.loadRes(str(out / "coco_results.json"))
    assert [one["name"] for one in known.loadCats(known.getCatIds())] == ["red", "green", "blue"]
    images = {one["file_name"]: one for one in known.loadImgs(known.getImgIds())}
    assert set(images) == {"a.jpg", "b.png", "a.png"} and images["a.jpg"]["width"] == 400
    by_name = {
        known.loadCats(one["category_id"])[0]["name"]: one for one in found.loadAnns(found.getAnnIds())
    }
    assert len(found.getAnnIds()) == 3
    for name, (x1, y1, x2, y2) in BOXES.items():
        np.testing.assert_allclose(by_name[name]["bbox"], (x1, y1, x2 - x1, y2 - y1), atol=3)
    assert by_name["green"]["image_id"] == images["a.png"]["id"] and by_name["green"]["score"] == 0.8


def test_coco_names_that_are_numbers_are_the_ids(colors, painted_file, tmp_path):
    sources = [str(painted_file(name, "red")) for name in ("000000000139.jpg", "000000000785.jpg")]
    out = predict(colors, sources, out=tmp_path / "out", save=["coco"], device="cpu").out
    assert [one["image_id"] for one in json.loads((out / "coco_results.json").read_text())] == [139, 785]


def test_yolo_text(saved):
    out = saved("yolo")
    assert files(out) == {"yolo/a.txt", "yolo/b.txt", "yolo/a-2.txt", "yolo/classes.txt"}
    assert (out / "yolo/classes.txt").read_text() == "red\ngreen\nblue\n"
    assert (out / "yolo/b.txt").read_text() == ""
    rows = np.loadtxt(out / "yolo/a.txt")
    assert rows[:, 0].tolist() == [0, 2]
    center, size = rows[:, 1:3] * (400, 300), rows[:, 3:] * (400, 300)
    corners = np.concatenate([center - size / 2, center + size / 2], 1)
    np.testing.assert_allclose(corners, [BOXES["red"], BOXES["blue"]], atol=3)


def test_voc_xml_counts_pixels_from_one(saved):
    out = saved("voc")
    root = ElementTree.parse(out / "voc/a.xml").getroot()
    assert root.tag == "annotation" and root.findtext("filename") == "a.jpg"
    assert [root.findtext(f"size/{side}") for side in ("width", "height", "depth")] == ["400", "300", "3"]
    assert [one.findtext("name") for one in root.iter("object")] == ["red", "blue"]
    sides = [float(root.findtext(f"object/bndbox/{side}")) for side in ("xmin", "ymin", "xmax", "ymax")]
    x1, y1, x2, y2 = BOXES["red"]
    np.testing.assert_allclose(sides, (x1 + 1, y1 + 1, x2, y2), atol=3)
    assert not list(ElementTree.parse(out / "voc/b.xml").iter("object"))


def test_csv_counts_and_lines(saved):
    out = saved("csv", "counts", "jsonl", "json")
    with (out / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["red", "blue", "green"]
    box = [float(rows[2][side]) for side in ("x1", "y1", "x2", "y2")]
    np.testing.assert_allclose(box, BOXES["green"], atol=3)
    with (out / "counts.csv").open(newline="") as file:
        counts = [[row[key] for key in ("total", "red", "green", "blue")] for row in csv.DictReader(file)]
    assert counts == [list("2101"), list("0000"), list("1010")]
    lines = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert lines == json.loads((out / "predictions.json").read_text()) and len(lines) == 3


def test_crops_are_the_pixels_in_the_boxes(saved):
    out = saved("crops")
    assert files(out) == {"crops/red/a-1.jpg", "crops/blue/a-2.jpg", "crops/green/a-2-1.png"}
    with Image.open(out / "crops/green/a-2-1.png") as cut:
        assert abs(cut.width - 180) < 4 and abs(cut.height - 100) < 4
        assert (np.asarray(cut)[5:-5, 5:-5] == (0, 250, 0)).all()


def test_where_nothing_was_found_the_missing_crops_are_said(colors, painted_file, tmp_path):
    plain = str(painted_file("b.png"))
    report = predict(colors, [plain], out=tmp_path / "out", save=["crops"], device="cpu")
    assert report.notes == ["no objects were found, so there are no crops"]
    found = str(painted_file("c.png", "red"))
    assert predict(colors, [found], out=tmp_path / "2", save=["crops"], device="cpu").notes == []


def test_heat_lies_on_the_object(untrained):
    path = untrained(Recipe(model=Model(image_size=(96, 128), width=0.125)), ("a", "b"))
    finder = BoxFinder(weights.load(path), PredictOptions(0.0), torch.device("cpu"), "w")
    image = torch.randint(0, 255, (3, 150, 300), dtype=torch.uint8)
    item = finder.item(Decoded(image, 1, (150, 300)))
    (plain,) = finder.answers([item], 1)
    finder.heat = True
    (answer,) = finder.answers([item], 1)
    assert torch.equal(plain.found.boxes, answer.found.boxes), "the map changes no number"
    assert answer.heat.shape == (12, 16)
    assert answer.heat.max() == pytest.approx(float(answer.found.scores[0]))
    # One place of the map, and where it must be on the image: 128 × 64 of the input show 300 × 150.
    alone = torch.zeros(12, 16)
    alone[6, 10] = 1.0
    level = heatmaps.in_image(alone, answer.letterbox, (96, 128))
    assert level.shape == (150, 300)
    rows, columns = np.nonzero(level > 128)
    scale = 300 / 128
    assert rows.mean() == pytest.approx((6.5 * 8 - 16) * scale, abs=1.5)
    assert columns.mean() == pytest.approx(10.5 * 8 * scale, abs=1.5)
    drawn = heatmaps.overlaid(image.permute(1, 2, 0).numpy(), level)
    assert drawn.size == (300, 150)
    # On a black image, the colors of the map alone: within 15 % of Matplotlib's inferno.
    levels = np.arange(256, dtype=np.uint8)[None]
    opacity = 0.25 + 0.6 * np.sqrt(levels / 255)[..., None]
    shown = np.asarray(heatmaps.overlaid(np.zeros((1, 256, 3), np.uint8), levels)) / opacity
    assert np.abs(shown - 255 * colormaps["inferno"](levels)[..., :3]).max() < 0.15 * 255


@pytest.mark.slow
def test_a_classifier_has_no_boxes_to_save(untrained, tmp_path, painted_file):
    path = untrained(Recipe(task="classify", model=Model(name="resnet18", image_size=32)), ("a", "b"))
    image = str(painted_file("x.png", "red"))
    with pytest.raises(UserError) as error:
        predict(path, [image], out=tmp_path / "out", save=KINDS, device="cpu")
    assert not (tmp_path / "out").exists()
    assert error.value.problems == (
        "--save contains coco, yolo, voc, crops, but a classifier does not predict boxes; expected one of "
        "annotated, json, jsonl, label-studio, cvat, csv, counts, heatmaps",
    )
    with pytest.raises(UserError, match="--classes a: is only for detectors"):
        predict(path, [image], out=tmp_path / "out", classes=["a"], device="cpu")
    out = predict(path, [image], out=tmp_path / "out", save=["csv", "counts", "heatmaps"], device="cpu").out
    with Image.open(out / "heatmaps/x.png") as drawn, Image.open(image) as original:
        assert drawn.size == original.size
    with (out / "predictions.csv").open(newline="") as file:
        assert {row["name"] for row in csv.DictReader(file)} == {"a", "b"}
    with (out / "counts.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["total"] == "1" and {row["a"], row["b"]} == {"0", "1"}


@pytest.mark.parametrize("crop", [1.0, 0.5])
def test_the_map_of_a_class_lies_where_it_is(crop, tmp_path):
    """A network whose class is the amount of red, of an image with one red square."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.pooled = nn.AvgPool2d(8)
            self.linear = nn.Linear(3, 2)
            nn.init.zeros_(self.linear.bias)
            with torch.no_grad():
                self.linear.weight.copy_(torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]))

        def forward(self, images):
            return self.linear(self.pooled(images).mean((2, 3)))

    net = Net().eval()  # a model is not made in the mode of inference
    image = torch.zeros(3, 200, 300, dtype=torch.uint8)
    image[0, 60:90, 200:230] = 255
    placed = place(image, (64, 64), cropped=crop < 1)[None].float() / 255
    with torch.inference_mode():  # as predictions are made
        maps = predict_classify.class_maps(net, placed.clone(), "net")
    # With this network the class activation map is the red of each cell, but for a factor.
    red = nn.functional.avg_pool2d(placed[:, 0], 8)
    assert maps == pytest.approx(red / red.max(), abs=1e-6)
    where = placement((200, 300), (64, 64), cropped=crop < 1)
    level = heatmaps.in_image(maps[0], where, (64, 64)).astype(float)
    assert level.shape == (200, 300)
    rows, columns = np.indices(level.shape)
    assert (rows * level).sum() / level.sum() == pytest.approx(75, abs=6)
    assert (columns * level).sum() / level.sum() == pytest.approx(215, abs=6)

    class Patches(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, 4, 8, stride=8)
            self.norm, self.linear = nn.LayerNorm(4), nn.Linear(4, 2)

        def forward(self, images):
            return self.linear(self.norm(self.patches(images).flatten(2).transpose(1, 2)).mean(1))

    with pytest.raises(UserError, match="the network in net has no feature map"):
        predict_classify.class_maps(Patches().eval(), placed, "net")


def test_an_image_has_one_name_in_all_kinds_of_output(colors, painted_file, tmp_path):
    """Images of the same name: their colors tell them apart in every file, and predictions.json has names."""
    images = {"A/1.png": "red", "a/1.JPG": "blue", "a/1.jpg": "green", "b/1-2.png": "red", "b/1.png": "green"}
    for name, color in images.items():
        painted_file(name, color)
    kinds = ["annotated", "json", "jsonl", "yolo", "voc", "crops", "coco"]
    out = predict(colors, [str(tmp_path / "images")], out=tmp_path / "out", save=kinds, device="cpu").out
    rows = json.loads((out / "predictions.json").read_text())
    assert [row["output"] for row in rows] == ["1", "1-2", "1-3", "1-2-2", "1-4"]
    assert [Path(row["source"]).relative_to(tmp_path / "images").as_posix() for row in rows] == list(images)
    for row, color in zip(rows, images.values(), strict=True):
        assert row["annotated"] == row["output"] + (Path(row["source"]).suffix)
        label = ("red", "green", "blue").index(color)
        (box,) = (out / f"yolo/{row['output']}.txt").read_text().splitlines()
        assert box.split()[0] == str(label) == str(row["detections"][0]["label"])
        assert f"<name>{color}</name>" in (out / f"voc/{row['output']}.xml").read_text()
        assert [path.parent.name for path in out.glob(f"crops/*/{row['output']}-1.*")] == [color]
    listed = json.loads((out / "coco_images.json").read_text())["images"]
    assert [image["file_name"] for image in listed] == list(images)  # one of two "1.png" is of no use
    assert "3 images have the same name" in json.dumps(
        predict(colors, [str(tmp_path / "images")], out=tmp_path / "again", device="cpu").notes
    )


def test_files_of_an_earlier_prediction_go_from_every_folder(saved, tmp_path):
    out = saved("crops", "yolo", "voc", "annotated", "json")
    (out / "crops/red/mine.png").write_bytes(b"mine")
    source = [str(tmp_path / "images/b.png")]
    report = predict(tmp_path / "colors.safetensors", source, out=out, save="json", device="cpu", force=True)
    assert files(out) == {"predictions.json", "crops/red/mine.png"}
    assert len(report.removed) == 3 + 4 + 3 + 3
    assert predict(tmp_path / "colors.safetensors", source, out=out, save="json", force=True).removed == []
    assert "crops/blue/a-2.jpg" in report.as_json()["removed"]


def test_a_file_of_somebody_elses_is_not_replaced_by_a_crop(saved, tmp_path):
    mine = tmp_path / "out/crops/red/a-1.jpg"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"mine")
    with pytest.raises(UserError, match="contains other files"):
        saved("crops")
    saved("crops", force=True)  # as --force says
    assert mine.read_bytes() != b"mine"


def test_the_report_holds_no_images(saved, tmp_path):
    """What it lists is read from the disk when it is asked for, and survives another prediction."""
    sources = [str(tmp_path / "images")]
    options = {"out": tmp_path / "more", "device": "cpu"}
    saved("json")
    report = predict(tmp_path / "colors.safetensors", sources, **options)
    predict(tmp_path / "colors.safetensors", sources, **options, classes=["blue"], force=True)
    assert [len(image.detections) for image in report.images] == [2, 0, 1]
    assert report.images[-1].detections[0]["name"] == "green"
    assert [Path(image.source).name for image in report.images[:2]] == ["a.jpg", "b.png"]
    assert report.computed == 3 and report.per_second > 0
