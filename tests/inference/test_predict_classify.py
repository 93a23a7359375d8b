"""Prediction with a classifier, from files to files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

import rankless.inference.predict as page
from rankless.models.weights_files import weights
from rankless.recipe.schema import Model, Recipe
from rankless.tasks import classify
from rankless.tasks.classify import Classify

NAMES = ("blue", "green", "gray", "red", "spring green", "violet", "yellow")
RECIPE = Recipe(task="classify", model=Model(name="resnet18", image_size=16))


class Painter(Classify):
    """A classifier that sees red, green and blue."""

    def model(self) -> nn.Module:
        layer = nn.Linear(3, 7)
        model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), layer)
        with torch.no_grad():
            layer.weight.zero_()
            layer.bias.copy_(torch.tensor([0.0, 0, -1, 0, 0, -9, -9]))
            for row, channel in ((3, 0), (1, 1), (4, 1), (0, 2)):
                layer.weight[row, channel] = 2
        return model


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(classify, "Classify", Painter)
    path = tmp_path / "w.safetensors"
    state = Painter(RECIPE, NAMES).model().state_dict()
    weights.save(path, state, recipe=RECIPE, class_names=NAMES)
    return path


def test_the_best_five_of_each_image(target):
    folder = target.with_name("in")
    folder.mkdir()
    for name, color in (("a.png", (255, 0, 0)), ("b.jpg", (0, 255, 0))):
        Image.new("RGB", (120, 90), color).save(folder / name)
    (folder / "c.png").write_text("no image")
    out = target.with_name("out")
    report = page.predict(target, [str(folder)], out=out, device="cpu")
    assert [Path(source).name for source, _ in report.failed] == ["c.png"]
    written = json.loads((out / "predictions.json").read_text())
    assert written == report.predictions() and [entry["annotated"] for entry in written] == ["a.png", "b.jpg"]
    for entry, best in zip(written, (["red"], ["green", "spring green"]), strict=True):
        assert "detections" not in entry and (entry["width"], entry["height"]) == (120, 90)
        names, scores = ([row[key] for row in entry["classes"]] for key in ("name", "score"))
        assert names[: len(best)] == best and len(names) == 5  # equal ones in the order of the classes
        assert scores == sorted(scores, reverse=True) and scores[0] > 0.4
        assert [NAMES[row["label"]] for row in entry["classes"]] == names
        with Image.open(out / entry["annotated"]) as annotated:
            assert annotated.size == (120, 90) and len(annotated.getcolors(20_000)) > 2  # the caption


def test_what_is_less_likely_is_left_out_where_asked(target):
    Image.new("RGB", (120, 90), (255, 0, 0)).save(target.with_name("red.png"))
    source = [str(target.with_name("red.png"))]
    whole = page.predict(target, source, out=target.with_name("whole"), device="cpu").images[0].classes
    limit = (whole[0]["score"] + whole[1]["score"]) / 2
    some = page.predict(target, source, out=target.with_name("some"), confidence=limit, device="cpu")
    assert some.images[0].classes == whole[:1]
    none = page.predict(target, source, out=target.with_name("none"), confidence=1.0, device="cpu")
    assert none.images[0].classes == []
    assert json.loads((none.out / "predictions.json").read_text()) == none.predictions()


def test_built_in_digits(target):
    out = target.with_name("out")
    report = page.predict(target, ["digits:val:3", "digits:val:358-359"], out=out, device="cpu")
    assert [image.source for image in report.images] == ["digits:val:3", "digits:val:358"]
    assert report.failed == [("digits:val:359", "the built-in data has only the images 0 to 358 in 'val'")]
    assert report.images[0].width == 64
