"""Prediction by a task of the user's own: what it says about an image, what it draws, and what is wrong."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from rankless import cli
from rankless.errors import TaskError, UserError
from rankless.inference.predict import predict
from rankless.models.weights_files import weights
from rankless.recipe.schema import Recipe

TASK = """\
    import torch

    class Mine:
        class_names, score_name = (), "s"

        def __init__(self, recipe): ...

        def model(self):
            return torch.nn.Linear(3, 1)

        def predict_image(self, model, image):  # uint8 (3, H, W)
            assert not model.training
            return {"redness": float(model(image.float().mean((1, 2))))}

        def draw(self, image, prediction):
            return (image.float() * prediction["redness"] / 255).byte()

        def training_data(self): ...
        def evaluation_data(self): ...
        def collate(self, items): ...
        def loss(self, model, batch): ...
        def predict(self, model, batch): ...
        def score(self, predictions): ...
"""


@pytest.fixture(autouse=True)
def clean_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(tmp_path / "none")  # at the end, the path is what it was


def task(folder: Path, text: str = TASK) -> str:
    (folder / "mine.py").write_text(textwrap.dedent(text))
    return f"{folder / 'mine.py'}:Mine"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """The mean of the red values."""
    model = nn.Linear(3, 1)
    nn.init.zeros_(model.bias)
    model.weight.data = torch.tensor([[1.0, 0.0, 0.0]])
    path = tmp_path / "w.safetensors"
    weights.save(path, model.state_dict(), recipe=Recipe(task="theirs:Task"), class_names=())
    return path


@pytest.fixture
def image(tmp_path: Path) -> str:
    pixels = np.full((20, 30, 3), (51, 255, 255), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    return str(tmp_path / "a.png")


def test_it_says_and_draws_what_it_sees(target, image, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["predict", str(target), image, "--task", task(tmp_path), "--out", str(out)]
    assert cli.main(words) == 0
    assert re.fullmatch(
        rf"1 image; \S+ images per second; in (fp32|bf16); results in {re.escape(str(out))}\n",
        capsys.readouterr().out,
    )
    assert json.loads((out / "predictions.json").read_text()) == [
        {"source": image, "output": "a", "annotated": "a.png", "width": 30, "height": 20}
        | {"prediction": {"redness": 51.0}}
    ]
    with Image.open(out / "a.png") as drawn:
        assert drawn.size == (30, 20) and drawn.getpixel((0, 0)) == (10, 51, 51)


def test_it_need_not_draw(target: Path, image: str, tmp_path: Path) -> None:
    name = task(tmp_path, TASK.replace("def draw", "def draw_not"))
    report = predict(target, [image, "digits:val:3"], out=tmp_path / "out", device="cpu", task=name)
    assert sorted(path.name for path in report.out.iterdir()) == [".rankless-outputs", "predictions.json"]
    assert [sorted(entry) for entry in report.predictions()] == [
        ["height", "output", "prediction", "source", "width"]
    ] * 2


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ("predict_image", "other", r"mine.py:Mine' has no method predict_image\(self, model, image\)"),
        ("return {", "return 1.5  # {", "predict_image.* returned float; expected a dict"),
        ("return {", "return {0: model}  # {", "that JSON cannot represent"),
        (".byte()", "", r"draw\(\) .* returned torch.float32 of shape \(3, 20, 30\); expected a uint8 "),
    ],
)
def test_what_it_lacks_or_returns_wrongly_is_reported(target, image, tmp_path, was, now, said):
    name = task(tmp_path, TASK.replace(was, now))
    with pytest.raises(UserError, match=said):
        predict(target, [image], out=tmp_path / "out", device="cpu", task=name)


def test_an_error_in_custom_code_is_reported_with_its_lines_and_leaves_no_files(
    target: Path, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = task(tmp_path, TASK.replace('prediction["redness"]', 'prediction["readiness"]'))
    for out in (None, tmp_path / "out"):
        with pytest.raises(TaskError, match=r"KeyError: 'readiness'\n.*mine.py:\d+, in draw"):
            predict(target, [image], out=out, device="cpu", task=name)
    assert not Path("predictions").exists() and not (tmp_path / "out").exists()


def test_what_only_the_file_names_is_not_run(target: Path, image: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"names the custom task 'theirs:Task'; if you trust its code"):
        predict(target, [image], out=tmp_path / "out", device="cpu")
    with pytest.raises(UserError, match=r"--confidence is 0.5, but the task"):
        predict(target, [image], out=tmp_path / "out", device="cpu", task=task(tmp_path), confidence=0.5)
