"""Export: OpenCV computes what the trained model computes, from the files alone."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from torch import nn

from rankless.cli import main
from rankless.errors import UserError
from rankless.files.outputs import Outputs
from rankless.interop.export import export
from rankless.models.weights_files import weights
from rankless.models.zoo import build
from rankless.recipe.schema import Data, Evaluate, Model, Recipe

NAMES = ("cat", "dog with a hat")
RECIPE = Recipe(
    model=Model(name="yolov4-tiny", width=0.125, image_size=(64, 96), dropout=0.1),
    data=Data(root="nowhere"),
    evaluate=Evaluate(nms="diou"),
)


def written(folder: Path, recipe: Recipe = RECIPE) -> tuple[Path, nn.Module]:
    torch.manual_seed(0)
    model = build(recipe.model, len(NAMES)).eval()
    path = folder / "mine.safetensors"
    weights.save(path, model.state_dict(), recipe=recipe, class_names=NAMES)
    return path, model


def test_opencv_reads_the_files_and_agrees(tmp_path: Path) -> None:
    path, model = written(tmp_path)
    done = export(path, format="darknet", out=tmp_path / "out" / "net")
    cfg, numbers, names = done.files
    assert names.read_text().splitlines() == list(NAMES)
    text = cfg.read_text()
    assert "height=64" in text and "width=96" in text
    assert "letter_box=1" in text and "nms_kind=greedynms" in text
    theirs = cv2.dnn.readNetFromDarknet(str(cfg), str(numbers))
    image = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(1))
    theirs.setInput(image.numpy())
    wanted = theirs.forward([f"conv_{number}" for number in (29, 36)])
    with torch.no_grad():
        for mine, raw in zip(model(image), wanted, strict=True):
            np.testing.assert_allclose(mine.numpy(), raw, rtol=1e-3, atol=1e-4)


def test_an_error_brings_the_old_set_back(tmp_path: Path) -> None:
    files = [tmp_path / f"net{ending}" for ending in (".cfg", ".weights", ".names")]
    for file in files:
        file.write_text("old")
    outputs = Outputs(files, verb=None, force=True)
    with (
        pytest.raises(UserError, match=r"net\.weights: was created or changed"),
        outputs.as_one(files) as parts,
    ):
        for part in parts:
            part.write_text("new")
        files[1].write_text("changed by another program")
    assert [file.read_text()[:7] for file in files] == ["old", "changed", "old"]
    assert sorted(tmp_path.iterdir()) == sorted(files)


def test_nothing_is_overwritten_and_errors_are_sentences(tmp_path, capsys, monkeypatch):
    path, _ = written(tmp_path)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")  # without --out the files lie here, and their name is of no option
    assert main(["export", str(path), "--format", "pth"]) == 0
    (file,) = capsys.readouterr().out.split()
    assert main(["export", str(path), "--format", "pth"]) == 2
    said = f"error: {file}: already exists; use another --out, or add --force to replace existing files\n"
    assert capsys.readouterr().err == said
    out = str(tmp_path / "net")
    assert main(["export", str(path), "--format", "darknet", "--out", out]) == 0
    assert capsys.readouterr().out.split() == [out + ending for ending in (".cfg", ".weights", ".names")]
    assert main(["export", str(path), "--format", "darknet", "--out", out]) == 2
    err = capsys.readouterr().err
    assert all(f"error: {out}{ending}: already exists" in err for ending in (".cfg", ".weights", ".names"))
    assert main(["export", str(path), "--format", "darknet", "--out", out, "--force"]) == 0
    own = path.rename(tmp_path / "net.weights")
    assert main(["export", str(own), "--format", "darknet", "--out", out, "--force"]) == 2
    assert f"error: {own}: is an input of this command" in capsys.readouterr().err
    path, formats = own.rename(path), "one of onnx, torchscript, pt2, openvino, triton, darknet, pth, folder"
    for wrong, said in (("onyx", f"{formats}; did you mean 'onnx'\\?$"), ("YOLO", f"{formats}$")):
        with pytest.raises(UserError, match=said):
            export(path, format=wrong)
    free = Recipe(model=Model(name="yolov4-tiny-anchor-free", width=0.125))
    other, _ = written(tmp_path, free)
    with pytest.raises(UserError, match="Darknet has no anchor-free heads"):
        export(other, format="darknet", out=tmp_path / "free")
    assert not (tmp_path / "free.cfg").exists()
