"""Kinds of people with what they have: their layout, their checkpoint and their launch line.

Each ends with a trained, scored and exported model, and what was exported is read by other software.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
import torchvision
from torch import nn

from rankless.models import zoo
from rankless.models.weights_files import weights
from rankless.recipe.load import default
from rankless.recipe.schema import Model

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

SHORT = "epochs=1 batch.images=8 batch.micro=4 precision=fp32"
NARROW = "model.width=0.1 model.image_size=64"


class Person:
    def __init__(self, folder: Path, forked: Any) -> None:
        self.folder, self._forked = folder, forked

    def __call__(self, words: str, code: int = 0, python: str = "-m rankless") -> str:
        """Type ``rankless WORDS``; what is printed, or with an exit code, what is wrong."""
        done = self._forked(*python.split(), *words.split(), cwd=self.folder)
        assert done.returncode == code, done.stderr
        return str(done.stderr if code else done.stdout)

    def scores(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self(f"evaluate {run} --devices 1 --json"))
        return found

    def exported(self, run: str) -> dict[str, torch.Tensor]:
        """The state dict of a run, as a person would load it into a network of theirs."""
        self(f"export {run} --format pth --out theirs")
        found: dict[str, Any] = torch.load(self.folder / "theirs.pth", weights_only=True)
        return found.get("state_dict", found)


@pytest.fixture
def person(tmp_path: Path, forked: Any) -> Person:
    return Person(tmp_path, forked)


def read_by_opencv(stem: Path) -> None:
    network = cv2.dnn.readNetFromDarknet(str(stem.with_suffix(".cfg")), str(stem.with_suffix(".weights")))
    network.setInput(np.zeros((1, 3, 64, 64), np.float32))
    heads = network.forward(network.getUnconnectedOutLayersNames())
    assert all(head.shape[1] == 5 + 2 and np.isfinite(head).all() for head in heads)


def test_a_ddp_script_with_apex(person: Person, boxes: Callable[..., Path]) -> None:
    """``torchrun --nproc_per_node 2 train.py --batch-size 4 --resume last.pt``, opt_level O1, and SyncBN."""
    boxes(person.folder / "mine", 8, 4)
    net = zoo.build(Model(width=0.1, image_size=64), 2)
    state = {f"module.{name}": value for name, value in net.state_dict().items()}
    amp = {"loss_scaler0": {"loss_scale": 65536.0, "unskipped": 10}}
    torch.save(
        {"model": state, "optimizer": {"state": {}}, "amp": amp, "epoch": 3}, person.folder / "last.pt"
    )
    (person.folder / "mine.names").write_text("cat\ndog\n")
    person(f"import last.pt --model yolov4-tiny --names mine.names --out start.safetensors {NARROW}")
    torchrun = "-m torch.distributed.run --nproc-per-node 2 -m rankless"
    words = f"model.pretrained=start.safetensors data.root=mine {SHORT.replace('fp32', 'fp16')}"
    person(f"train {words} batch_norm=sync --out runs/my", python=torchrun)
    scores = person.scores("runs/my")
    assert (scores["images"], scores["split"]) == (4, "val")
    person("export runs/my --format darknet --out my")
    read_by_opencv(person.folder / "my")
    state = person.exported("runs/my")
    assert not [name for name, value in state.items() if value.dtype == torch.float16]
    net.load_state_dict(state)


def test_a_darknet_user(person: Person, boxes: Callable[..., Path]) -> None:
    """``darknet detector train obj.data my.cfg my.weights``"""
    made, obj = boxes(person.folder / "made", 8, 4), person.folder / "data" / "obj"
    obj.mkdir(parents=True)
    for split, listing in (("train", "train.txt"), ("val", "valid.txt")):
        images = sorted((made / "images" / split).iterdir())
        for image in images:
            shutil.copy(image, obj / f"{split}{image.name}")
            shutil.copy(made / "labels" / split / f"{image.stem}.txt", obj / f"{split}{image.stem}.txt")
        lines = [f"data/obj/{split}{image.name}\n" for image in images]
        (person.folder / "data" / listing).write_text("".join(lines))
    shutil.rmtree(made)
    (person.folder / "data/obj.names").write_text("cat\ndog\n")
    paths = "train = data/train.txt\nvalid = data/valid.txt\nnames = data/obj.names\nbackup = backup/\n"
    (person.folder / "obj.data").write_text(f"classes = 2\n{paths}")
    # Their cfg and weights, which are a network's of theirs: as an earlier export has them.
    recipe = default(NARROW.split())
    state = zoo.build(recipe.model, 2).state_dict()
    weights.save(person.folder / "w.safetensors", state, recipe=recipe, class_names=("cat", "dog"))
    person("export w.safetensors --format darknet --out my")
    person("import my.weights --cfg my.cfg --names data/obj.names --out start.safetensors")
    person(f"train model.pretrained=start.safetensors data.root=obj.data {SHORT} --devices 1 --run runs/my")
    assert "\n  cfg: |\n    [net]\n" in (person.folder / "runs/my/recipe.yaml").read_text()
    assert person.scores("runs/my")["images"] == 4
    person("export runs/my --format darknet --out trained")
    read_by_opencv(person.folder / "trained")


def test_an_ultralytics_yaml(person: Person, boxes: Callable[..., Path]) -> None:
    """``yolo train data=mine.yaml imgsz=64 batch=8 lr0=0.01 epochs=1``"""
    boxes(person.folder / "datasets" / "mine", 8, 4)
    text = "path: datasets/mine\ntrain: images/train\nval: images/val\nnames:\n  0: cat\n  1: dog\n"
    (person.folder / "mine.yaml").write_text(text)
    said = person("train data=mine.yaml imgsz=64 batch=8 lr0=0.01 epochs=1", code=2)
    for key in ("data.root", "model.image_size", "batch.images", "optim.lr"):
        assert key in said
    torch.save({"model": nn.Linear(2, 2), "epoch": 3}, person.folder / "yolo.pt")
    assert "torch.save(model.state_dict()" in person(
        "import yolo.pt --model yolov4-tiny --out start.safetensors", code=2
    )
    person(f"train data.root=mine.yaml {NARROW} {SHORT} optim.lr=0.01 --devices 1 --run runs/mine")
    assert person.scores("runs/mine --split train")["images"] == 8
    person("export runs/mine --format darknet --out mine")
    read_by_opencv(person.folder / "mine")


def test_a_torchvision_reference_script(person: Person, folders: Callable[..., Path]) -> None:
    """``python -m torch.distributed.launch --nproc_per_node 2 train.py --model resnet18 --test-only``

    The checkpoint is one of ``nn.DataParallel``.
    """
    for split, count in (("train", 24), ("val", 9)):
        folders(person.folder / "imagenet" / split, count, side=32)
    names = sorted(one.name for one in (person.folder / "imagenet/train").iterdir())
    (person.folder / "classes.txt").write_text("\n".join(names))
    net = torchvision.models.resnet18(num_classes=3)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    model = nn.DataParallel(net).state_dict()
    saved = {"model": model, "optimizer": optimizer.state_dict(), "epoch": 3, "best": torch.tensor(51.0)}
    torch.save(saved | {"args": argparse.Namespace(model="resnet18", lr=0.1)}, person.folder / "model_3.pth")
    said = person("import model_3.pth --model resnet18 --names classes.txt --out r18.safetensors")
    assert "the prefix 'module.' was removed from all tensor names" in said
    scores = person.scores("r18.safetensors data.root=imagenet")
    assert scores["computed_in"] == "fp32" and 0 <= scores["top1"] <= 1
    person("predict r18.safetensors imagenet/val --out found")
    predictions = json.loads((person.folder / "found/predictions.json").read_text())
    assert len(predictions) == scores["images"] > 0
    launch = "-m torch.distributed.launch --nproc_per_node 2 -m rankless"
    words = "fine-tune model.pretrained=r18.safetensors data.root=imagenet model.image_size=32"
    person(f"train {words} {SHORT} --out runs/mine", python=launch)
    net.load_state_dict(person.exported("runs/mine"))
    best = weights.load(person.folder / "runs/mine/best.safetensors").state
    assert torch.equal(net.state_dict()["fc.weight"], best["fc.weight"])


def test_weights_of_the_other_task(person, boxes, folders):
    """The first hint about a detector's weights on class folders, or the reverse, is a line that works."""
    boxes(person.folder / "mine", 8, 4)
    folders(person.folder / "flowers", 24, side=32)
    for recipe, data, other in (("yolov4-tiny", "mine", "flowers"), ("resnet18", "flowers", "mine")):
        trained = default(f"model.name={recipe} task={'detect' if data == 'mine' else 'classify'}".split())
        weights.save(person.folder / "w.safetensors", {}, recipe=trained, class_names=("cat", "dog"))
        said = person(f"train model.pretrained=w.safetensors data.root={other}", code=2)
        (line,) = re.findall(r"rankless (train \S+ data.root=\w+)", said)
        person(f"{line} {SHORT} model.image_size=32 --devices 1 --run runs/{other}")
