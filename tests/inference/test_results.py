"""Prediction in a Python program: images of every kind in, typed results out."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

import rankless
from rankless.errors import UserError
from rankless.inference import results
from rankless.inference.predictor import Predictor
from rankless.recipe.schema import Model, Recipe


def test_every_kind_of_image_has_the_same_result(colors, paint, painted_file):
    model = rankless.load(colors, device="cpu")
    pixels = paint("red", "blue")
    file = painted_file("a.png", "red", "blue")
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    images = [file, str(file), Image.fromarray(pixels), pixels, tensor, tensor.float() / 255]
    found = model.predict(images)
    assert len(found) == len(images) and isinstance(found, list)
    for one in found:
        assert one.names == ["red", "blue"] and one.classes.tolist() == [0, 2]
        np.testing.assert_allclose(one.scores, [0.9, 0.7], atol=1e-6)
        np.testing.assert_allclose(one.xyxy, [(40, 60, 140, 220), (220, 160, 300, 280)], atol=1.6)
        assert np.array_equal(one.xyxy, found[0].xyxy)
        assert np.array_equal(one.image, pixels)
        types = (one.xyxy.dtype, one.scores.dtype, one.classes.dtype)
        assert types == (np.float32, np.float32, np.int64)
    assert [one.source for one in found] == [str(file)] * 2 + [""] * 4
    # One image alone, and a batch in one array.
    assert [one.names for one in model.predict(pixels)] == [["red", "blue"]]
    assert [len(one) for one in model.predict(np.stack([pixels, paint()]))] == [2, 0]
    assert [len(one) for one in model.predict(torch.stack([tensor, tensor]))] == [2, 2]
    (deep,) = model.predict(Image.fromarray(np.full((50, 60), 0x7FF, np.uint16)))
    assert deep.image.max() == deep.image.min() == 7
    gray = model.predict(np.full((50, 60), 7, np.uint8))[0]
    assert gray.image.shape == (50, 60, 3) and not len(gray) and gray.xyxy.shape == (0, 4)


def test_a_photo_is_upright_and_its_alpha_is_dropped(colors, paint):
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = Image.fromarray(paint("red"))
    turned.getexif().update(exif)
    (one,) = rankless.load(colors, device="cpu").predict(turned)
    assert one.image.shape == (400, 300, 3)
    np.testing.assert_allclose(one.xyxy, [(80, 40, 240, 140)], atol=2.2)
    rgba = Image.fromarray(paint("red")).convert("RGBA")
    assert rankless.load(colors, device="cpu").predict(rgba)[0].names == ["red"]


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (np.zeros((4, 4, 3)), r"image 0: is an array of float64 with shape \(4, 4, 3\); expected a path"),
        (np.zeros((3, 4, 4), np.uint8), r"uint8 with shape \(3, 4, 4\)"),
        (np.zeros((0, 4, 3), np.uint8), r"has no pixels"),
        (torch.zeros(4, 4), r"a tensor of shape \(4, 4\)"),
        (torch.full((3, 4, 4), 255.0), r"values outside 0\.\.1"),
        (torch.zeros((3, 4, 4), dtype=torch.int64), r"a tensor of torch.int64"),
        (7, r"image 0: is int; expected a path"),
        ("gone.png", r"gone\.png: the image cannot be read"),
    ],
)
def test_what_is_no_image_is_said(colors, image, said):
    with pytest.raises(UserError, match=said):
        rankless.load(colors, device="cpu").predict([image])


def test_all_unreadable_files_are_named(colors, painted_file, tmp_path):
    (tmp_path / "b.png").write_text("nothing")
    with pytest.raises(UserError) as error:
        rankless.load(colors).predict([tmp_path / "b.png", painted_file("a.png"), tmp_path / "c.png"])
    assert [Path(problem.partition(":")[0]).name for problem in error.value.problems] == ["b.png", "c.png"]


def test_a_stream_takes_images_as_it_goes(colors, paint):
    taken = []

    def images():
        for number in range(1000):
            taken.append(number)
            yield paint("red", shift=number % 7)

    stream = rankless.load(colors, device="cpu", batch=4).stream(images())
    boxes = [next(stream).xyxy[0, 0] for _ in range(9)]
    assert len(taken) < 40
    np.testing.assert_allclose(boxes, [40 + number % 7 for number in range(9)], atol=1.6)
    stream.close()


def test_batches_and_devices_change_nothing(colors, paint):
    """Several devices keep the order; here the CPU stands for each."""
    images = [paint("red", "green", shift=number) for number in range(5)]
    alone = rankless.load(colors, device="cpu").predict(images)
    for options in ({"batch": 2}, {"batch": 3, "device": "cpu,cpu"}, {"batch": 8}):
        found = rankless.load(colors, **{"device": "cpu", **options}).predict(images)
        for one, other in zip(found, alone, strict=True):
            assert np.array_equal(one.xyxy, other.xyxy) and np.array_equal(one.scores, other.scores)


def test_only_the_chosen_classes(colors, paint):
    image = paint("red", "green", "blue")
    for chosen in (["blue", "green"], [2, 1], ["2", "green"]):
        assert rankless.load(colors, classes=chosen).predict(image)[0].names == ["green", "blue"]
    # Those that were not chosen take no place of the others.
    few = rankless.load(colors, ["evaluate.detections=1"], classes=["blue"])
    assert few.predict(image)[0].names == ["blue"]
    assert rankless.load(colors, ["evaluate.detections=1"]).predict(image)[0].names == ["red"]
    with pytest.raises(UserError) as error:
        rankless.load(colors, classes=["gren", 3])
    assert "--classes contains 'gren'; expected names of the model's classes" in error.value.problems[0]
    assert "did you mean 'green'" in error.value.problems[0] and "'3'" in error.value.problems[1]


def test_options_are_checked(colors):
    for options, said in (
        *(({"confidence": wrong}, "confidence is .*; expected a number") for wrong in (-0.1, 2, math.nan)),
        ({"batch": 0}, "batch is 0; expected a whole number"),
        *(({"device": name}, f"device '{name}' .{{,70}}; expected cpu") for name in ("gpu", "mps", "meta")),
        ({"device": "cpu,cuda"}, "different kinds of devices"),
    ):
        with pytest.raises(UserError, match=said):
            rankless.load(colors, **options)


def test_results_as_plain_data_drawing_and_in_a_notebook(colors, painted_file):
    file = painted_file("<b>&.png", "red")
    results = rankless.load(colors).predict([file, file])
    one = results[0]
    plain = json.loads(json.dumps(one.to_dict()))
    assert (plain["source"], plain["width"], plain["height"]) == (str(file), 400, 300)
    (found,) = plain["detections"]
    assert (found["label"], found["name"], found["score"]) == (0, "red", 0.9)
    assert found["box"] == [round(float(side), 2) for side in one.xyxy[0]]
    assert one.draw().size == (400, 300) and not np.array_equal(np.asarray(one.draw()), one.image)
    assert "1 × red" in repr(one) and "400 × 300" in repr(one) and len(repr(one)) < 500
    page = results._repr_html_()
    tree = ElementTree.fromstring(re.sub(r"<(img [^>]*)>", r"<\1/>", page))  # whole tags, everything escaped
    assert len(list(tree.iter("img"))) == 2 and [cell.text for cell in tree.iter("td")][:2] == ["red", "90%"]
    assert len(page) < 200_000


def test_supervision_has_the_same(colors, paint):
    supervision = pytest.importorskip("supervision")
    one = rankless.load(colors).predict(paint("red", "green"))[0]
    other = one.to_supervision()
    assert isinstance(other, supervision.Detections)
    assert np.array_equal(other.xyxy, one.xyxy) and np.array_equal(other.confidence, one.scores)
    assert other.class_id.tolist() == [0, 1] and list(other.data["class_name"]) == ["red", "green"]
    assert len(rankless.load(colors).predict(paint())[0].to_supervision()) == 0


@pytest.mark.skipif(importlib.util.find_spec("supervision") is not None, reason="supervision is installed")
def test_without_supervision_it_says_what_to_install(colors, paint):
    with pytest.raises(UserError, match=r"supervision is not installed; run `pip install supervision`"):
        rankless.load(colors).predict(paint("red"))[0].to_supervision()


@pytest.mark.slow
def test_a_classifier(untrained):
    names = tuple("abcdefg")
    path = untrained(Recipe(task="classify", model=Model(name="resnet18", image_size=32)), names)
    model = rankless.load(path, device="cpu")
    (one,) = model.predict("digits:val:3")
    assert isinstance(one, results.ClassificationResult) and len(one) == 5 and one.probabilities.shape == (7,)
    assert one.probabilities.sum() == pytest.approx(1, abs=1e-5)
    assert one.names == [names[label] for label in one.classes.tolist()]
    assert one.scores.tolist() == sorted(one.probabilities.tolist(), reverse=True)[:5]
    assert one.to_dict()["classes"] == one.rows() and one.draw().size == (320, 320)  # a digit of 64 pixels
    assert one.names[0] in one._repr_html_() and one.names[0] in repr(one)
    supervision = pytest.importorskip("supervision")
    other = one.to_supervision()
    assert isinstance(other, supervision.Classifications)
    assert other.get_top_k(1)[0].tolist() == one.classes[:1].tolist()


@pytest.mark.slow
def test_the_file_and_the_program_say_the_same(untrained, tmp_path):
    """A real detector, and the same numbers from ``rankless.predict`` and from ``load(…).predict``."""
    names = tuple("0123456789")
    path = untrained(Recipe(model=Model(image_size=(96, 128), width=0.25)), names)
    scenes = ["digits:val:0", "digits:val:1"]
    report = rankless.predict(path, scenes, out=tmp_path / "out", confidence=0.0, device="cpu")
    model = rankless.load(path, confidence=0.0, device="cpu")
    found = model.predict(scenes)
    assert [image.detections for image in report.images] == [one.rows() for one in found]
    for image in report.images:
        assert (image.height, image.width) == (96, 128)  # a scene is as large as the network's input
        scores = [one["score"] for one in image.detections]
        assert len(scores) <= 100 and scores == sorted(scores, reverse=True)
        for one in image.detections:
            x1, y1, x2, y2 = one["box"]
            assert 0 <= x1 <= x2 <= image.width and 0 <= y1 <= y2 <= image.height
    # The highest score is known, however far below the confidence it is.
    none = rankless.predict(path, scenes, out=tmp_path / "none", confidence=0.99, device="cpu")
    assert not any(image.detections for image in none.images)
    assert none.best == pytest.approx(max(one.scores[0] for one in found), abs=1e-4)
    assert len(found[0]) > 10 and repr(model).startswith(f"<Predictor {path}, detect, 10 classes: '0', '1'")
    assert isinstance(model, Predictor) and model.class_names == names


@pytest.mark.parametrize("function", [rankless.load, rankless.predict])
def test_examples_in_docstrings_run(function, colors, painted_file, tmp_path, monkeypatch):
    """As they stand, but for the files they name, which here are others."""
    monkeypatch.chdir(tmp_path)
    text = (inspect.getdoc(function) or "").replace("runs/digits", str(colors))
    text = text.replace("digits:val:1000-1003", str(painted_file("a.png")))
    text = text.replace("digits:val:1000", str(painted_file("b.png", "red")))
    examples = doctest.DocTestParser().get_examples(text)
    assert examples
    names = {"rankless": rankless, "Path": Path}
    for example in examples:
        exec(compile(example.source, "example", "single"), names)


def test_the_program_on_the_page_runs(colors, painted_file, tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs/predict.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    for name, other in (
        ("runs/digits", colors),
        ("digits:val:1000", painted_file("a.png", "red")),
        ("digits:val:1001", painted_file("b.png", "green", "blue")),
    ):
        program = program.replace(name, str(other))
    monkeypatch.chdir(tmp_path)
    exec(program, {})
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["red", "green", "blue"]
    with Image.open("annotated.png") as drawn:
        assert drawn.size == (400, 300)
