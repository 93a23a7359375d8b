"""What a model gets wrong: known errors of a known model, and labels that were made wrong on purpose."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.backends import cuda, cudnn, mkldnn

from rankless import cli
from rankless.cli import judging
from rankless.curation import errors_sheet, model_errors
from rankless.errors import UserError
from rankless.geometry.letterbox import to_source
from rankless.metrics.box_matching import image_boxes
from rankless.metrics.coco import Truth
from rankless.models.weights_files import weights
from rankless.recipe.schema import Batch, Data, Model, Recipe
from rankless.structures import Classification, Detections
from rankless.tasks import detect
from rankless.tasks.classify import Classify
from rankless.tasks.detect import Detect

BOX = (16, 20, 56, 70)
NAMES = ("red", "green")


def errors(truths, found, confidence=0.25, ignored=()):
    """(kind, predicted, label, cost, doubt) of each error, of (box, label) and (box, label, score)."""
    boxes, labels = zip(*truths, strict=True) if truths else ((), ())
    truth = Truth(
        torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        torch.tensor(labels, dtype=torch.int64),
        ignored=torch.tensor([at in ignored for at in range(len(labels))], dtype=torch.bool),
    )
    parts = list(zip(*found, strict=True)) or [(), (), ()]
    one = Detections(
        0,
        torch.tensor(parts[0], dtype=torch.float32).reshape(-1, 4),
        torch.tensor(parts[2], dtype=torch.float32),
        torch.tensor(parts[1], dtype=torch.int64),
    )
    return [
        (each.kind, each.predicted, each.label, round(each.cost, 3), round(each.doubt, 3))
        for each in model_errors.of_boxes(image_boxes(truth, one), confidence)
    ]


HERE, NEAR, THERE = (0, 0, 10, 10), (0, 4, 10, 14), (50, 50, 60, 60)


@pytest.mark.parametrize(
    ("truths", "found", "expected"),
    [
        ([(HERE, 0)], [(HERE, 0, 0.9)], []),
        ([], [(HERE, 0, 0.9)], [("background", 0, -1, 0.9, 0.9)]),
        ([], [(HERE, 0, 0.2)], []),
        ([(HERE, 0)], [], [("missed", -1, 0, 1.0, 0.5)]),
        ([(HERE, 0)], [(HERE, 0, 0.2)], [("missed", -1, 0, 0.8, 0.0)]),
        ([(HERE, 0)], [(HERE, 1, 0.1)], [("missed", -1, 0, 1.0, 0.0)]),
        # A wrong class explains why the right one is missing.
        ([(HERE, 0)], [(HERE, 1, 0.9)], [("classification", 1, 0, 0.9, 0.9)]),
        # The model sees the right class as well, so the label is not in doubt.
        ([(HERE, 0)], [(HERE, 0, 0.8), (HERE, 1, 0.6)], [("classification", 1, 0, 0.6, 0.0)]),
        ([(HERE, 0)], [(NEAR, 0, 0.9)], [("localization", 0, 0, 0.9, 0.0)]),
        ([(HERE, 0)], [(HERE, 0, 0.9), (HERE, 0, 0.7)], [("duplicate", 0, 0, 0.7, 0.0)]),
        # Beside an object, but neither its class nor its place: no doubt about labels.
        ([(HERE, 0)], [(HERE, 0, 0.95), (NEAR, 1, 0.9)], [("background", 1, -1, 0.9, 0.0)]),
        ([(HERE, 0), (THERE, 1)], [(THERE, 0, 0.9), (HERE, 0, 0.3)], [("classification", 0, 1, 0.9, 0.9)]),
    ],
)
def test_every_kind_of_error(truths, found, expected):
    assert errors(truths, found) == expected


def test_difficult_objects_are_no_errors():
    assert errors([(HERE, 0)], [], ignored=[0]) == []
    assert errors([(HERE, 0)], [(HERE, 0, 0.9)], ignored=[0]) == []


class Perfect(Detect):
    """Finds every colored rectangle, whatever the labels say."""

    def model(self) -> nn.Module:
        return nn.Linear(1, 1)

    def predict(self, model, batch) -> list[Detections]:
        found = []
        for image, where in zip(batch.images, batch.letterboxes, strict=True):
            boxes, labels = [], []
            for label in range(2):
                rows, columns = ((image[label] > 170) & (image[1 - label] < 90)).nonzero().T
                if len(rows):
                    boxes.append([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
                    labels.append(label)
            boxes = to_source(torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4), where)
            scores = torch.full((len(labels),), 0.9)
            found.append(Detections(batch.indices[0], boxes, scores, torch.tensor(labels, dtype=torch.int64)))
        return found


@pytest.fixture
def planted(tmp_path, monkeypatch) -> Path:
    """Weights whose data has a wrong class in 1.png, a missing label in 2.png, an idle one in 4.png."""
    monkeypatch.setattr(detect, "Detect", Perfect)
    root = tmp_path / "data"
    x1, y1, x2, y2 = BOX
    row = f"{(x1 + x2) / 2 / 96} {(y1 + y2) / 2 / 96} {(x2 - x1) / 96} {(y2 - y1) / 96}\n"
    texts = [f"0 {row}", f"1 {row}", "", f"0 {row}", f"0 {row}1 0.8 0.8 0.2 0.2\n", f"0 {row}"]
    for kind in ("images", "labels"):
        (root / kind / "val").mkdir(parents=True)
    for number, text in enumerate(texts):
        pixels = np.full((96, 96, 3), 120, np.uint8)
        pixels[y1:y2, x1:x2] = (250, 0, 0)
        Image.fromarray(pixels).save(root / f"images/val/{number}.png")
        (root / f"labels/val/{number}.txt").write_text(text)
    (root / "images/val/5.png").write_bytes((root / "images/val/5.png").read_bytes()[:150])
    (root / "data.yaml").write_text("train: images/val\nval: images/val\nnames: [red, green]\n")
    recipe = Recipe(model=Model(image_size=96), data=Data(root=str(root)))
    path = tmp_path / "w.safetensors"
    weights.save(path, nn.Linear(1, 1).state_dict(), recipe=recipe, class_names=NAMES)
    return path


def test_labels_that_were_made_wrong_are_found_and_nothing_else(planted):
    opened = model_errors.open_model(planted)
    done = []
    found = model_errors.find_errors(opened, done=lambda: done.append(1))
    assert (len(done), found.readable, len(found.unreadable)) == (6, 5, 1)
    named = {Path(image.source).name: [one.kind for one in image.mistakes] for image in found.images}
    assert named == {"1.png": ["classification"], "2.png": ["background"], "4.png": ["missed"]}
    doubtful = [(Path(image.source).name, *one[:1], *one[2:4]) for image, one in found.doubtful()]
    classification, background = ("1.png", "classification", 0, 1), ("2.png", "background", 0, -1)
    assert doubtful == [classification, background, ("4.png", "missed", -1, 1)]
    np.testing.assert_allclose(found.doubtful()[0][1].box, BOX, atol=1)
    costs = [image.cost for image in found.images]
    assert costs == sorted(costs, reverse=True)


@pytest.mark.parametrize(("precision", "on_cuda"), [("fp32", "ieee"), ("tf32", "tf32")])
def test_the_model_computes_as_in_a_prediction(planted, monkeypatch, precision, on_cuda):
    seen, predict = [], Perfect.predict

    def spy(*given):
        one, two = (layer(torch.arange(64.0)[None].expand(count, -1).sin())[0] for count in (1, 2))
        precisions = [cudnn.conv.fp32_precision, cuda.matmul.fp32_precision, mkldnn.matmul.fp32_precision]
        seen.append((precisions, torch.equal(one, two)))
        return predict(*given)

    layer = nn.Linear(64, 33)
    monkeypatch.setattr(Perfect, "predict", spy)
    model_errors.find_errors(model_errors.open_model(planted, [f"precision={precision}"]))
    assert seen and all(one == ([on_cuda, on_cuda, "ieee"], True) for one in seen)


def test_the_command_lists_and_draws(planted, tmp_path, capsys, monkeypatch):
    out, limited = tmp_path / "errors.html", []
    monkeypatch.setattr(judging, "fix_instruction_set_of", limited.append)  # before PyTorch is imported
    assert cli.main(["errors", str(planted), "--out", str(out)]) == 0
    assert limited == [planted]
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0] == "3 of 5 images with errors (val)"
    assert lines[1] == "errors: 1 background, 1 classification, 1 missed"
    assert any("1.png: 1 classification" in line for line in lines) and lines[-1] == f"written: {out}"
    assert "3 labels to check, the likeliest errors first" in lines
    assert any("labeled green, predicted red (90%) at 16, 20, 56, 70" in line for line in lines)
    assert "5.png: " in printed.err
    page = out.read_text()
    shown = re.findall("<h2>(.*?)</h2>|<figure", page)
    worst, doubtful = (
        "Worst images (solid: predictions, dashed: labels)",
        "Labels to check, the likeliest errors first",
    )
    assert shown == [worst, "", "", "", doubtful, "", "", ""]
    images = ["data:image/jpeg;base64"] * 6  # three images, and three labels from near
    assert [url[:22] for url in re.findall('(?:src|href)="(.*?)"', page)] == ["data:,", *images]
    png = tmp_path / "errors.png"
    assert cli.main(["errors", str(planted), "--out", str(png), "--count", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["images"], report["with_errors"], len(report["worst"])) == (5, 3, 1)
    assert report["doubtful_labels"][0]["label"] == "green" and report["errors"]["classification"] == 1
    with Image.open(png) as sheet:
        assert min(sheet.size) > 200 and len(sheet.getcolors(1 << 20)) > 100


def test_an_error_has_one_name_and_annotations_are_dashed(planted):
    """In JSON, in captions and on boxes, whether there is room for more than the name or not."""
    opened = model_errors.open_model(planted)
    found = model_errors.find_errors(opened)
    plain = [one["kind"] for image in found.as_json(9)["worst"] for one in image["errors"]]
    assert set(plain) == set(found.counts()) == {"classification", "background", "missed"}
    cells = errors_sheet.shown(found, opened, 9)
    for cell, kind in zip(cells, plain, strict=False):
        assert cell.caption.startswith(f"1 {kind} · ")
        drawn = [(mark.short, mark.text.partition(":")[0], mark.dashed) for mark in cell.marks]
        annotation = [("", "", True)] * (kind == "classification")
        assert drawn == [(kind, kind, kind == "missed"), *annotation]
    assert len(cells) == 2 * len(plain)


def test_a_model_that_finds_nothing_casts_no_doubt_on_labels(planted, tmp_path, capsys):
    assert cli.main(["errors", str(planted), "--confidence", "0.95", "--out", str(tmp_path / "e.png")]) == 0
    said = capsys.readouterr().out
    assert "no detection has a score of 0.95 or more (the highest score is 0.9); train for longer" in said
    assert "to check" not in said and "worst images" in said


def test_mistakes_and_files_of_others(planted, tmp_path, capsys):
    mine = tmp_path / "mine.html"
    mine.write_text("mine")
    for words, said in (
        (["--out", str(mine)], "already exists and was not written by rankless errors"),
        (["--out", "x.txt"], "--out x.txt: expected a name that ends in one of .html, .png, .jpg, .jpeg"),
        (["--count", "0"], "--count is '0': expected a whole number of at least 1"),
        (["--confidence", "7"], "--confidence is '7': expected a number from 0 to 1"),
        (["--split", "tets"], "tets"),
        (["wrong"], "'wrong': expected key=value"),
        (["optim.lr=1"], "evaluation does not use it"),
    ):
        assert cli.main(["errors", str(planted), *words]) == 2, words
        assert said in capsys.readouterr().err
    assert mine.read_text() == "mine"


def test_data_that_the_run_names_and_that_is_gone(planted, capsys):
    """A relative folder counts from where the command runs, which the user may not think of."""
    shutil.rmtree(planted.with_name("data"))
    for command in ("errors", "evaluate"):
        assert cli.main([command, str(planted)]) == 2
        said = capsys.readouterr().err
        assert "was trained on data.root=" in said and said.rstrip().endswith("add data.root=FOLDER")


@pytest.mark.slow
def test_a_classifiers_worst_images_are_the_surest(tmp_path):
    batches = []

    class Blind(Classify):
        def predict(self, model, batch):
            batches.append(list(batch.indices))
            sure = torch.tensor([[0.6, 0.4], [0.9, 0.1]]).log()
            return [Classification(index, sure[index % 2]) for index in batch.indices]

    for name in ("cat", "dog"):
        for number in range(2):
            path = tmp_path / f"data/val/{name}/{name}{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 40), "gray").save(path)
    data = Data(root=str(tmp_path / "data"), train="val")
    recipe = Recipe(task="classify", model=Model(name="resnet18", image_size=32), data=data)
    recipe = replace(recipe, batch=Batch(images=3, micro=3))
    path, names = tmp_path / "c.safetensors", ("cat", "dog")
    weights.save(path, Classify(recipe, names).model().state_dict(), recipe=recipe, class_names=names)
    opened = model_errors.open_model(path)
    opened = replace(opened, task=Blind(opened.task.recipe, names))
    found = model_errors.find_errors(opened)
    assert batches == [[0, 1, 2], [3]]
    assert [Path(image.source).name for image in found.images] == ["dog1.png", "dog0.png"]
    assert [round(image.cost, 2) for image in found.images] == [0.9, 0.6]
    assert [round(one.doubt, 2) for _, one in found.doubtful()] == [0.9, 0.6]
    assert errors_sheet.summary(found, found.images[0]) == "labeled dog, predicted cat (90%)"
    captions = [cell.caption for cell in errors_sheet.shown(found, opened, 1)]
    assert captions == ["labeled dog, predicted cat (90%) · dog1.png"] * 2
    headings = [cell.heading for cell in errors_sheet.shown(found, opened, 2)]
    assert headings == ["Worst images", "", "Labels to check, the likeliest errors first", ""]


def test_a_task_of_a_users_own_is_refused(tmp_path):
    recipe = Recipe(task="mine:Task")
    weights.save(tmp_path / "w.safetensors", {"x": torch.zeros(1)}, recipe=recipe, class_names=())
    with pytest.raises(UserError, match="built-in tasks; expected a detector"):
        model_errors.open_model(tmp_path / "w.safetensors")
