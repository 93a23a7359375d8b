"""Machines without a common disk: each keeps a copy of the run, and any of them may be lost.

A machine is a run directory of its own and the ranks that see it.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from rankless.engine import checkpoint, loop
from rankless.engine.mirrors import find
from rankless.errors import UserError
from rankless.hardware.computing import computes_like
from rankless.models.weights_files.weights import digest_file
from rankless.recipe.load import changed, default, dump
from rankless.recipe.schema import Batch, Checkpoint, Ema, Evaluate, Optim, Recipe
from rankless.runs import chain, journal
from rankless.runs.directory import RunDirectory, damage
from rankless.world.process_group import World
from support.small_disk import fill, small_disk
from support.small_task import Regression

pytestmark = pytest.mark.processes

STEPS, BEST = 12, 2
FILES = ("model.safetensors", "ema.safetensors", "training.safetensors")
RECIPE = Recipe(
    batch=Batch(images=8, micro=2),
    epochs=6,
    precision="fp32",
    optim=Optim(lr=0.01),
    ema=Ema(decay=0.9),
    evaluate=Evaluate(every="1 epoch"),  # an epoch is two steps
    checkpoint=Checkpoint(every=2, keep=2),
)


class Line(Regression):
    """The score falls from step to step, so the first is the best."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))


class Crashed(Exception):  # noqa: N818  # on purpose
    pass


def train(world: World, machines: list[list[Any]], how: dict[str, Any] | None = None) -> dict[str, Any]:
    """Train as a rank of ``machines``: (run directory, number of ranks) each. How it ended, and its saves.

    What may be in ``how``: ``crash`` after a step; ``stop`` in a step; ``full``: (rank, step) after which the
    rank's disk is; ``refuse``: no rank can save; ``change``: words for the recipe; ``roots`` of the data.
    """
    how = how or {}
    places = [(number, local) for number, (_, count) in enumerate(machines) for local in range(count)]
    number, local = places[world.rank]
    folder = machines[number][0]
    here = dataclasses.replace(world, local_rank=local)
    saved: list[int] = []
    original, stop = checkpoint.save, loop.StopRequest()

    def save(run: RunDirectory, snapshot: Any, *rest: Any) -> None:
        if how.get("refuse"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(run, snapshot, *rest)
        saved.append(snapshot.step)

    def observe(step: int, *_: Any) -> None:
        if how.get("full") == [world.rank, step]:
            while step - 1 not in saved:  # a thread may still be writing that step
                time.sleep(0.01)
            fill(Path(folder).parent)
        if how.get("crash") == step:
            raise Crashed
        stop.signal = int(how.get("stop") == step + 1)

    root = [f"data.root={how['roots'][number]}"] if "roots" in how else []
    recipe = changed(RECIPE, [*how.get("change", ()), *root])
    checkpoint.save = save
    try:
        with computes_like(recipe):
            run = RunDirectory(Path(folder))
            done = loop.train(recipe, run, here, resume=True, task=Line(), observe=observe, stop=stop)
    except (UserError, Crashed) as error:
        return {"end": str(error), "saved": saved}
    finally:
        checkpoint.save = original
    return {"end": done, "saved": saved}


def digests(folder: Path) -> dict[str, str]:
    last = RunDirectory(folder).step_directory(STEPS)
    return {name: digest_file(last / name) for name in FILES}


def files(folder: Path) -> dict[str, bytes]:
    root = RunDirectory(folder).checkpoints
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def events(folder: Path, name: str) -> list[str]:
    return [e["text"] for e in journal.read(RunDirectory(folder).journal) if e.get("event") == name]


def is_complete(folder: Path, whole: Path) -> None:
    """A copy from which any machine could go on, equal to that of the undisturbed run."""
    assert digests(folder) == digests(whole)
    assert journal.numbers(folder / "journal.jsonl") == journal.numbers(whole / "journal.jsonl")
    assert (folder / "recipe.yaml").exists() and (folder / "environment.json").exists()
    run = RunDirectory(folder)
    assert run.pointed("last") == STEPS and run.pointed("best") == BEST
    assert all(damage(run.step_directory(step)) is None for step in run.steps())
    assert run.steps() == RunDirectory(whole).steps()
    assert chain.read(run).problems == [] and chain.read(run).sound == run.steps()


@pytest.fixture(scope="module")
def whole(ranks: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    folder.mkdir()
    (folder / "recipe.yaml").touch()  # the launcher's
    (answer,) = ranks(1, train, [[str(folder), 1]])
    assert answer["end"] is True
    return folder


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    """The run directories of two machines; the launcher has written the recipe on the first."""
    folders = [tmp_path / "a" / "run", tmp_path / "b" / "run"]
    folders[0].mkdir(parents=True)
    (folders[0] / "recipe.yaml").write_text(dump(default(["epochs=6"])))
    return folders


def both(two: list[Path], *counts: int) -> list[list[Any]]:
    return [[str(folder), count] for folder, count in zip(two, counts, strict=True)]


def test_every_machine_keeps_the_same_copy(ranks: Any, two: list[Path], whole: Path) -> None:
    answers = ranks(3, train, both(two, 2, 1), {"roots": ["/first", "/second"]})
    assert [answer["end"] for answer in answers] == [True] * 3
    assert [bool(answer["saved"]) for answer in answers] == [True, False, True]
    assert files(two[0]) == files(two[1])
    assert ["/first" in (f / "recipe.yaml").read_text() for f in two] == [True, False]
    for folder in two:
        is_complete(folder, whole)
    assert (two[0] / "journal.jsonl").read_bytes() == (two[1] / "journal.jsonl").read_bytes()
    assert (two[0] / "environment.json").read_bytes() == (two[1] / "environment.json").read_bytes()
    assert not [path for folder in two for path in folder.glob(".*")]


def test_on_a_shared_file_system_nothing_is_written_twice(ranks: Any, tmp_path: Path, whole: Path) -> None:
    folder, other = tmp_path / "run", tmp_path / "mounted elsewhere"
    folder.mkdir()
    (folder / "recipe.yaml").touch()
    other.symlink_to(folder)
    answers = ranks(2, train, [[str(folder), 1], [str(other), 1]])
    assert [bool(answer["saved"]) for answer in answers] == [True, False]
    is_complete(folder, whole)
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_lost_machine_is_not_missed_and_taken_back(ranks: Any, two: list[Path], whole: Path) -> None:
    """That of rank 0 is lost for good after a step that was not saved; later an empty one takes its part."""
    first = ranks(2, train, both(two, 1, 1), {"crash": 7})
    assert all("saved" in answer and answer["end"] == "" for answer in first)
    shutil.rmtree(two[0])
    (alone,) = ranks(1, train, [[str(two[1]), 1]], {"crash": 9})
    assert alone["saved"] == [8]
    answers = ranks(3, train, both(two, 1, 2))
    assert [answer["end"] for answer in answers] == [True] * 3
    assert answers[0]["saved"][:2] == [BEST, 8]
    for folder in two:
        is_complete(folder, whole)
        assert any("step 8 was copied from" in text for text in events(folder, "copy"))
    assert len((two[0] / "environment.json").read_text().split('"after_step"')) == 4


def test_why_the_last_start_ended_is_known_on_every_machine(ranks: Any, two: list[Path], whole: Path) -> None:
    seldom = {"change": ["checkpoint.every=9"]}
    ranks(2, train, both(two, 1, 1), {"stop": 3, **seldom})
    ranks(2, train, both(two, 1, 1), {"crash": 5, **seldom})
    shutil.rmtree(two[0])
    ranks(1, train, [[str(two[1]), 1]], seldom)
    reasons = [e["reason"] for e in journal.read(two[1] / "journal.jsonl") if e.get("event") == "resume"]
    assert reasons[0] == "it stopped on request after step 3"
    assert "its launcher was killed" in reasons[1]
    assert digests(two[1]) == digests(whole)


@pytest.mark.parametrize("told", [None, "lost c (no answer)"])
def test_a_first_machine_that_was_away_knows_why_the_others_ended(
    told: str | None, ranks: Any, two: list[Path]
) -> None:
    """Its own copy of the journal ends where it was lost, but for what the launcher adds before a start."""
    ranks(2, train, both(two, 1, 1), {"stop": 3})
    ranks(2, train, both(two, 1, 1), {"crash": 5})
    ranks(1, train, [[str(two[1]), 1]], {"stop": 9})
    if told:
        journal.append(two[0] / "journal.jsonl", event="death", at=9, text=told)
    ranks(2, train, both(two, 1, 1))
    reasons = [e["reason"] for e in journal.read(two[0] / "journal.jsonl") if e.get("event") == "resume"]
    assert reasons[-1] == (told or "it stopped on request after step 9")


@pytest.mark.parametrize("where", [0, 1])
def test_a_damaged_copy_is_replaced_by_another_machines(
    ranks: Any, two: list[Path], whole: Path, where: int
) -> None:
    ranks(2, train, both(two, 1, 1), {"crash": 7})
    run = RunDirectory(two[where])
    torn = run.step_directory(6) / "training.safetensors"
    torn.write_bytes(torn.read_bytes()[:-7] + b"damaged")
    if where:
        (run.step_directory(BEST) / "model.safetensors").unlink()
    answers = ranks(2, train, both(two, 1, 1))
    assert answers[where]["saved"] == [*([BEST] if where else []), 6, 8, 10, 12]
    assert answers[1 - where]["saved"] == [8, 10, 12]
    for folder in two:
        is_complete(folder, whole)
        assert any("is damaged (wrong checksum" in text for text in events(folder, "warning"))


def test_the_best_checkpoint_is_copied_with_the_recipe_it_was_trained_with(
    ranks: Any, two: list[Path]
) -> None:
    """That run had fewer epochs, and the machine that lacks its best gets the bytes of the other."""
    ranks(2, train, both(two, 1, 1), {"change": ["epochs=3"]})
    ranks(2, train, both(two, 1, 1), {"change": ["epochs=4"]})
    best = RunDirectory(two[0]).step_directory(BEST)
    before = {path.name: path.read_bytes() for path in best.iterdir()}
    shutil.rmtree(RunDirectory(two[1]).step_directory(BEST))
    ranks(2, train, both(two, 1, 1), {"change": ["epochs=5"]})
    copy = RunDirectory(two[1]).step_directory(BEST)
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before


@pytest.mark.parametrize(("where", "what"), [(0, "damaged"), (1, "damaged"), (0, "lost")])
def test_damage_on_one_machine_reaches_no_whole_copy(
    ranks: Any, two: list[Path], whole: Path, where: int, what: str
) -> None:
    """Zeros in the journal and in the record of the starts, or both are gone."""
    ranks(2, train, both(two, 1, 1), {"crash": 7})
    run = RunDirectory(two[where])
    lines = run.journal.read_bytes().splitlines(keepends=True)
    lines[3] = b"\0" * len(lines[3][:-1]) + b"\n"
    record = run.environment.read_bytes().replace(b'"host"', bytes(6))
    hurt = {run.journal: b"".join(lines), run.environment: record}
    for path, content in hurt.items():
        path.write_bytes(content) if what == "damaged" else path.unlink()
    ranks(3, train, both(two, 2, 1))
    kept = {path: path.with_name(f"{path.name}.replaced-1") for path in hurt}
    for folder in two:
        is_complete(folder, whole)
        assert len(json.loads((folder / "environment.json").read_text())) == 2
        said = events(folder, "warning")
        assert not any("left out" in text or "cannot be read" in text for text in said)
        told = [
            path
            for path in hurt
            if any(f"{path} was replaced with the copy from rank" in text for text in said)
        ]
        assert told == (list(hurt) if what == "damaged" else [])
    assert {path: kept[path].read_bytes() for path in hurt if kept[path].exists()} == (
        hurt if what == "damaged" else {}
    )
    assert not list(two[1 - where].glob("*.replaced-*"))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_full_disk_on_one_machine_does_not_end_the_run(
    ranks: Any, tmp_path: Path, whole: Path, rank: int
) -> None:
    """The first rank's, too; what it missed it gets when there is room."""
    with small_disk(tmp_path / "small", 512) as disk:
        folders = [tmp_path / "large" / "run", disk / "run"]
        two = folders[::-1] if rank == 0 else folders
        two[0].mkdir(parents=True)
        (two[0] / "recipe.yaml").touch()
        answers = ranks(2, train, both(two, 1, 1), {"full": [rank, 5]})
        assert [answer["end"] for answer in answers] == [True, True]
        assert answers[rank]["saved"] == [2, 4] and answers[1 - rank]["saved"] == [2, 4, 6, 8, 10, 12]
        is_complete(folders[0], whole)
        (message,) = events(folders[0], "not saved")
        assert f"rank {rank} on" in message and "step 6 could not be written" in message
        assert RunDirectory(disk / "run").pointed("last") == 4
        (disk / "filler").unlink()
        answers = ranks(2, train, both(two, 1, 1))
        assert answers[rank]["saved"] == [12] and answers[1 - rank]["saved"] == []
        assert digests(disk / "run") == digests(whole)
        numbers = journal.numbers(whole / "journal.jsonl")
        assert journal.numbers(disk / "run" / "journal.jsonl") == numbers


def test_a_save_that_no_machine_can_write_ends_all_ranks_alike(ranks: Any, two: list[Path]) -> None:
    answers = ranks(2, train, both(two, 1, 1), {"refuse": True})
    ends = [answer["end"].replace(str(folder), "RUN") for answer, folder in zip(answers, two, strict=True)]
    assert ends[0] == ends[1]
    for rank in range(2):
        assert f"rank {rank} on {os.uname().nodename}: the checkpoint of step 12" in answers[0]["end"]
    assert "make room" in answers[0]["end"]


def test_another_run_on_one_machine_is_not_touched(ranks: Any, two: list[Path], tmp_path: Path) -> None:
    ranks(1, train, [[str(two[1]), 1]], {"crash": 7, "change": ["seed=5"]})
    before = files(two[1])
    answers = ranks(2, train, both(two, 1, 1))
    assert answers[0] == answers[1] and answers[0]["saved"] == []
    assert f"{two[1]} contains a run whose recipe has other values of seed; remove" in answers[0]["end"]
    assert files(two[1]) == before


def keepers(world: World, machines: list[list[Any]]) -> list[Any]:
    places = [(folder, local) for folder, count in machines for local in range(count)]
    folder, local = places[world.rank]
    mirrors = find(dataclasses.replace(world, local_rank=local), RunDirectory(Path(folder)))
    return [list(mirrors.keepers), mirrors.several, list(mirrors.problems)]


def test_some_machines_share_a_disk_and_some_do_not(ranks: Any, tmp_path: Path) -> None:
    a, b, missing = str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "file" / "run")
    (tmp_path / "file").touch()  # in the folder's place
    answers = ranks(4, keepers, [[a, 1], [b, 1], [a, 1], [missing, 1]])
    assert [answer[:2] for answer in answers] == [[[0, 1, 0, None], True]] * 4
    assert all("has no copy of the run: " in answer[2][0] for answer in answers)
    assert not list(Path(a).iterdir()) and not list(Path(b).iterdir())
