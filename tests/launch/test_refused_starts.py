"""A run that is refused before its first step says so alone, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from rankless import UserError, cli, train
from rankless.recipe.load import default, dump
from rankless.runs.directory import RunDirectory, weights_of

pytestmark = pytest.mark.processes

SMALL = ("batch.images=2", "epochs=1", "model.image_size=32", "precision=fp32", "model.width=0.1")
ONE_PIXEL = ("data.train_images=4", "data.val_images=2", "batch.micro=1", *SMALL)


@pytest.mark.parametrize("is_there", [False, True])
def test_nothing_of_it_stays(tmp_path, is_there):
    run = tmp_path / "runs" / "run"
    if is_there:
        run.mkdir(parents=True)
    with pytest.raises(UserError, match="gets only one value per channel"):
        train(default(ONE_PIXEL), run, devices=1)
    assert list(tmp_path.rglob("*")) == ([run.parent] if is_there else [])  # what was there stays


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_command_that_is_refused_leaves_no_numbered_folder(tmp_path, monkeypatch, is_taken):
    monkeypatch.chdir(tmp_path)
    there = [Path("runs"), Path("runs/digits"), Path("runs/digits/a")] if is_taken else []
    for folder in there:
        folder.mkdir()
    assert cli.main(["train", "digits", "--inline", "--sink", "nosuch"]) == 2
    assert sorted(Path().rglob("*")) == there


def test_a_name_is_not_a_recipe(tmp_path):
    with pytest.raises(
        UserError, match=r"recipe is 'digits'; expected a Recipe, as returned by rankless.load_recipe"
    ):
        train("digits", tmp_path / "run")  # type: ignore[arg-type]


def test_a_run_that_goes_on_stays(tmp_path):
    """It was stopped before its first checkpoint; its files are not for a refused start to remove."""
    run = RunDirectory(tmp_path / "run")
    with pytest.raises(UserError):
        train(default(ONE_PIXEL), run.path, devices=1)
    run.path.mkdir()
    run.recipe.write_text(dump(default(ONE_PIXEL)))
    run.environment.write_text('[{"versions": {"rankless": "0"}}]')
    with pytest.raises(UserError, match="gets only one value per channel"):
        train(default(ONE_PIXEL), run.path, devices=1, resume=True)
    assert run.recipe.exists() and run.journal.exists()
    with pytest.raises(UserError, match=r"has no saved weights yet.*--resume --run"):
        weights_of(run.path)


def test_training_is_announced_once_the_data_is_open(tmp_path, capfd):
    for split, names in (("train", "ab"), ("val", "abc")):
        for name in names:
            (tmp_path / "data" / split / name).mkdir(parents=True)
            Image.new("RGB", (32, 32)).save(tmp_path / "data" / split / name / "1.png")
    words = ("task=classify", "model.name=resnet18", "batch.images=2", "batch.micro=2")
    recipe = default([f"data.root={tmp_path / 'data'}", *words])
    with pytest.raises(UserError, match="'val' has classes that 'train' does not have: 'c'"):
        train(recipe, tmp_path / "run", devices=1)
    assert "training in" not in capfd.readouterr().out
    more = ("data.train_images=4", "data.val_images=2", "batch.micro=2", "evaluate.every=0")
    small = default([*more, *SMALL, "model.image_size=64", "epochs=2"])
    assert train(small, tmp_path / "run", devices=1) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == f"training in {tmp_path / 'run'} on 1 process, fp32, workers: 0 (auto)"
    assert any("epoch 2.00/2" in line for line in lines)
    (header,) = [line for line in lines if line.split()[:2] == ["epoch", "loss"]]  # for the scores, too
    assert header.split()[2:] == ["val", "loss", "AP", "AP50", "AP75", "lr", "images/s", "best"]
