"""Damaged files of a run: a sentence or the one before, never other numbers and never a traceback."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankless.engine import checkpoint
from rankless.engine.checkpoint import Snapshot
from rankless.errors import UserError
from rankless.launch.hosts import messages
from rankless.launch.hosts.host import HostProcess
from rankless.launch.resume import check_resume, recipe_of_run
from rankless.launch.run_lock import locked
from rankless.models.weights_files import weights
from rankless.recipe.load import dump
from rankless.recipe.schema import Optim, Recipe
from rankless.runs import journal
from rankless.runs.directory import RunDirectory, damage, weights_of
from rankless.runs.journal import Journal
from support.checkpoint_damage import Damage, byte_damage, hostile_json, text_of
from support.fuzz.mutations import damaged_value

RECIPE = Recipe(epochs=7, precision="fp32", optim=Optim(lr=0.0123), seed=12)
STATE = {
    "best": {"step": 5, "score": 0.5},
    "scaler": {"scale": 65536.0, "_growth_tracker": 3},
    "images": 80,
    "data": "abc",
    "unscored": False,
    "unreadable": {"trained": [[3, "a.png", "cut"]], "scored": []},
}
fuzz = settings(settings.get_profile("files"), suppress_health_check=[HealthCheck.function_scoped_fixture])


def snapshot(step: int) -> Snapshot:
    model = {"weight": torch.full((3, 4), float(step)), "bias": torch.arange(3.0) + step}
    average = {name: value + 0.5 for name, value in model.items()}
    return Snapshot(step, model, average, {"momentum_buffer/weight": model["weight"] * 2}, STATE)


def write_run(folder: Path) -> RunDirectory:
    run = RunDirectory(folder)
    for step in (5, 10):
        checkpoint.save(run, snapshot(step), RECIPE, ["cat", "dog"])
    run.point("best", 5)
    run.recipe.write_text(dump(RECIPE))
    book = Journal(run.journal, 0)
    for step in range(1, 11):
        book.write(step=step, loss=1 / step, timing={"seconds": 0.1})
    book.write(evaluation=10, scores={"AP": 0.5})
    book.close()
    return run


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return write_run(tmp_path_factory.mktemp("origin") / "run")


FILES = (
    *(f"step-{step:09d}/{name}" for step in (5, 10) for name in (
        "model.safetensors", "ema.safetensors", "training.safetensors", "state.json", "SHA256SUMS"
    )),
    "last",
    "best",
    "../recipe.yaml",
    "../journal.jsonl",
)  # fmt: skip


@pytest.mark.slow
@fuzz
@given(name=st.sampled_from(FILES), hurt=byte_damage)
def test_a_damaged_file_of_a_run(origin: RunDirectory, tmp_path: Path, name: str, hurt: Damage) -> None:
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    shutil.copytree(origin.path, tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    file = run.checkpoints / name
    file.write_bytes(hurt(file.read_bytes()))
    known = {weights.digest(snapshot(step).ema or {}) for step in (5, 10)}
    for target in (run.path, run.checkpoints / "last", run.step_directory(5), run.step_directory(10)):
        try:
            path = weights_of(target, lambda _: None)
            loaded = weights.load(path)
            assert weights.digest_file(path) in known
        except UserError as error:
            assert str(run.path) in str(error)
        else:
            assert weights.digest(loaded.state) in known and loaded.recipe == RECIPE
            assert loaded.class_names == ("cat", "dog")
    warnings: list[str] = []
    step = checkpoint.newest(run, warnings.append)
    assert step in (5, 10) and (step == 10 or warnings)
    found = checkpoint.load(run, step)
    assert (found.step, found.state) == (step, STATE)
    assert weights.digest(found.training) == weights.digest(snapshot(step).training)
    try:
        recipe = recipe_of_run(run, (), lambda _: None)
        assert check_resume(run, recipe) == recipe
    except UserError as error:
        assert str(run.path) in str(error)
    else:
        assert replace(recipe, epochs=7, checkpoint=RECIPE.checkpoint, evaluate=RECIPE.evaluate) == replace(
            RECIPE, workers=recipe.workers, data=recipe.data
        )
    book = Journal(run.journal, step)
    book.close()
    whole = {text_of(entry) for entry in journal.read(origin.journal)}
    lost = {text_of(entry) for entry in journal.read(run.journal)} - whole
    assert len(lost) <= 1  # a flipped digit is still a number


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ema.safetensors", "model.safetensors"])
def test_a_flipped_byte_anywhere_in_weights_is_named(origin: RunDirectory, tmp_path: Path, name: str) -> None:
    """Beside its SHA256SUMS and alone."""
    folder = shutil.copytree(origin.step_directory(5), tmp_path / "step-000000005")
    content = (folder / name).read_bytes()
    want = weights.load(folder / name)
    alone = tmp_path / "alone.safetensors"
    for place in range(0, len(content), 37):
        hurt = content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :]
        (folder / name).write_bytes(hurt)
        for read in (weights.load, weights.digest_file, weights.load_tensors):
            with pytest.raises(
                UserError, match=r"is damaged: its checksum differs from the one in SHA256SUMS"
            ):
                read(folder / name)
        alone.write_bytes(hurt)
        try:
            found = weights.load(alone)
        except UserError as error:
            assert str(alone) in str(error)
        else:  # the byte was in the name of the checksum
            assert weights.digest(found.state) == weights.digest(want.state)
            assert (found.recipe, found.class_names) == (want.recipe, want.class_names)


@fuzz
@given(data=st.data())
def test_a_state_of_other_types(origin: RunDirectory, tmp_path: Path, data: st.DataObject) -> None:
    """As an editor or another program leaves it, with checksums to match."""
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    shutil.copytree(origin.path, tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    folder = run.step_directory(10)
    text = data.draw(damaged_value({"step": 10, **STATE}).map(text_of) | hostile_json)
    (folder / "state.json").write_text(text, encoding="utf-8")
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    digest = hashlib.sha256((folder / "state.json").read_bytes()).hexdigest()
    lines = [f"{digest}  state.json" if line.endswith("state.json") else line for line in lines]
    (folder / "SHA256SUMS").write_text("\n".join(lines) + "\n")
    warnings: list[str] = []
    step = checkpoint.newest(run, warnings.append)
    assert step in (5, 10) and (step == 10) == (not warnings)
    assert checkpoint.load(run, step).step == step
    with contextlib.suppress(UserError):  # it looks into the state, too: how many epochs are done
        check_resume(run, RECIPE)


def test_every_reader_passes_over_the_same_checkpoints(origin: RunDirectory, tmp_path: Path) -> None:
    """The newest is that of another step, with checksums to match."""
    run = RunDirectory(shutil.copytree(origin.path, tmp_path / "run"))
    shutil.copytree(run.step_directory(5), run.step_directory(20))
    assert "is the state of step 5, not 20" in (damage(run.step_directory(20)) or "")
    assert checkpoint.newest(run, lambda _: None) == 10
    held = HostProcess(io.BytesIO()).answer(messages.Holds(run=str(run.path)))
    assert isinstance(held, messages.Held) and held.step == 10
    (run.checkpoints / "last").unlink()
    (run.path / ".lock").write_text("rankless run\n")
    with locked(run, True):
        assert run.pointed("last") == 10
    run.step_directory(20).rename(run.checkpoints / ".step-000000020.1.tmp")
    with locked(run, True):
        assert run.steps() == [5, 10], "it is not put back"


@fuzz
@given(data=st.data())
def test_a_journal_of_other_types(tmp_path: Path, data: st.DataObject) -> None:
    entries = [
        {"event": "start", "at": 0, "world_size": 2},
        {"step": 1, "loss": 0.5, "timing": {"seconds": 0.1}},
        {"evaluation": 1, "scores": {"AP": 0.5}},
    ]
    path = tmp_path / "journal.jsonl"
    text = data.draw(damaged_value(entries[data.draw(st.integers(0, 2))]).map(text_of) | hostile_json)
    lines = [*map(text_of, entries), text.replace("\n", " "), text_of({"step": 2, "loss": 0.4})]
    before = "\n".join(lines) + "\n"
    path.write_text(before, encoding="utf-8")
    for old in tmp_path.glob("*.replaced-*"):
        old.unlink()
    book = Journal(path, 2)
    book.write(step=3, loss=0.3)
    book.close()
    found = list(journal.read(path))
    assert [entry for entry in found if entry in entries][:3] == entries
    assert [entry["step"] for entry in found[-2:]] == [2, 3]
    assert all(isinstance(entry["scores"], dict) for entry in found if "evaluation" in entry)
    assert book.left_out in (0, 1)
    if book.left_out:
        assert book.original.read_text(encoding="utf-8") == before and len(found) == 5


def test_a_journal_of_binary_lines_and_long_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_LONGEST", 1000)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"step":1}\n' + b"x" * 10_500 + b"\n" + bytes(range(256)) * 3 + b'\n{"step":2}\n{"ste')
    book = Journal(path, 5)
    book.close()
    assert list(journal.read(path)) == [{"step": 1}, {"step": 2}]
    assert book.left_out >= 2 and book.original == tmp_path / "journal.jsonl.replaced-1"
    path.write_bytes(b"\xff\n")
    again = Journal(path, 5)
    again.close()
    assert again.original == tmp_path / "journal.jsonl.replaced-2"


@pytest.mark.slow
def test_a_cut_recipe_is_taken_from_the_checkpoint(origin: RunDirectory, tmp_path: Path) -> None:
    run = RunDirectory(shutil.copytree(origin.path, tmp_path / "run"))
    text = run.recipe.read_text()
    for end in range(0, len(text), 397):
        run.recipe.write_text(text[:end])
        said: list[str] = []
        assert recipe_of_run(run, ["epochs=9"], said.append) == replace(RECIPE, epochs=9)
        assert len(said) == 1 and f"{run.recipe}: is damaged (" in said[0]
    run.recipe.unlink()
    assert recipe_of_run(run, ["epochs=9"], said.append) == replace(RECIPE, epochs=9)
    assert said[-1] == f"{run.recipe}: is missing; using the recipe in the newest checkpoint"
    run.recipe.write_text(text[:97])
    shutil.rmtree(run.checkpoints)
    with pytest.raises(UserError, match=r"recipe\.yaml: is damaged .* no complete checkpoint"):
        recipe_of_run(run, (), pytest.fail)
    run.recipe.unlink()
    with pytest.raises(UserError, match=r"recipe\.yaml: is missing, and there is no complete checkpoint"):
        recipe_of_run(run, (), pytest.fail)
    run.recipe.write_text(text)
    assert recipe_of_run(run, (), pytest.fail) == RECIPE


def test_a_state_says_what_it_is(origin: RunDirectory, tmp_path: Path) -> None:
    run = RunDirectory(shutil.copytree(origin.path, tmp_path / "run"))
    state: dict[str, Any] = {"step": 10, **STATE, "images": "80"}
    (run.step_directory(10) / "state.json").write_text(json.dumps(state))
    with pytest.raises(UserError, match=r"state\.json: is not the state .*`int`, got `str`.*images"):
        checkpoint.load(run, 10)
