"""Damaged images in the data: equal weights on any number of ranks, reported once; too many end the run."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rankless.engine.schedule import StepSchedule
from rankless.engine.unreadable import UnreadableImages
from rankless.recipe.load import load
from rankless.runs import journal
from rankless.runs.directory import RunDirectory
from rankless.structures import Detections, Unreadable
from rankless.tasks import open_task
from support.whole_runs import outcome, work

DAMAGED = (3, 17)
SCORED = 5
STEPS = 6
# Two sizes, mosaics, rectangular batches and views as well: whatever draws an image meets the damaged ones.
WORDS = [
    "batch.images=8",
    "batch.micro=2",
    "epochs=2",
    "evaluate.every=1 epoch",
    "checkpoint.every=100",
    "data.multi_scale=0.5",
    "data.multi_scale_every=3",
    "evaluate.rectangular=true",
    "evaluate.tta=flip",
]


def cut(path: Path) -> None:
    """Leave the header whole, so that opening the data finds nothing wrong."""
    path.write_bytes(path.read_bytes()[:2000])


@pytest.fixture
def damaged(small_recipe: str, tmp_path: Path) -> Path:
    """The recipe of a copy of the small data with two training images and one of validation cut short."""
    before = Path(small_recipe).parent
    folder = tmp_path / "data"
    shutil.copytree(before, folder)
    for name in ("data.yaml", "small.yaml"):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace(str(before), str(folder)))
    for number in DAMAGED:
        cut(folder / "images" / "train" / f"{number:02}.png")
    cut(folder / "images" / "val" / f"{SCORED:02}.png")
    return folder / "small.yaml"


def reported(run: RunDirectory) -> list[str]:
    events = [entry for entry in journal.read(run.journal) if entry.get("event") == "unreadable"]
    return [entry["text"].split(" cannot be read")[0] for entry in events]


@pytest.mark.processes
def test_the_weights_do_not_know_who_met_a_damaged_image(ranks: Any, damaged: Path, tmp_path: Path) -> None:
    words = [str(damaged), *WORDS, "data.max_bad=0.2"]
    (alone,) = ranks(1, work, words, str(tmp_path / "one"))
    assert alone[0] == "True" and len(alone) == 2
    one, two, three = (RunDirectory(tmp_path / name) for name in ("one", "two", "three"))
    # An image that is replaced is no silent error.
    more = ["workers=1", "check.recompute=1"]
    assert ranks(2, work, [*words, *more], str(two.path)) == [alone] * 2
    assert not [entry for entry in journal.read(two.journal) if entry.get("event") == "silent error"]
    # Three ranks that are stopped, and one that goes on.
    assert ranks(3, work, words, str(three.path), False, 4) == [["False"]] * 3
    assert ranks(1, work, words, str(three.path), True, 0)[0][0] == "True"  # its files are compared below
    assert outcome(one) == outcome(two) == outcome(three)
    numbers = journal.numbers(one.journal)
    images = damaged.parent / "images"
    wanted = [images / "train" / f"{n:02}.png" for n in DAMAGED] + [images / "val" / f"{SCORED:02}.png"]
    for run in (one, two, three):
        assert Counter(reported(run)) == Counter(map(str, wanted))  # each once, resumed or not

    lines = [entry for entry in numbers if "step" in entry]
    recipe = load(words[0], words[1:])
    plan = list(StepSchedule(recipe, 21).lines(0, range(4)))
    for number, line in enumerate(lines):
        drawn = [index for each in plan[4 * number : 4 * number + 4] for _, index in each.images]
        assert line.get("replaced", 0) == sum(index in DAMAGED for index in drawn)
    assert {tuple(line["size"]) for line in lines} == {(64, 64), (96, 96)}
    assert all(len({tuple(line["size"]) for line in lines[at : at + 3]}) == 1 for at in range(0, STEPS, 3))
    scores = [entry["scores"] for entry in numbers if "evaluation" in entry]
    assert len(scores) == 2 and all(entry["unreadable"] == 1 for entry in scores)


@pytest.mark.processes
def test_too_many_end_the_run_at_the_same_step_on_every_rank(
    ranks: Any, damaged: Path, tmp_path: Path
) -> None:
    words = [str(damaged), *WORDS, "data.max_bad=0.05", "evaluate.every=0"]  # 1.05 of 21 images
    one, two = (RunDirectory(tmp_path / name) for name in ("one", "two"))
    (alone,) = ranks(1, work, words, str(one.path))
    assert alone[0] == "refused" and len(alone) == 4
    for problem, number in zip(alone[1:3], DAMAGED, strict=True):
        assert problem.startswith(f"{damaged.parent}/images/train/{number:02}.png cannot be read: ")
    assert alone[3].startswith("data.max_bad is 0.05, but 2 of the 21 training images cannot be read; ")
    assert ranks(2, work, words, str(two.path)) == [alone] * 2
    assert outcome(one)[:2] == outcome(two)[:2]
    # The second one met ends it, the step in which it was is whole.
    recipe = load(words[0], words[1:])
    seen: set[int] = set()
    for line in StepSchedule(recipe, 21).lines(0, range(4)):
        seen |= {index for _, index in line.images if index in DAMAGED}
        if len(seen) == 2:
            assert one.pointed("last") == line.step + 1
            break
    shutil.copy(damaged.parent / "images/train/00.png", damaged.parent / f"images/train/{DAMAGED[0]:02}.png")
    shutil.copy(damaged.parent / "images/val/00.png", damaged.parent / f"images/val/{SCORED:02}.png")
    assert ranks(2, work, words, str(one.path), True, 0)[0][0] == "True"  # repaired, it goes on


def test_an_unreadable_image_enters_no_score(damaged: Path) -> None:
    """Perfect answers to all others score 1, although the unreadable one's boxes were not found."""
    task = open_task(load(str(damaged), WORDS))
    data: Any = task.evaluation_data()
    truths = [data.ground_truth(index) for index in range(len(data))]
    right = [Detections(i, t.boxes, torch.ones(len(t.labels)), t.labels) for i, t in enumerate(truths)]
    none = Detections(SCORED, torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.int64))
    assert len(truths[SCORED].labels)
    perfect = [replace(none, unreadable=True) if i == SCORED else one for i, one in enumerate(right)]
    assert task.score(perfect)["AP"] == 1
    missed = [none if i == SCORED else one for i, one in enumerate(right)]
    assert task.score(missed)["AP"] < 1
    model = task.model().eval()
    found = task.predict(model, task.collate([data.item(index, 0) for index in (4, SCORED)]))
    assert [one.unreadable for one in found] == [False, True]


def test_more_than_the_share_are_too_many_and_twenty_are_named() -> None:
    def met(count: int) -> UnreadableImages:
        made = UnreadableImages(1000, 0.025)
        made.restore({"trained": [[n, f"{n:03}.jpg", "cut short"] for n in range(count)], "scored": []})
        return made

    assert not met(25).too_many()
    full = met(25)
    full.trained[99] = Unreadable(99, "099.jpg", "cut short")
    sentences = full.too_many()
    assert sentences[:2] == ["000.jpg cannot be read: cut short", "001.jpg cannot be read: cut short"]
    assert sentences[20] == "… and 6 more" and sentences[21].startswith(
        "data.max_bad is 0.025, but 26 of the 1000 "
    )
    assert len(sentences) == 22
    assert not met(26).trained  # a run that ended for them starts counting again when it resumes
    assert full.score([Unreadable(4, "v.jpg", "gone")]) == [Unreadable(4, "v.jpg", "gone")]
    assert full.score([Unreadable(4, "v.jpg", "gone")]) == []
    again = UnreadableImages(1000, 0.5)
    again.restore(full.as_json())
    assert (again.trained, again.scored) == (full.trained, full.scored)
