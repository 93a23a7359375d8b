"""The command new, and a folder with data in the place of a recipe."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rankless import cli
from rankless.cli.new import holds_data, recipe_for, say_fine_tuning
from rankless.cli.options import load_recipe
from rankless.errors import UserError
from rankless.models.weights_files.weights import save
from rankless.recipe import load


@pytest.fixture
def flowers(tmp_path, monkeypatch):
    """A folder of each of two classes with 12 images, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANKLESS_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for name in ("rose", "tulip"):
        (tmp_path / "flowers" / name).mkdir(parents=True)
        for number in range(12):
            pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "flowers" / name / f"{number}.png")
    return Path("flowers")


@pytest.fixture
def shapes(flowers, small_recipe):
    """Boxes without a validation split, in the working directory."""
    shutil.copytree(Path(small_recipe).parent, "shapes")
    Path("shapes/data.yaml").write_text("path: .\ntrain: images/train\nnames: [red, green]\n")


def problems(capsys, *words):
    assert cli.main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err.splitlines()


def test_new_writes_a_recipe(flowers, capsys):
    assert cli.main(["new", "flowers"]) == 0
    said = capsys.readouterr().out
    assert "flowers: classification, 20 images for training and 4 for validation, 2 classes" in said
    assert said.endswith("train it: rankless train flowers.yaml\n")
    recipe = load.load("flowers.yaml")
    assert (recipe.task, recipe.data.root, recipe.model.image_size) == ("classify", "flowers", 32)
    assert cli.main(["new", "flowers/", "--classes", "tulip,rose", "--out", "deep/my.yml"]) == 0
    assert load.load("deep/my.yml").data.classes == ("tulip", "rose")


def test_new_replaces_nothing_and_reports_other_mistakes_too(flowers, capsys):
    Path("flowers.yaml").write_text("mine")
    Path("link.yaml").symlink_to("nowhere")
    Path("folder.yaml").mkdir()
    for name, reason in (
        ("flowers.yaml", "already exists"),
        ("link.yaml", "is a symbolic link"),
        ("folder.yaml", "is a folder"),
    ):
        (line,) = problems(capsys, "new", "flowers", "--out", name)
        assert line.startswith(f"error: {name}: {reason}")
        assert "use another --out" in line
    assert Path("flowers.yaml").read_text() == "mine"
    assert not Path("nowhere").exists()
    there, data, weights = problems(
        capsys, "new", "flower", "--out", "flowers.yaml", "--pretrained", "none.safetensors"
    )
    assert there.startswith("error: flowers.yaml: already exists")
    assert "flower: no such file or folder" in data and "none.safetensors" in weights
    (line,) = problems(capsys, "new", "flowers", "--format", "voc", "--out", "new.yaml")[-1:]
    assert "flowers: looks like " in line and line.endswith("; remove --format")


def test_new_replaces_a_file_if_forced_but_none_of_the_data(flowers, capsys):
    Path("flowers.yaml").write_text("mine")
    assert cli.main(["new", "flowers", "--force"]) == 0
    assert load.load("flowers.yaml").data.root == "flowers"
    capsys.readouterr()
    Path("flowers/notes.yaml").write_text("mine")
    (line,) = problems(capsys, "new", "flowers", "--out", "flowers/notes.yaml", "--force")
    assert "flowers/notes.yaml: is an input of this command" in line
    assert Path("flowers/notes.yaml").read_text() == "mine"


def test_mistakes_of_new(flowers, capsys):
    Path("my.yaml").write_text("model: {image_size: 64}\ndata: {root: flowers}\n")
    Path("empty").mkdir()
    for words, said in (
        ("new my.yaml", "my.yaml: this is a recipe, not a data set"),
        ("new flowers --out my.txt", "--out my.txt: expected a name that ends in .yaml"),
        ("new nope", "nope: no such file or folder"),
        ("new flowers --format vok", "--format is 'vok'"),
        ("train empty", "empty: no known data format: the folder is empty"),
        ("new flowers --pretrained=", "--pretrained is '': expected a run, a weights file"),
        ("new flowers --pretrained published", "--pretrained is 'published': expected a run, a weights file"),
    ):
        assert said in problems(capsys, *words.split())[0]
    assert not [*Path().glob("*-split"), *(set(Path().glob("*.yaml")) - {Path("my.yaml")})]


def test_a_misspelt_folder_and_a_run_directory_are_no_recipes(flowers, capsys):
    for word in ("flwoers", "flwoers/"):
        (line,) = problems(capsys, "train", word)
        assert "no such file, folder or shipped recipe" in line
        assert line.endswith("; did you mean 'flowers'?")
    Path("runs/s").mkdir(parents=True)
    Path("runs/s/recipe.yaml").write_text("epochs: 2\n")
    (line,) = problems(capsys, "train", "runs/s")
    assert line.endswith("to continue the run: rankless train --resume --run runs/s")
    (line,) = problems(capsys, "plan", "runs/s")
    assert line.endswith("expected a recipe file, such as runs/s/recipe.yaml")


def test_the_shipped_recipe_comes_before_a_data_folder_of_this_name(flowers):
    flowers.rename(flowers.with_name("digits"))
    assert holds_data("./digits") and not holds_data("digits")


def test_mistakes_in_the_data_are_reported_by_train(flowers, capsys):
    for image in list(Path("flowers/rose").iterdir())[1:]:
        image.unlink()
    (line,) = problems(capsys, "train", "flowers")
    assert "fewer than two training images of 'rose'" in line
    assert not Path("runs").exists()


def test_a_wrong_key_is_reported_before_the_data_is_read(shapes, capsys):
    for folder, words, expected in (
        (
            "flowers",
            ["epoch=2", "--devices", "x"],
            ("--devices is 'x'", "'epoch': no such key; did you mean 'epochs'"),
        ),
        ("flowers", ["loss.smoothing=2"], ("'loss.smoothing' is 2",)),
        ("shapes", ["model.width=2x"], ("'model.width' is '2x'",)),
    ):
        lines = problems(capsys, "train", folder, *words)
        assert all(one in line for one, line in zip(expected, lines, strict=True)), lines
    with pytest.raises(UserError, match="few: no such file"):  # a key of one task alone is no mistake
        recipe_for("few", ["evaluate.iou=0.5"])
    with pytest.raises(UserError, match="few: no such file"):
        recipe_for("few", ["loss.smoothing=0.2"])


def test_a_used_run_directory_and_wrong_weights_are_reported_before_data_is_read(flowers, capsys):
    Path("runs").mkdir()
    Path("runs/notes.txt").touch()
    lines = problems(capsys, "train", "flowers", "model.pretrained=hf://a/b/x.bin", "--run", "runs")
    assert "model.pretrained: hf://a/b/x.bin: expected a .safetensors file" in lines[0]
    assert "runs: is not a run directory and contains 'notes.txt'" in lines[1]


def test_the_values_are_those_after_the_overrides(flowers, capsys):
    recipe_for("flowers", ["epochs=2", "model.image_size=64", "data.augment.hue=0.1", "optim.lr=0.5"])
    said = capsys.readouterr().out
    assert "\\n" not in said
    lines = [line for line in said.splitlines() if line.startswith("  ")]
    assert len(lines) > 3 and all(len(line) <= 100 for line in lines)
    words = " ".join(lines).split()
    assert {"epochs=2", "model.image_size=64", "data.augment.hue=0.1", "optim.lr=0.5"} <= {*words}
    assert len({word.partition("=")[0] for word in words}) == len(words)


@pytest.fixture
def weights(flowers):
    """The weights of a small classifier, and of a detector."""
    for name, words in (("c", ["task=classify", "model.name=resnet18"]), ("d", ["model.name=yolov3-tiny"])):
        recipe = load.default([*words, "model.image_size=64"])
        save(Path(f"{name}.safetensors"), {"x": torch.zeros(1)}, recipe=recipe, class_names=("tulip", "rose"))


def test_weights_bring_their_network_and_the_values_for_fine_tuning(flowers, weights, capsys):
    words = ["model.pretrained=c.safetensors", "optim.weight_decay=0.5"]
    folder = recipe_for("flowers", words)
    said = capsys.readouterr().out
    assert said.endswith("rankless new flowers --pretrained c.safetensors\n")
    assert "optim.weight_decay=0.5" in said and "optim.lr=0.0002" in said  # that of classes they know
    assert (folder.task, folder.model.name, folder.model.image_size) == ("classify", "resnet18", 64)
    assert cli.main(["new", "flowers", "--pretrained", "c.safetensors"]) == 0
    assert load.load("flowers.yaml", ["optim.weight_decay=0.5"]) == folder
    # The recipe fine-tune has the same ones, for the images of its data, and keeps those that are given.
    shipped, _ = load_recipe("fine-tune", [*words, "data.root=flowers"])
    for section in ("model", "batch", "epochs", "optim", "schedule", "ema"):
        assert getattr(shipped, section) == getattr(folder, section)
    assert shipped.epochs > load.load("fine-tune").epochs
    assert load_recipe("fine-tune", [*words, "data.root=flowers", "epochs=2"])[0].epochs == 2


def test_weights_that_do_not_suit_the_data_are_refused(flowers, weights, capsys):
    for name, reason in (
        ("d.safetensors", "a detector, but flowers has one class per image; expected a classifier"),
        ("none.safetensors", "no such file"),
    ):
        assert cli.main(["new", "flowers", "--pretrained", name]) == 2
        assert reason in capsys.readouterr().err
        assert not Path("flowers.yaml").exists()
        assert cli.main(["train", "flowers", f"model.pretrained={name}"]) == 2
        assert reason in capsys.readouterr().err
    assert not Path("runs").exists()


def test_nothing_stays_of_a_refused_command(shapes, weights, capsys):
    for words in (
        ("new", "shapes", "--pretrained", "c.safetensors"),
        ("train", "shapes", "model.pretrained=c.safetensors"),
        ("train", "shapes", "evaluate.best=mAP", "--run", "runs/a"),
    ):
        assert cli.main(words) == 2
        assert not [*Path().glob("*-split"), *Path().glob("runs"), *Path().glob("*.yaml")], words
    assert cli.main(["new", "shapes", "--out", "deep/shapes.yaml"]) == 0
    assert cli.main(["new", "shapes"]) == 0
    assert cli.main(["train", "shapes", "evaluate.best=mAP"]) == 2
    assert Path("shapes-split").is_dir(), "it is that of another command"


def test_fine_tuning_names_its_values_and_the_tasks_that_differ(shapes, weights, capsys):
    for name, root, reason in (
        ("c.safetensors", "shapes", "a classifier, but shapes has boxes; expected a detector"),
        ("d.safetensors", "flowers", "a detector, but flowers has one class per image; expected a class"),
        (Path("d.safetensors").absolute(), "flowers", "a detector, but flowers has one class per image"),
    ):
        assert reason in problems(capsys, "train", f"model.pretrained={name}", f"data.root={root}")[0]
    words = ["model.pretrained=c.safetensors", "data.root=flowers", "optim.lr=0.5"]
    say_fine_tuning(load_recipe("fine-tune", words)[0], words, is_here=True)
    assert "fine-tune, with values for 20 training images:\n  model.freeze=10%" in capsys.readouterr().out
    words[1] = "data.root=elsewhere"
    say_fine_tuning(load_recipe("fine-tune", words)[0], words, is_here=False)
    assert "for 200 training images, because the data is not on this machine" in capsys.readouterr().out
    recipe_for("shapes", ["model.pretrained=published"])
    said = capsys.readouterr().out
    assert "  model.name=yolov4-tiny task=detect " in said
    assert said.endswith("rankless new shapes --pretrained published/yolov4-tiny\n")


def test_published_weights_bring_their_network(shapes, capsys):
    assert cli.main(["new", "shapes", "--pretrained", "published/yolov3-tiny"]) == 0
    assert load.load("shapes.yaml").model.name == "yolov3-tiny"
    assert recipe_for("shapes", ["model.pretrained=published/yolov3"]).model.name == "yolov3"
    capsys.readouterr()
    for name, said in (
        ("resnet18", "which is a classifier; expected a det"),
        ("yolov9", "no published weights are named"),
    ):
        (line,) = problems(capsys, "new", "shapes", "--pretrained", f"published/{name}", "--out", "new.yaml")
        assert said in line and not Path("new.yaml").exists()


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_train_takes_a_folder_with_data(flowers, forked):
    words = ["flowers", "epochs=2", "batch.micro=16", "--devices", "1"]
    done = forked("-m", "rankless", "train", *words, cwd=Path.cwd(), seconds=240)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ +task=classify model.name=resnet18 ", done.stdout, re.MULTILINE)
    assert "to see the reasons or change the values: rankless new flowers" in done.stdout
    recorded = load.load("runs/flowers/recipe.yaml")
    assert (recorded.epochs, recorded.batch.micro, recorded.optim.lr) == (2, 16, 0.0125)
    assert not Path("flowers.yaml").exists()
