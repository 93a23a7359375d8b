"""Single bits that flip in one rank: what ``check.recompute`` finds, and what it does then."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankless.runs import journal
from support.faults.harness import Run, finish, outcome

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]
# Every second step, each rank first computes one micro-batch more. Passes of ranks 1 and 2 of three, with one
# each: 1 | 2, 3 | 4 | 5, 6 | 7 | 8, 9. Of two: 1, 2 | 3, 4, 5 | 6, 7 | 8, 9, 10. Of one: 1 to 4 | 5 to 9.
EVERY = "check.recompute=2"


def disturbed(
    folder: Path, world: int, flip: str, rank: int, *words: str, code: int = 0
) -> tuple[str, list[str], list[str]]:
    """What a person saw, the silent errors and the deaths of a run in which a bit flips."""
    with Run(folder, world, EVERY, *words, environment={"FAULT_FLIP": flip, "FAULT_RANK": str(rank)}) as run:
        said = run.ends(code)
        events = [[event["text"] for event in run.events(name)] for name in ("silent error", "death")]
        return said, *events


@pytest.mark.parametrize(
    ("world", "flip", "rank", "step"),
    [(3, "gradient 3", 1, 2), (3, "image 5", 2, 4), (2, "image 3", 0, 2), (1, "gradient 5", 0, 2)],
)
def test_a_step_in_which_a_bit_flips_is_repeated(tmp_path, expected, world, flip, rank, step):
    """In what a rank adds, or in what it recomputes."""
    text, (error,), deaths = disturbed(tmp_path / "run", world, flip, rank)
    assert not deaths and error.startswith(f"step {step}: rank {rank} on ")
    assert "(CPU) differs from other" in error or world == 1
    assert error.endswith("; the difference disappeared when the step was repeated, so training continues")
    assert f"warning: {error}" in text
    assert "; results were recomputed in 10 steps and differed in 1 of them" in text
    assert outcome(tmp_path / "run") == expected
    assert error in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_the_run_goes_on_without_a_device_that_keeps_a_wrong_weight(tmp_path, expected):
    """A weight flips in step 5, after the checkpoint of step 3; step 6 is checked."""
    text, (error,), (death,) = disturbed(tmp_path / "run", 3, "weight 7", 2, "check.exclude=true")
    assert error.startswith("step 6: rank 2 on ")
    assert error.endswith(" and the weights; the results also differed when the step was repeated")
    assert death.startswith("rank 2 on ")
    assert death.endswith(" is excluded after a silent error in step 6")
    assert f"{death}; restarting from the newest checkpoint" in text
    entries = journal.read(tmp_path / "run" / "journal.jsonl")
    assert [entry["world_size"] for entry in entries if "world_size" in entry] == [3, 2]
    assert outcome(tmp_path / "run") == expected


@pytest.mark.parametrize(
    ("world", "flip", "said"),
    [
        (3, "gradient 5 on", "step 4 was not applied, because the results of rank 1 on "),
        (2, "weight 8", "step 4 was not applied, because it is unknown which results of rank 0 on "),
    ],
)
def test_a_run_ends_if_the_error_repeats(tmp_path, world, flip, said):
    text, (error,), deaths = disturbed(tmp_path / "run", world, flip, 1, code=2)
    assert not deaths and error.endswith("the results also differed when the step was repeated")
    again = "error: the checkpoint of step 3 is complete; continue from it with: rankless train --resume"
    assert said in text and again in text


def test_threads_end_where_a_device_is_to_be_left_out(tmp_path, expected):
    words = ("check.exclude=true", "--parallel", "threads")
    text, (_,), _ = disturbed(tmp_path / "run", 2, "image 8", 1, *words, code=2)
    assert "error: step 4 was not applied, because the results of rank 1 on " in text
    assert finish(tmp_path / "run", 1) == expected


@pytest.mark.parametrize(("world", "flip"), [(1, "weight 5"), (2, "gradient 1")])
def test_what_no_check_finds(tmp_path, expected, world, flip):
    """A weight of a rank alone, which computes with it both times, and a step that is not checked."""
    _, errors, _ = disturbed(tmp_path / "run", world, flip, 0)
    assert not errors
    assert outcome(tmp_path / "run")["model"] != expected["model"]
