"""Files from strangers decide no code: neither what a recipe inside names, nor what lies in their folder."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from rankless import cli
from rankless.errors import UserError
from rankless.launch import local
from rankless.models.weights_files import weights
from rankless.models.zoo import build
from rankless.recipe.schema import Batch, Data, Model, Recipe

NAMES = ("red", "green")
# Whoever imports it leaves a mark beside it. The names of modules that the package and its libraries import.
MARKING = "import os, pathlib\n(pathlib.Path(__file__).parent / f'mark-{os.getpid()}').touch()\n"
SHADOWING = ("numpy", "torch", "timm", "yaml", "safetensors", "multiprocessing", "logging", "sitecustomize")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stranger's folder: weights of several tasks, and modules of many names."""
    place = tmp_path_factory.mktemp("stranger")
    recipe = Recipe(
        model=Model(name="yolov4-tiny", width=0.125, image_size=64),
        data=Data(val_images=4),
        batch=Batch(images=4, micro=4),
        precision="fp32",
    )
    torch.manual_seed(0)
    state = build(recipe.model, len(NAMES)).state_dict()
    for name in ("stranger", *SHADOWING):
        (place / f"{name}.py").write_text(MARKING)
    tasks = {"builtin": "detect", "module": "stranger:Task", "file": f"{place / 'stranger.py'}:Task"}
    for name, task in tasks.items():
        reported = replace(recipe, task=task)
        weights.save(place / f"{name}.safetensors", state, recipe=reported, class_names=NAMES)
    return place


def marks(folder: Path) -> list[Path]:
    return [*folder.glob("mark-*"), *folder.glob("__pycache__/*")]


@pytest.mark.parametrize(
    "words",
    [
        "digest FILE",
        "evaluate FILE",
        "evaluate FILE evaluate.iou=0.5 --devices 2 --split val",
        "predict FILE digits:val:0 --out OUT",
        "export FILE --format darknet --out OUT",
        "import FILE --out OUT.safetensors --model yolov4-tiny model.width=0.125 model.image_size=64",
        "train model.width=0.125 model.pretrained=FILE model.image_size=33 --run OUT",
        "verify FILE",
        "recipes FILE",
        "data check FILE",
        "data anchors digits --model FILE",
        "data convert FILE --to coco --out OUT",
    ],
)
def test_no_verb_runs_what_a_file_names(folder, tmp_path, monkeypatch, words):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(tmp_path / "none")  # at the end, the path is what it was
    sys.path[:] = filter(None, sys.path)
    before = list(sys.path)
    for name in ("module", "file"):
        given = words.replace("FILE", f"{name}.safetensors").replace("OUT", str(tmp_path / name))
        assert cli.main(given.split()) in (0, 1, 2)
        assert not marks(folder)
        assert sys.path == before
        assert "stranger" not in sys.modules


def test_what_to_do_is_reported(folder: Path) -> None:
    file = folder / "module.safetensors"
    with pytest.raises(UserError) as raised:
        local.evaluate(file)
    assert raised.value.problems == (
        f"{file}: the recipe names the custom task 'stranger:Task'; if you trust its code, add "
        "--task stranger:Task (in Python, task=…)",
    )


def test_weights_without_a_split_for_evaluation_name_those_of_the_data(folder: Path, tmp_path: Path) -> None:
    found, file = weights.load(folder / "builtin.safetensors"), tmp_path / "w.safetensors"
    for name in ("cat", "dog"):
        for split in ("train", "test"):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(tmp_path / "data" / split / name / "1.png")
    for root, last in (("digits", "val"), (str(tmp_path / "data"), "test")):
        recipe = replace(found.recipe, data=replace(found.recipe.data, root=root, val="none"))
        weights.save(file, found.state, recipe=recipe, class_names=NAMES)
        with pytest.raises(UserError, match=rf"with --split {last} \(there is 'train', '{last}'"):
            local.evaluate(file)


def test_what_is_reported_is_safe_to_paste(folder: Path, tmp_path: Path) -> None:
    found = weights.load(folder / "module.safetensors")
    reported = replace(found.recipe, task="x;touch y\x1b[2J:T")
    weights.save(tmp_path / "w.safetensors", found.state, recipe=reported, class_names=NAMES)
    with pytest.raises(UserError) as raised:
        local.evaluate(tmp_path / "w.safetensors")
    assert r"add --task 'x;touch y\x1b[2J:T'" in raised.value.problems[0]
    assert raised.value.problems[0].isprintable()


@pytest.mark.processes
def test_a_folder_of_a_strangers_is_no_place_for_libraries(folder: Path) -> None:
    code = "import sys; from rankless.cli import main; print(*(main(x.split()) for x in sys.argv[1:]))"
    lines = (
        "digest builtin.safetensors",
        "evaluate builtin.safetensors workers=1 data.val_images=4 --devices 2",
    )
    ended = subprocess.run(
        [sys.executable, "-P", "-c", code, *lines],
        cwd=folder, env={**os.environ, "RANKLESS_CPU": "1"}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert not marks(folder), ended
    # The digits have ten classes: this far the ranks have come, with all that they import.
    assert ended.stdout.splitlines()[-1:] == ["0 2"] and "the model has no class '9'" in ended.stderr, ended


@pytest.mark.processes
def test_a_task_that_was_given_by_hand_runs(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "by_hand.py").write_text(
        MARKING + "from rankless.tasks.detect import Detect\n"
        "class Task(Detect):\n"
        "    def score(self, predictions):\n"
        "        return {'AP': 0.5}\n"
    )
    found = weights.load(folder / "module.safetensors")
    state = build(found.recipe.model, 10).state_dict()
    file = tmp_path / "w.safetensors"
    names = [str(digit) for digit in range(10)]
    weights.save(file, state, recipe=found.recipe, class_names=names)
    by_hand = f"{tmp_path / 'by_hand.py'}:Task"
    for given in ({"task": by_hand}, {"overrides": [f"task={by_hand}"]}):
        scores = local.evaluate(file, devices=1, **given)
        assert scores["AP"] == 0.5
        assert marks(tmp_path)
    assert not marks(folder)
