"""The documented commands that cost little, run as they stand on data and weights of the names they use.

What the others do, they do in tests of their own: training, evaluation, machines, other libraries.
"""

from __future__ import annotations

import re
import shlex
import shutil
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rankless import cli
from rankless.curation.converting import convert
from rankless.inference.video import Writer
from rankless.interop.export import export
from rankless.models.weights_files import weights
from rankless.models.zoo import build
from rankless.recipe.load import load
from rankless.recipe.schema import Data, Model, Recipe
from support.documented import Line, commands

VERBS = {"data", "digest", "errors", "export", "predict", "recipes"}
SAVED = "checkpoints/step-000000001/model.safetensors"
HEAVY = re.compile(
    r"export (?!.*--format darknet)|data show digits|errors runs/digits|--task|--resume|--chain|\.(onnx|xml|pt2|torchscript|mp4)\b|://|/dev/"
    r"|webcam:|my_format"  # newcomers/test_own_code.py runs the examples with a format of the user's own
)


def data_set(root: Path) -> None:
    """Text labels with a data.yaml: patients' images of a cat and a dog each."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 60), ("val", 4)):
        for kind in ("images", "labels"):
            (root / kind / split).mkdir(parents=True)
        for number in range(count):
            name = f"patient{number // 2}_{number}"
            pixels = rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / "images" / split / f"{name}.jpg")
            cat, dog = rng.uniform(0.2, 0.4, (2, 2))
            lines = f"0 0.3 0.4 {cat[0]} {cat[1]}\n1 0.7 0.5 {dog[0]} {dog[1]}\n"
            (root / "labels" / split / f"{name}.txt").write_text(lines)
    (root / "data.yaml").write_text("train: images/train\nval: images/val\nnames: [cat, dog]\n")


def model(path: Path, recipe: Recipe, names: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    made = build(recipe.model, len(names)).state_dict()
    path.parent.mkdir(parents=True, exist_ok=True)
    weights.save(path, made, recipe=recipe, class_names=names)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the pages name: data, a recipe, runs, weights, images and a video."""
    place = tmp_path_factory.mktemp("documented")
    data_set(place / "mydata")
    small = Recipe(model=Model(name="yolov4-tiny", width=0.125, image_size=64), data=Data(root="mydata"))
    (place / "my.yaml").write_text("data: {root: mydata}\n")
    convert(str(place / "mydata"), "voc", place / "VOCdevkit")
    runs = [f"runs/{name}/{SAVED}" for name in ("my", "one", "two")]
    for name in (*runs, "coco.safetensors", "r50.safetensors"):
        model(place / name, small, ("cat", "dog"))
    digits = load("digits", ["model.width=0.125"])
    model(place / f"runs/digits/{SAVED}", digits, tuple("0123456789"))
    export(place / "runs/digits", format="folder", out=place / "digits")
    (place / "folder").mkdir()
    for name in ("photo.jpg", "folder/first.jpg"):
        Image.new("RGB", (80, 60), "gray").save(place / name)
    writer = Writer(place / "clip.mp4", Fraction(10))
    writer.add(Image.new("RGB", (80, 60), "gray"), 0.0)
    writer.close()
    return place


def cheap() -> list[Line]:
    """A line of each command that needs only what is made here; paths and numbers make no other command."""
    found: dict[str, Line] = {}
    for line in commands():
        if not (line.is_inline or HEAVY.search(line.text)) and shlex.split(line.text)[0] in VERBS:
            found.setdefault(re.sub(r" (?!-)\S*[\d./:]\S*| --out \S+| (?:my\S+|VOC\S+)", "", line.text), line)
    return list(found.values())


@pytest.mark.slow
@pytest.mark.parametrize("line", cheap(), ids=str)
def test_command_works_as_it_stands(line, made, tmp_path, monkeypatch, capfd):
    shutil.copytree(made, tmp_path / "place")
    monkeypatch.chdir(tmp_path / "place")
    assert cli.main(shlex.split(line.text)) == 0, capfd.readouterr().err


def test_commands_are_found() -> None:
    assert {line.text.split()[0] for line in cheap()} == VERBS
