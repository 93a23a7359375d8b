"""What is done with a run that is finished."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rankless import UserError, cli, evaluate, train
from rankless.models.weights_files import weights
from rankless.recipe.load import changed, load
from rankless.runs.directory import RunDirectory

pytestmark = pytest.mark.processes

SMALL = (
    "data.train_images=8", "data.val_images=4", "batch.images=4", "batch.micro=2", "epochs=1",
    "model.image_size=64", "precision=fp32", "model.width=0.1",
)  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run = tmp_path_factory.mktemp("finished") / "run"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "rankless", "train", *SMALL, "--run", str(run), "--devices", "1"]
    with Path("/dev/full").open("w") as full:
        streams = {"stdout": full, "stderr": subprocess.PIPE, "text": True}
        done = subprocess.run(command, env=environment, timeout=300, check=False, **streams)
    # What could not be written was not what the run is for.
    sentence = f"the run is finished and saved in {run}, but the output could not be written"
    assert (done.returncode, done.stderr) == (0, f"warning: {sentence} (No space left on device)\n")
    return run


def test_the_weights_lie_under_plain_names(finished, tmp_path):
    checkpoint = finished / "checkpoints" / "step-000000002" / "ema.safetensors"
    for name in ("best", "last"):
        assert (finished / f"{name}.safetensors").samefile(checkpoint)
    best = str(finished / "best.safetensors")
    assert cli.main(["evaluate", best, "--devices", "1"]) == 0
    assert cli.main(["predict", best, "digits:val:0", "--out", str(tmp_path / "found")]) == 0
    assert cli.main(["export", best, "--format", "pth", "--out", str(tmp_path / "net")]) == 0
    assert (tmp_path / "net.pth").exists()


def test_continuing_names_the_option_and_restores_missing_links(finished, tmp_path, capfd):
    before = (finished / "journal.jsonl").read_bytes()
    recipe = load(finished / "recipe.yaml")
    assert train(recipe, finished, devices=1, resume=True) == 0
    assert capfd.readouterr().out == (
        f"{finished}: this run is finished (step 2 of 2); to train for more than 1 epoch, run: "
        f"rankless train --resume --run {finished} epochs=2\n"
    )
    assert (finished / "journal.jsonl").read_bytes() == before
    copy = shutil.copytree(finished, tmp_path / "run", symlinks=True)
    (copy / "best.safetensors").unlink()
    assert train(changed(recipe, ["epochs=2"]), copy, devices=1, resume=True) == 0
    out = capfd.readouterr().out
    assert "resuming after step 2" in out
    assert f"weights: {copy / 'best.safetensors'}, {copy / 'last.safetensors'}\n" in out
    assert (copy / "last.safetensors").samefile(copy / "checkpoints/step-000000004/ema.safetensors")
    assert (copy / "best.safetensors").is_file()


@pytest.mark.parametrize(("last", "is_followed"), [("step-000000099", False), ("?", True)])
def test_where_last_names_no_checkpoint_it_is_said_and_put_right(
    finished, tmp_path, capfd, last, is_followed
):
    shutil.copytree(finished, tmp_path / "run", symlinks=True)
    run = RunDirectory(tmp_path / "run")
    step = run.pointed("last") or 0
    whole, newer = run.step_directory(step), run.step_directory(step + 1)
    if is_followed:  # by one that is not whole
        shutil.copytree(whole, newer)
        (newer / "state.json").write_text("{}")
    (run.checkpoints / "last").write_text(last)
    assert cli.main(["runs", str(run.path)]) == 0
    warning = f"warning: {run.checkpoints / 'last'}: " + (
        "is damaged (it does not contain the name of a checkpoint); "
        if last == "?"
        else "points to a missing checkpoint (step-000000099); "
    )
    assert capfd.readouterr().err == f"{warning}to fix this, run: {run.again}\n"
    assert train(load(run.recipe), run.path, devices=1, resume=True) == 0
    out, err = capfd.readouterr()
    assert err == f"{warning}using the newest complete checkpoint ({whole.name})\n"
    assert out.startswith(f"{run.path}: this run is finished (step {step} of {step}); ")
    assert run.pointed("last") == step and (run.path / "last.safetensors").is_file()
    assert cli.main(["runs", str(run.path)]) == 0 and not capfd.readouterr().err


def test_a_split_that_is_not_there_is_an_option_that_is_wrong(finished):
    with pytest.raises(UserError) as caught:
        evaluate(finished, devices=1, split="nosuch")
    assert caught.value.problems == (
        "split 'nosuch': digits: no split 'nosuch'; expected train or val; choose one of these",
    )


def test_keys_without_effect_on_scores_are_refused(finished):
    keys = ["optim.lr=1", "epochs=3", "evaluate.iou=0.5", "evaluate.every=2", "data.augment=none"]
    with pytest.raises(UserError) as caught:
        evaluate(finished, keys, devices=1)
    named = ["optim.lr", "epochs", "evaluate.every", "data.augment"]
    assert list(caught.value.problems) == [
        f"command line: key '{key}': evaluation does not use it; remove {key}" for key in named
    ]


def test_where_nothing_is_found_a_lower_confidence_is_named(finished, tmp_path, capfd):
    assert evaluate(finished, ["evaluate.confidence=0.999"], devices=1)["AR100"] == 0
    assert "evaluate.confidence=0.001" in capfd.readouterr().err
    words = [str(finished), "digits:val:0-1", "--out", str(tmp_path / "out")]
    assert cli.main(["predict", *words, "--confidence", "0.999"]) == 0
    advice = capfd.readouterr().out.splitlines()[-1]
    assert "but --confidence is 0.999; try --confidence " in advice


def test_a_low_confidence_that_finds_nothing_is_not_advised_again(finished, tmp_path, capfd):
    loaded, file = weights.load(finished / "best.safetensors"), tmp_path / "mute.safetensors"
    mute = {name: one - 1e4 * name.endswith(".classes.bias") for name, one in loaded.state.items()}
    weights.save(file, mute, recipe=loaded.recipe, class_names=loaded.class_names)
    words = [str(file), "digits:val:0-1", "--out", str(tmp_path / "out"), "--confidence", "0.01"]
    assert cli.main(["predict", *words]) == 0
    advice = capfd.readouterr().out.splitlines()[-1]
    assert "no score was close to --confidence 0.01; train for longer" in advice
