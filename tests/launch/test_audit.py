"""``rankless audit`` and ``digest --chain``: a sound run passes, and every change to one is named."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

import rankless
from rankless.cli import main
from rankless.errors import UserError
from rankless.files import checksums
from rankless.launch.audit import Audit, AuditReport, Interval, examine, other_facts
from rankless.launch.requests import Requests
from rankless.models.weights_files.tensor_file import metadata_of
from rankless.recipe.load import load
from rankless.recipe.schema import Recipe
from rankless.runs import chain
from rankless.runs.directory import RunDirectory

pytestmark = pytest.mark.slow
WORDS = ["batch.images=6", "batch.micro=3", "epochs=2", "workers=0", "evaluate.every=0"]
SAVING = ["checkpoint.every=2", "checkpoint.keep=9"]  # after the steps 2, 4, 6 and 7


@pytest.fixture(scope="module")
def trained(small_recipe, tmp_path_factory):
    run = tmp_path_factory.mktemp("audited") / "run"
    assert rankless.train(load(small_recipe, [*WORDS, *SAVING]), run, devices=1, inline=True) == 0
    return run


@pytest.fixture
def run(trained, tmp_path):
    """A copy that a test may change."""
    return RunDirectory(shutil.copytree(trained, tmp_path / "run", symlinks=True))


def audited(run: Path, *overrides: str, steps: int | None = 1, devices: int = 1) -> AuditReport:
    return Audit(run, overrides, None, devices, print).repeat(steps, seed=1)


def intervals(report: AuditReport) -> list[Interval]:
    return [one.interval for one in report.results]


def state_of(folder: Path) -> dict[str, Any]:
    """The content and time of every file and folder."""
    return {
        str(path): (path.lstat().st_mtime_ns, path.is_file() and path.read_bytes())
        for path in [folder, *folder.rglob("*")]
    }


def lines_of(run: RunDirectory) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.journal.read_text().splitlines()]


def write_lines(run: RunDirectory, lines: list[dict[str, Any]]) -> None:
    run.journal.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def forge(folder: Path) -> str:
    """Change a weight, and the checksums of the file and in SHA256SUMS; return its name."""
    file = folder / "model.safetensors"
    tensors, about = load_file(file), metadata_of(file)
    name = max(tensors, key=lambda name: tensors[name].numel())
    tensors[name].view(-1)[7] *= 1.0001
    save_file(tensors, file, {key: value for key, value in about.items() if key != "crc32"})
    sum_again(folder)
    return name


def sum_again(folder: Path) -> None:
    listed = checksums.read(folder) or {}
    sums = {name: checksums.of_file(folder / name) for name in listed if (folder / name).exists()}
    (folder / checksums.NAME).write_text(checksums.text(sums))


def link_again(run: RunDirectory) -> None:
    """Make the whole chain again, as a careful forger would."""
    made: dict[int, dict[str, Any]] = {}
    before = None
    for step in run.steps():
        folder = run.step_directory(step)
        links = chain.links_in(folder)
        (folder / chain.NAME).write_text(json.dumps({**links, "before": before}))
        sum_again(folder)
        entry = chain.entry_of(folder)
        assert entry
        made[step], before = entry, entry["link"]
    write_lines(run, [made[line["checkpoint"]] if "checkpoint" in line else line for line in lines_of(run)])


def test_a_sound_run_is_shown_whole_and_not_touched(trained):
    before = state_of(trained)
    assert examine(RunDirectory(trained)).problems == []
    said: list[str] = []
    report = Audit(trained, (), None, 1, said.append).repeat(None, seed=5)
    assert report.ok and report.not_shown == [] and report.seed == 5
    assert intervals(report) == [(0, 2), (2, 4), (4, 6), (6, 7)]
    assert [one.images for one in report.results] == [12, 12, 12, 6]
    shown = "shown: from the beginning, this data and recipe reproduce the checkpoint of step 7 exactly"
    assert said[-1] == shown
    assert state_of(trained) == before


@pytest.mark.processes
def test_two_ranks_repeat_what_one_trained(trained):
    report = audited(trained, steps=3, devices=2)
    assert report.ok and sum(len(one.interval) for one in report.results) >= 3
    assert {reason for _, reason in report.not_shown} == {"not selected"}
    assert len({one for one, _ in report.not_shown} | {*intervals(report)}) == 4


def test_a_changed_image_is_named_and_changes_the_weights(run, tmp_path):
    data = shutil.copytree(Path(load(run.recipe).data.root).parent, tmp_path / "moved")
    file = data / "data.yaml"
    text = file.read_text().splitlines()
    file.write_text("\n".join([f"path: {data}", *text[1:]]) + "\n")
    elsewhere = f"data.root={file}"
    assert audited(run.path, elsewhere).ok  # at another place it is the same data
    image = data / "images/train/07.png"
    pixels = np.array(Image.open(image))
    pixels[10:30, 10:30] = 255
    Image.fromarray(pixels).save(image)
    report = audited(run.path, elsewhere, steps=None)
    assert report.problems == [f"{image}: differs from the file that the run was trained on"]
    assert any(one.difference for one in report.results) and not report.ok
    (data / "images/train/07.png").unlink()
    (data / "labels/train/07.txt").unlink()
    report = audited(run.path, elsewhere, steps=None)
    fewer = f"{elsewhere}: has 20 images, but the run was trained on 21"
    assert report.problems == [fewer, f"{image}: is missing"]
    reason = "cannot be retrained with this data"
    assert report.results == [] and {why for _, why in report.not_shown} == {reason}
    file.write_text(file.read_text().replace("[red, green]", "[red, green, blue]"))
    report = audited(run.path, elsewhere)
    names = "'red', 'green', 'blue', but the run has 'red', 'green'"
    assert report.problems[0] == f"{elsewhere}: the classes are {names}" and report.results == []


def test_a_changed_weight_is_found_though_all_checksums_were_made_again(run):
    folder = run.step_directory(4)
    name = forge(folder)
    assert examine(run).problems == [
        f"{folder}: differs from the record of step 4 in {run.journal} (model.safetensors)"
    ]
    report = audited(run.path, steps=None)
    assert not report.ok and intervals(report) == [(0, 2), (2, 6), (6, 7)]
    link_again(run)
    assert examine(run).problems == []
    differing = {one.interval: one.difference for one in audited(run.path, steps=None).results}
    assert differing[Interval(2, 4)] == f"{name} in model.safetensors"
    assert differing[Interval(4, 6)] and not differing[Interval(0, 2)] and not differing[Interval(6, 7)]


@pytest.mark.parametrize(
    ("key", "step", "change", "said"),
    [
        (
            "step",
            3,
            {"loss": 0.5},
            "the losses, learning rates or scores of steps 3 to 4 differ from those recorded",
        ),
        ("checkpoint", 4, {"recipe": "0" * 64}, "the hash-chain line for step 4 was changed"),
        ("checkpoint", 4, None, "hash-chain lines between steps 2 and 6 were changed or removed"),
        ("checkpoint", 6, {"numbers": "many"}, "the hash-chain line for step 6 is damaged"),
    ],
)
def test_an_edited_journal(key, step, change, said, run):
    lines = [line if line.get(key) != step else change and {**line, **change} for line in lines_of(run)]
    write_lines(run, list(filter(None, lines)))
    assert f"{run.journal}: {said}" in "\n".join(examine(run).problems)


def test_exchanged_checkpoints(run):
    one, other, aside = run.step_directory(2), run.step_directory(4), run.path / "aside"
    one.rename(aside), other.rename(one), aside.rename(other)
    damaged = [problem.partition(" (")[0] for problem in examine(run).problems]
    assert damaged == [f"{one}: is damaged", f"{other}: is damaged"]
    for folder, step in ((one, 2), (other, 4)):
        state = json.loads((folder / "state.json").read_text())
        (folder / "state.json").write_text(json.dumps({**state, "step": step}))
        sum_again(folder)
    files = "ema.safetensors, model.safetensors, state.json, training.safetensors"
    assert examine(run).problems == [
        f"{folder}: differs from the record of step {step} in {run.journal} ({files})"
        for folder, step in ((one, 2), (other, 4))
    ]


def test_other_changed_files(run):
    run.recipe.write_text(run.recipe.read_text().replace("lr: 0.02", "lr: 0.03"))
    run.environment.write_text(run.environment.read_text().replace(rankless.__version__, "9.9.9"))
    run.data_sums.write_text(run.data_sums.read_text().replace("07.png", "08.png"))
    best = run.path / "best.safetensors"
    best.unlink()
    for file in (best, run.step_directory(6) / "other.safetensors"):
        file.write_bytes(b"other weights")
    text = "\n".join(examine(run).problems)
    wrong = "does not contain the weights of the best checkpoint; the best checkpoint is from step 7"
    assert f"{best}: {wrong}" in text
    assert f"{run.step_directory(6) / 'other.safetensors'}: was added to the checkpoint" in text
    assert f"{run.recipe}: optim.lr is 0.03, but 0.02 in the checkpoint of step 7" in text
    assert f"{run.environment}: does not contain the environment of step 7 (it was" in text
    assert f"{run.data_sums}: differs from the list recorded at step 7" in text


def test_an_edited_list_accuses_no_image(run):
    run.data_sums.write_text(run.data_sums.read_text().replace("07.png", "08.png"))
    said: list[str] = []
    report = Audit(run.path, (), None, 1, said.append).repeat(1, seed=1)
    list_differs = f"{run.data_sums}: differs from the list recorded at step 7"
    assert report.problems == [list_differs]
    assert said[-1] == "1 problem found: see DIFFERENT above"


@pytest.mark.parametrize("name", ["best", "last"])
def test_a_pointer_or_link_to_another_checkpoint(run, name):
    pointer, link = run.checkpoints / name, run.path / f"{name}.safetensors"
    what = {"best": "best", "last": "newest"}[name]
    recorded = f"the {what} checkpoint is from step 7"
    pointer.write_text("step-000000002\n")
    assert examine(run).problems == [f"{pointer}: points to step 2, but {recorded}"]
    pointer.unlink()
    assert examine(run).problems == [f"{pointer}: contains no step, but {recorded}"]
    run.point(name, 7)
    link.unlink()
    link.symlink_to("checkpoints/step-000000002/ema.safetensors")
    problem = f"{link}: does not contain the weights of the {what} checkpoint; {recorded}"
    assert examine(run).problems == [problem]
    for step, problems in ((7, []), (2, [problem])):  # as in a copy without links
        link.unlink()
        shutil.copyfile(run.step_directory(step) / "ema.safetensors", link)
        assert examine(run).problems == problems


def test_a_process_that_was_killed_before_it_pointed_to_its_checkpoint(run):
    write_lines(run, [line for line in lines_of(run) if line.get("checkpoint") != 7])
    run.point("last", 6)
    for path in (run.checkpoints / "best", run.path / "best.safetensors"):
        path.unlink()
    assert examine(run).problems == []


def test_the_list_of_the_data_is_that_of_sha256sum(run):
    images = Path(load(run.recipe).data.root).parent / "images/train"
    listed = dict(line.split("  ") for line in run.data_sums.read_text().splitlines())
    assert listed == {hashlib.sha256(file.read_bytes()).hexdigest(): file.name for file in images.iterdir()}


def test_a_resumed_run_goes_on_with_the_chain(run):
    lines = lines_of(run)
    write_lines(run, [line for line in lines if line.get("checkpoint") != 7])  # killed before it was written
    assert examine(run).problems == []
    longer = load(run.recipe, ["epochs=3"])
    assert rankless.train(longer, run.path, devices=1, resume=True, inline=True) == 0
    for step in (2, 4, 6, 8, 10):  # as if fewer were kept
        shutil.rmtree(run.step_directory(step))
    found = examine(run)
    assert found.problems == [] and found.sound == [7, 11]
    assert [line.checkpoint for line in found.lines] == [2, 4, 6, 7, 8, 10, 11]
    report = audited(run.path, steps=None)
    assert report.ok and intervals(report) == [(0, 7), (7, 11)]
    shutil.rmtree(run.step_directory(7))
    with pytest.raises(UserError, match="steps 0–11: the recipe changed after step 7, and the checkpoint"):
        audited(run.path)


def test_a_checkpoint_that_is_saved_again_after_a_fallback(run):
    (run.step_directory(7) / "state.json").write_text("{}")
    (problem,) = examine(run).problems
    assert problem.startswith(f"{run.step_directory(7)}: is damaged (")
    more_often = load(run.recipe, ["checkpoint.every=1"])  # so that the line of step 7 is another one
    assert rankless.train(more_often, run.path, devices=1, resume=True, inline=True) == 0
    found = examine(run)
    assert found.problems == [] and [line.checkpoint for line in found.lines] == [2, 4, 6, 7]


def test_a_run_of_an_earlier_version_has_no_chain(run):
    write_lines(run, [line for line in lines_of(run) if "checkpoint" not in line])
    run.data_sums.unlink()
    for step in run.steps():
        folder = run.step_directory(step)
        (folder / chain.NAME).unlink()
        sum_again(folder)
    report = audited(run.path)
    assert report.ok and report.link is None
    assert report.notes == [
        "the checkpoints of steps 2, 4, 6, 7 were saved by an earlier version, without a hash chain"
    ]
    assert rankless.train(load(run.recipe, ["epochs=3"]), run.path, devices=1, resume=True, inline=True) == 0
    found = examine(run)
    assert found.problems == [] and [line.checkpoint for line in found.lines] == [8, 10, 11]
    assert found.notes == [f"{report.notes[0]}; the hash chain starts at step 8"]


def test_another_environment_is_refused_and_another_cpu_unless_the_recipe_sets_cpu_isa(trained, monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Another")
    with pytest.raises(UserError, match="OPENBLAS_CORETYPE was not set in the run and is Another here"):
        audited(trained)
    facts = {"hardware.CPU": "A", "versions.torch": "1", "variables.MKL_CBWR": "AVX2"}
    other = {**facts, "hardware.CPU": "B"}
    assert list(other_facts(facts, other, Recipe())) == ["the CPU was A in the run and is B here"]
    assert list(other_facts(facts, other, Recipe(cpu_isa="avx2"))) == []
    assert list(other_facts(facts, {"versions.torch": "2"}, Recipe())) == [
        "torch was 1 in the run and is 2 here",
        "MKL_CBWR was AVX2 in the run and is not set here",
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_audit(trained, capsys, number):
    said: list[str] = []

    def echo(text: str) -> None:
        said.append(text)
        if "  equal" in text:
            signal.raise_signal(number)

    report = Audit(trained, (), None, 1, echo).repeat(None, seed=1)
    assert report.stopped == number and len(report.results) == 1
    assert f"stopped by {number.name}; {len(report.results)} of 4 intervals compared" in "\n".join(said)
    assert (Interval(6, 7), f"stopped by {number.name}") in report.not_shown
    assert "continue with" not in capsys.readouterr().err
    with Requests() as outer, Requests() as inner:  # as in the training of an interval
        signal.raise_signal(number)
    assert (outer.first, inner.first) == (number, number)


def test_the_commands(run, capsys):
    assert main(["digest", str(run.path), "--chain"]) == 0
    *_, last, conclusion = capsys.readouterr().out.splitlines()
    assert last == f"{lines_of(run)[-2]['link']}  {run.path} step 7 (kept)"
    assert conclusion == "4 checkpoints checked, 0 removed earlier; no problems found"
    forge(run.step_directory(2))
    assert main(["digest", str(run.path), "--chain", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    (run.step_directory(4) / "state.json").write_text("{}")
    assert main(["digest", str(run.path), "--chain"]) == 1
    said = capsys.readouterr().out
    assert "step 2 (exchanged)" in said and "step 4 (damaged)" in said and said.endswith("2 problems found\n")
    assert report["ok"] is False and len(report["problems"]) == 1 and len(report["chain"]) == 4
    for words in ("optim.lr=0.1", "--seed x", "--steps 0", "--all --steps 3", "data.root=/not/there"):
        assert main(["audit", str(run.path), "--devices", "1", *words.split()]) == 2
    said = capsys.readouterr().err
    assert "optim.lr: an audit uses the recipe of the run; expected one of 'data.root'" in said
    assert "--seed is 'x': expected a whole number" in said and "/not/there" in said
    assert main(["audit", os.fspath(run.path / "nothing")]) == 2
    assert "nothing: no such directory; expected a run directory" in capsys.readouterr().err
