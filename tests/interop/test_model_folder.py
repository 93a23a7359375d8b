"""A model's folder is read like its run, and its card tells the truth, to the Hub and to people."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import InferenceClient, ModelCardData
from huggingface_hub.repocard import metadata_load

import rankless
from rankless.cli import main
from rankless.errors import UserError
from rankless.interop.export import export
from rankless.interop.model_folder import FILES
from rankless.models.weights_files import weights
from rankless.models.weights_files.pretrained import start_from
from rankless.models.zoo import build
from rankless.recipe.load import load
from rankless.recipe.schema import Data, Model, Recipe
from rankless.tasks import data_digest

NAMES = ("cat", "stop_sign | *new*", "<b>dog</b>\nwith a hat")
RECIPE = Recipe(model=Model(name="yolov4-tiny", width=0.125, image_size=64), data=Data(root="home/me/pets"))


def written(path: Path, recipe: Recipe = RECIPE, **extra: str) -> Path:
    state = build(RECIPE.model, len(NAMES)).state_dict()
    weights.save(path, state, recipe=recipe, class_names=NAMES, extra=extra)
    return path


def rows(card: str) -> dict[str, str]:
    """The rows of all tables of a card."""
    return dict(re.findall(r"^\| (.*?) \| (.*) \|$", card, re.MULTILINE))


def read_by_the_hub(card: Path) -> dict[str, object]:
    """What the Hub's own library reads of a card."""
    known = ModelCardData(**(metadata_load(card) or {})).to_dict()
    assert {"library_name", "license", "tags"} <= set(known)
    return known


@pytest.fixture(scope="module")
def run(small_recipe: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "shapes"
    words = ["epochs=2", "evaluate.every=1 epoch", "batch.images=7", "batch.micro=7", "optim.lr=0.002"]
    assert main(["train", small_recipe, *words, "--devices", "1", "--run", str(path)]) == 0
    return path


@pytest.mark.processes
def test_the_card_of_a_run_tells_what_is_true(run, small_recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(run), "--format", "folder"]) == 0
    assert capsys.readouterr().out.split() == [f"shapes/{name}" for name in FILES]
    card = Path("shapes/README.md").read_text()
    found = read_by_the_hub(Path("shapes/README.md"))
    assert found["library_name"] == "rankless" and found["license"] == "unknown"
    assert found["pipeline_tag"] == "object-detection" and hasattr(InferenceClient, "object_detection")
    assert found["tags"] == ["rankless", "yolov4-tiny"]

    table, digest = rows(card), rankless.digest_file(run / "best.safetensors")
    assert rankless.digest_file("shapes/model.safetensors") == digest == table["SHA-256 of the weights"]
    data = data_digest(load(small_recipe))
    assert table["digest of the data (classes, image sizes, annotations)"] == data
    assert table["torch"] == metadata.version("torch")
    scores = rankless.evaluate("shapes", devices=1)
    assert scores["weights"] == "shapes/model.safetensors"
    assert table["AP50"] == f"{scores['AP50']:.4f}" and table["loss"] == f"{scores['loss']:.4f}"
    network = build(load(small_recipe).model, 2)
    assert f"with {sum(p.numel() for p in network.parameters()):,} parameters. 2 classes: red, green" in card

    # The commands of the card train the same weights again.
    root = str(Path(small_recipe).with_name("data.yaml"))
    again, compared = re.findall("^    (rankless.*again.*)$", card, re.MULTILINE)
    assert main([*shlex.split(again.replace("DATA", root))[1:], "--devices", "1"]) == 0
    capsys.readouterr()
    assert main(shlex.split(compared)[1:]) == 0
    assert capsys.readouterr().out.split()[0] == digest


@pytest.mark.processes
def test_predict_and_train_take_the_folder_like_the_run(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shapes"
    export(run, format="folder", out=folder)
    images = list(np.random.default_rng(2).integers(0, 255, (3, 80, 64, 3), dtype=np.uint8))
    ours, theirs = (rankless.load(one, confidence=0.001).predict(images) for one in (run, folder))
    assert sum(len(one.scores) for one in ours) > 0
    for one, other in zip(ours, theirs, strict=True):
        assert one.xyxy.tobytes() == other.xyxy.tobytes() and one.scores.tobytes() == other.scores.tobytes()

    recipe = load("fine-tune", [f"model.pretrained={folder}"])
    assert (recipe.model.name, recipe.model.image_size) == ("yolov4-tiny", 64)
    model = build(recipe.model, 2)
    start_from(model, str(folder), ("red", "green"))
    assert weights.digest(model.state_dict()) == rankless.digest_file(run / "best.safetensors")


@pytest.mark.processes
def test_weights_that_were_not_scored_get_no_scores(run: Path, tmp_path: Path) -> None:
    """The scores are those of the averaged weights, which lie beside the model's."""
    (model,) = (run / "checkpoints").glob("step-*6/model.safetensors")
    export(model, format="folder", out=tmp_path / "raw")
    card = (tmp_path / "raw" / "README.md").read_text()
    assert "AP50" not in card and "not recorded with the weights" in card
    assert rows(card)["torch"] == metadata.version("torch")


def test_a_folder_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = written(tmp_path / "mine.safetensors"), tmp_path / "out"
    words = ["export", str(source), "--format", "folder", "--out", str(out)]
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    for more in ([], ["--force"]):
        assert main([*words, *more]) == 2
        assert f"--out {out}: contains other files; use a new or empty folder" in capsys.readouterr().err
    assert [file.name for file in out.iterdir()] == ["notes.txt"]
    (out / "notes.txt").unlink()
    assert main(words) == 0
    (out / "README.md").write_text("filled in")
    assert main(words) == 2
    assert f"{out / 'README.md'}: already exists" in capsys.readouterr().err
    assert (out / "README.md").read_text() == "filled in"
    assert main([*words, "--force"]) == 0
    assert (out / "README.md").read_text() != "filled in"
    assert main(["export", str(out), *words[2:], "--force"]) == 2
    assert f"{out / 'model.safetensors'}: is an input of this command" in capsys.readouterr().err
    out = tmp_path / "a file"
    out.write_text("mine")
    with pytest.raises(UserError, match=r"a file: cannot be used as the output folder: .* is a file"):
        export(source, format="folder", out=out)


def test_options_that_change_a_computation_are_refused(tmp_path: Path) -> None:
    source = written(tmp_path / "mine.safetensors")
    for more in ({"half": True}, {"nms": True}, {"overrides": "evaluate.iou=0.5"}):
        with pytest.raises(UserError, match="--format folder: writes only weights; remove --nms"):
            export(source, format="folder", out=tmp_path / "out", **more)
    assert not (tmp_path / "out").exists()


def test_names_from_elsewhere_are_text_and_what_is_missing_is_named(tmp_path: Path) -> None:
    recipe = replace(RECIPE, model=replace(RECIPE.model, pretrained="there/coco.safetensors"))
    out = tmp_path / "my [model] | 1"
    export(written(tmp_path / "mine.safetensors", recipe, step="12"), format="folder", out=out)
    card = (out / "README.md").read_text()
    assert r"3 classes: cat, stop\_sign \| \*new\*, \<b\>dog" in card and "# my \\[model\\] \\| 1" in card
    assert tuple(json.loads((out / "classes.json").read_text())) == NAMES
    assert load(out / "recipe.yaml") == recipe
    table = rows(card)
    assert table["steps of training"] == "12"
    assert table["the original weights: coco.safetensors"] == "**FILL IN**"
    assert table["the data: pets; **FILL IN** its source"] == "**FILL IN**"
    assert "'/recipe.yaml --run again data.root=DATA model.pretrained=WEIGHTS" in card
    assert "rankless digest again" not in card  # whether they are a run's best is not known


def test_imported_weights_name_their_file_and_no_training(tmp_path: Path) -> None:
    source = written(tmp_path / "mine.safetensors", imported_from="yolov4-tiny.weights")
    export(source, format="folder", out=tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "imported from yolov4-tiny.weights" in card and "--run again" not in card
    assert "the original weights: yolov4-tiny.weights" in rows(card)


def test_code_that_weights_name_is_not_run(tmp_path: Path) -> None:
    code = tmp_path / "theirs.py"
    code.write_text(f"open({str(tmp_path / 'was run')!r}, 'w')\n")
    source = written(tmp_path / "mine.safetensors", replace(RECIPE, task=f"{code}:Task"))
    export(source, format="folder", out=tmp_path / "out")
    assert not (tmp_path / "was run").exists()
    assert "pipeline_tag" not in read_by_the_hub(tmp_path / "out" / "README.md")
    assert f" --task {code}:Task\n" in (tmp_path / "out" / "README.md").read_text()
