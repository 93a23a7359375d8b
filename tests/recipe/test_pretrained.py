"""The weights that a recipe starts from bring their network, where the recipe names none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rankless import cli
from rankless.models.weights_files import weights
from rankless.recipe.load import changed, default, dump, load
from rankless.recipe.schema import Model, Recipe

CFG = "[net]\nwidth=64\nheight=64\nchannels=3\n"
OTHERS = [
    "model.name=yolov4-tiny-3l", "model.width=0.25", "model.image_size=128", "data.fit=stretch",
    "data.pad=128",
]  # fmt: skip


def written(path: Path, recipe: Recipe) -> Path:
    weights.save(path, {"x": torch.zeros(1)}, recipe=recipe, class_names=("a",))
    return path


@pytest.fixture
def detector(tmp_path: Path) -> Path:
    training = [
        "model.pretrained=before", "model.freeze='3 epochs'", "model.checkpointing=true", "optim.lr=0.5",
        "data.root=theirs",
    ]  # fmt: skip
    return written(tmp_path / "w.safetensors", default([*OTHERS, *training]))


def test_their_network_and_how_it_sees_images_and_nothing_else(detector: Path, tmp_path: Path) -> None:
    wanted = default([*OTHERS, f"model.pretrained={detector}", "data.root=mine"])
    assert default([f"model.pretrained={detector}", "data.root=mine"]) == wanted
    (tmp_path / "r.yaml").write_text(f"model: {{pretrained: {detector}}}\ndata: {{root: mine}}\n")
    assert load(tmp_path / "r.yaml") == wanted
    assert Recipe(model={"pretrained": str(detector)}, data={"root": "mine"}) == wanted  # type: ignore[arg-type]
    given = default([f"model.pretrained={detector}", "model.image_size=64", "data.fit=letterbox"])
    assert (given.model.image_size, given.data.fit, given.model.name) == (64, "letterbox", "yolov4-tiny-3l")


def test_a_run_brings_that_of_its_best_weights(detector: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints" / "step-000000004"
    folder.mkdir(parents=True)
    detector.rename(folder / "model.safetensors")
    (folder.parent / "last").write_text("step-000000004\n")
    assert default([f"model.pretrained={tmp_path / 'run'}"]).model.name == "yolov4-tiny-3l"


def test_a_classifier_and_a_cfg(tmp_path: Path) -> None:
    classifier = written(tmp_path / "c.safetensors", default(["task=classify", "model.name=resnet18"]))
    recipe = default([f"model.pretrained={classifier}"])
    assert (recipe.task, recipe.model.name, recipe.loss.name) == ("classify", "resnet18", "cross-entropy")
    described = written(tmp_path / "d.safetensors", Recipe(model=Model(cfg=CFG)))
    recipe = default([f"model.pretrained={described}"])
    assert recipe.model.cfg == CFG  # type: ignore[attr-defined]
    (tmp_path / "recipe.yaml").write_text(dump(recipe))
    assert load(tmp_path / "recipe.yaml") == recipe


def test_a_network_that_is_named_is_taken(detector: Path, tmp_path: Path) -> None:
    assert default(["model.name=yolov3", f"model.pretrained={detector}"]) == Recipe(
        model=Model(name="yolov3", pretrained=str(detector))
    )
    recipe = default(["task=classify", "model.name=resnet18", f"model.pretrained={detector}"])
    assert recipe.model.name == "resnet18"
    # Later the file may be another one, or gone: a recorded recipe does not look at it again.
    recorded = default([f"model.pretrained={detector}"])
    written(detector, default(["model.name=yolov3"]))
    (tmp_path / "recipe.yaml").write_text(dump(recorded))
    assert load(tmp_path / "recipe.yaml") == recorded == changed(recorded, [])


@pytest.mark.parametrize("content", [b"", b"not a weights file", b"\x08\0\0\0\0\0\0\0{}      ", None])
def test_files_that_bring_none_are_left_to_the_training_to_report(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "w"
    if content is not None:
        path.write_bytes(content)
    assert default([f"model.pretrained={path}"]).model == Model(pretrained=str(path))
    assert default(["model.pretrained=timm"]).model == Model(pretrained="timm")


def test_no_file_decides_what_code_runs(tmp_path: Path) -> None:
    path = written(tmp_path / "w.safetensors", Recipe(task="evil.py:Task", model=Model(name="theirs")))
    assert default([f"model.pretrained={path}"]) == Recipe(model=Model(pretrained=str(path)))


def test_without_a_recipe_weights_are_fine_tuned(
    detector: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rankless.cli.options import load_recipe

    words = [f"model.pretrained={detector}", "data.root=mine"]
    assert load_recipe(None, words) == (load("fine-tune", words), "fine-tune")
    assert load_recipe(None, words)[0].model.name == "yolov4-tiny-3l"
    assert load_recipe(None, [*words, "model.name=yolov3"])[0].optim == Recipe().optim
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", f"model.pretrained={detector}"]) == 2
