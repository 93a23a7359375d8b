"""A run writes into a directory of its own, or into an empty one."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankless import UserError, load_recipe, train
from rankless.launch.run_lock import locked
from rankless.runs.directory import RunDirectory

SAYS = r"is not a run directory, but contains '.*; use another --run|nothing to resume"
STRANGERS = (
    "recipe.yaml",
    "environment.json",
    "journal.jsonl",
    ".lock",
    ".job/job.json",
    "logs/1",
    "checkpoints/step-000000001/x",
)


def planted(folder: Path, *names: str) -> dict[Path, str]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("epochs: 3\n")
    return contents(folder)


def contents(folder: Path) -> dict[Path, str]:
    return {path: path.read_text() if path.is_file() else "" for path in folder.rglob("*")}


@pytest.mark.parametrize("names", [("notes.txt",), *((name,) for name in STRANGERS), STRANGERS])
@pytest.mark.parametrize("resume", [False, True])
def test_a_strangers_files_are_never_replaced(tmp_path, names, resume):
    before = planted(tmp_path, *names, ".theirs.tmp")
    with pytest.raises(UserError, match=SAYS) as error:
        train(load_recipe("digits"), tmp_path, devices=1, resume=resume)
    assert contents(tmp_path) == before
    if not resume:
        assert all(f"'{name.split('/')[0]}'" in str(error.value) for name in names), "all of them"


def test_the_output_of_the_job_itself_may_lie_there(tmp_path):
    before = planted(tmp_path, "4711.out", "4711.err", "job.log")
    with locked(RunDirectory(tmp_path), resume=False):
        pass
    assert before.items() <= contents(tmp_path).items()


def test_nor_through_a_link(tmp_path):
    theirs, run = tmp_path / "theirs", tmp_path / "run"
    before = planted(theirs, "log", "lock")
    run.mkdir()
    (run / ".lock").symlink_to(theirs / "lock")
    (run / "logs").symlink_to(theirs)
    with pytest.raises(
        UserError, match=r"is not a run directory, but contains '.lock', 'logs'; expected a run"
    ):
        train(load_recipe("digits"), run, devices=1)
    assert contents(theirs) == before and (run / ".lock").is_symlink()


def test_a_directory_is_a_runs_by_its_mark_and_by_what_an_earlier_version_recorded(tmp_path):
    run = RunDirectory(tmp_path / "run")
    for again in range(3):
        with locked(run, resume=False):
            assert (run.path / ".lock").read_text() == "rankless run\n"
            run.recipe.write_text("")
            run.environment.write_text('{"versions": {"rankless": "0.0.1"}}')
        if again:
            (run.path / ".lock").write_text("")
    run.environment.write_text("{}")
    with pytest.raises(UserError, match="not a run directory"), locked(run, resume=True):
        pass


def test_a_training_under_way_is_named_before_what_it_has_saved(tmp_path):
    """``--resume`` would not help while another process trains there."""
    run = RunDirectory(tmp_path / "run")
    with locked(run, resume=False):
        run.step_directory(3).mkdir(parents=True)
        with (
            pytest.raises(UserError, match="another process is training in this directory"),
            locked(run, False),
        ):
            pass
    with pytest.raises(UserError, match=r"already contains a run .*--resume"), locked(run, False):
        pass


@pytest.mark.parametrize("kind", ["file", "broken link"])
def test_what_cannot_be_a_run_directory_is_called_what_it_is(kind: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    if kind == "file":
        run.touch()
    else:
        run.symlink_to(tmp_path / "nowhere")
    with (
        pytest.raises(
            UserError, match=rf"run: cannot be used as a run directory \(.*run is a {kind}.*\); use another"
        ),
        locked(RunDirectory(run), resume=False),
    ):
        pass
