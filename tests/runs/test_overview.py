"""A list of runs: what each journal and checkpoint says, and the digest that PyTorch would compute."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from rankless import UserError, cli
from rankless.files import checksums
from rankless.launch.opening import record_death
from rankless.launch.rounds import Death
from rankless.models.weights_files.weights import digest_file
from rankless.runs import journal
from rankless.runs.directory import RunDirectory
from rankless.runs.overview import find, overview
from rankless.runs.scoring import is_better, name_of_best
from rankless.runs.weights_digest import of_weights

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint8, torch.bool,
)  # fmt: skip


def test_the_digest_is_the_one_that_is_computed_of_tensors(tmp_path: Path) -> None:
    state = {f"{number}.w": torch.arange(6).to(dtype).reshape(2, 3) for number, dtype in enumerate(DTYPES)}
    state |= {"a": torch.tensor(3.0), "none": torch.zeros(0, 4), "large": torch.rand(600, 1000)}
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file(state, path, {"format": "someone's"})
    assert of_weights(path) == digest_file(path)
    path.write_bytes(path.read_bytes()[:-1])
    assert of_weights(path) is None
    safetensors.torch.save_file(state | {"a": torch.tensor(4.0)}, path)
    assert of_weights(path) == digest_file(path)
    (tmp_path / checksums.NAME).write_text(checksums.text({path.name: "0" * 64}))
    with pytest.raises(UserError, match="is damaged"):
        digest_file(path)
    assert of_weights(path) is None, "one judgement for both"
    path.write_bytes(b"\xff" * 100)
    assert of_weights(path) is None and of_weights(tmp_path / "gone") is None


def a_run(path: Path, *entries: dict[str, Any], best: float | None = None) -> RunDirectory:
    run = RunDirectory(path)
    path.mkdir(parents=True)
    run.recipe.write_text("task: detect\nepochs: 3\n")
    run.journal.write_bytes(b"".join(map(journal.line, entries)))
    os.utime(run.journal, (0, 0))  # nobody has written to it for long
    if best is not None:
        folder = run.step_directory(2)
        folder.mkdir(parents=True)
        state = {"step": 2, "images": 7, "best": {"step": 2, "score": best}}
        (folder / "state.json").write_text(json.dumps(state))
        safetensors.torch.save_file({"w": torch.ones(2)}, folder / "model.safetensors")
        sums = {path.name: checksums.of_file(path) for path in folder.iterdir()}
        (folder / checksums.NAME).write_text(checksums.text(sums))
        run.point("best", 2)
    return run


def step(number: int) -> dict[str, Any]:
    return {"step": number, "epoch": round(number * 4 / 7, 6), "loss": 1.0, "timing": {"seconds": 0.25}}


START = {"event": "start", "at": 0}


@pytest.mark.parametrize(
    ("entries", "state"),
    [
        ([START], "new"),
        ([START, step(1)], "interrupted"),
        ([START, step(1), {"event": "end", "at": 1}], "finished"),
        ([START, step(1), {"event": "stop", "at": 1}], "stopped"),
        ([START, step(1), {"event": "error", "at": 1}], "failed"),
        ([START, step(1), {"event": "death", "at": 1}], "died"),
        ([START, step(1), {"event": "end", "at": 1}, {"event": "resume", "at": 1}, step(2)], "interrupted"),
    ],
)
def test_the_state_follows_from_the_last_event(tmp_path, entries, state):
    assert overview(a_run(tmp_path / "run", *entries), {}).state == state


def test_a_run_in_one_line(tmp_path, capsys):
    scores = {"evaluation": 2, "scores": {"loss": 3.0, "AP": 0.5}}
    run = a_run(tmp_path / "runs" / "one", START, step(1), step(2), scores, best=0.5)
    a_run(tmp_path / "runs" / "group" / "two", START)
    for name in ("else", "far"):
        (tmp_path / "runs" / name).mkdir()
    (tmp_path / "runs" / "far" / "detached.json").write_text('{"host": "gpu1:4"}')
    seen = overview(run, {"epochs": 3})
    # 7 images, 4 in a step: 21 / 4 steps
    assert (seen.step, seen.steps, seen.score_name, seen.score, seen.best_step) == (2, 6, "AP", 0.5, 2)
    assert seen.seconds == 0.5
    assert seen.digest == digest_file(run.step_directory(2) / "model.safetensors")
    assert {one.path.name for one in find(tmp_path / "runs")} == {"one", "two", "far"}
    assert cli.main(["runs", str(tmp_path / "runs")]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["state", "step", "(saved)", "score", "digest", "time", "run"]
    by_name = {Path(line.split()[-1]).name: line.split() for line in lines}
    assert by_name["one"][:-1] == ["interrupted", "2/6", "AP", "0.5000", str(seen.digest)[:12], "0:00:00"]
    assert by_name["two"][:2] == ["new", "–"] and by_name["far"][:2] == ["on", "gpu1"]
    assert all(len(line.removesuffix(line.split()[-1])) < 70 for line in lines)
    a_run(tmp_path / "runs" / "three", START, step(1), step(2), step(3), scores, best=0.5)
    assert cli.main(["runs", str(tmp_path / "runs" / "three")]) == 0
    assert "  3/6 (2)  " in capsys.readouterr().out
    assert cli.main(["runs", str(run.path), "--json"]) == 0
    (plain,) = json.loads(capsys.readouterr().out)
    assert plain["digest"] == seen.digest and plain["saved"] == 2 and plain["run"] == str(run.path)


def test_the_scores_of_many_classes_hide_neither_the_step_nor_the_score(tmp_path, capsys):
    scores = {"AP": 0.5, "per_class": {f"class {number}": 0.5 for number in range(20_000)}}
    run = a_run(tmp_path / "run", START, step(1), step(2), {"evaluation": 2, "scores": scores}, best=0.5)
    assert run.journal.stat().st_size > 1 << 18 and journal.last_step(run.journal) == 2
    assert "its launcher was killed" in str(journal.ending(run.journal))
    with run.journal.open("a") as file:
        file.write('{"evaluation":4,"scores":{"' + "x" * 10**6)  # killed in the middle of it
    record_death(run, Death(1, -9, "rank 1 was killed by SIGKILL"))
    *_, death = journal.read(run.journal)
    assert (death["event"], death["at"]) == ("death", 2)
    assert cli.main(["runs", str(tmp_path)]) == 0
    (line,) = capsys.readouterr().out.splitlines()[1:]
    assert line.split()[:4] == ["died", "2/6", "AP", "0.5000"] and "–" not in line


def test_without_checkpoints_the_journal_has_the_best_score(tmp_path: Path) -> None:
    scores = [{"evaluation": at, "scores": {"AP": ap, "loss": 1.0}} for at, ap in ((2, 0.5), (4, 0.25))]
    seen = overview(a_run(tmp_path / "run", START, step(1), *scores), {})
    assert (seen.score_name, seen.score, seen.best_step, seen.digest) == ("AP", 0.5, 2, None)


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").touch()  # in an empty folder a training may begin
    for words, code, said in (
        (["runs", str(tmp_path / "gone")], 2, "no such folder; expected a folder of runs"),
        (
            ["watch", str(tmp_path)],
            2,
            "is not a run directory (no recipe.yaml); expected a run directory or H",
        ),
        (["runs", str(tmp_path)], 0, "no runs here; to start one: rankless train digits"),
    ):
        assert cli.main(words) == code
        assert said in "".join(capsys.readouterr())


def test_which_score_is_the_best() -> None:
    assert name_of_best("auto", {"loss": 1.0, "AP": 0.1, "AP50": 0.2}) == "AP"
    assert name_of_best("auto", {"loss": 1.0, "IoU": 0.1}) == "IoU"
    assert name_of_best("nll", {"nll": 1.0}) == "nll"
    assert name_of_best("nll", {"AP": 1.0}) is None and name_of_best("auto", {"n": 3}) is None
    assert is_better("loss", 1.0, 2.0) and is_better("AP", 2.0, 1.0) and is_better("AP", 0.0, None)
    assert not is_better("nll", 2.0, 1.0)
