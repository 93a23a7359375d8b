"""Runs whose own files were damaged: one sentence, no restart, nothing rewritten before all is checked."""

from __future__ import annotations

import signal

import pytest

from rankless.errors import HARMFUL
from support.faults.harness import Run, outcome

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]


def test_damage_on_the_way_to_a_resumption(tmp_path, expected):
    """One run is hurt again and again, because each start of processes takes seconds."""
    folder = tmp_path / "run"
    with Run(folder, 1, environment={"FAULT_SLEEP": "0.05"}) as run:
        run.until(lambda: (run.run.pointed("last") or 0) >= 6)
        run.process.send_signal(signal.SIGTERM)
        run.ends(85)
    directory = run.run
    recipe = directory.recipe.read_text()
    # All checkpoints are damaged: the run ends before the first step, and its recipe stays as it was.
    last = directory.pointed("last")
    files = [directory.step_directory(step) / "state.json" for step in directory.steps()]
    kept = [file.read_bytes() for file in files]
    for file in files:
        file.write_bytes(b"[" * 100_000)
    with Run(folder, 1, "--resume", "epochs=9") as run:
        said = run.ends(2)
    assert "with model.pretrained=FILE" in said.splitlines()[-1] and "restarting" not in said
    assert directory.recipe.read_text() == recipe and directory.pointed("last") == last
    for file, content in zip(files, kept, strict=True):
        file.write_bytes(content)
    # The recipe is cut, the journal holds rubbish, and `last` and `best` are no text.
    directory.recipe.write_text(recipe[: len(recipe) // 3])
    with directory.journal.open("ab") as file:
        file.write(b'{"step": {}}\n' + b"[" * 100_000 + b"\n" + bytes(range(256)) + b"\n")
    for name in ("last", "best"):
        (directory.checkpoints / name).write_bytes(b"\xff\xfe")
    with Run(folder, 1, "--resume") as run:
        said = run.ends(0)
    assert f"warning: {directory.recipe}: is damaged (" in said and ": removed " in said
    assert directory.recipe.read_text() == recipe
    assert (folder / "recipe.yaml.replaced-1").read_text() == recipe[: len(recipe) // 3]
    assert outcome(folder) == expected
    assert (folder / "journal.jsonl.replaced-1").is_file()


def test_a_recipe_that_is_gone_is_restored_from_the_checkpoint(tmp_path, expected):
    """In a folder whose name would color the terminal and turn the line around."""
    folder = tmp_path / "\x1b[31mrun\u202e"
    with Run(folder, 1, environment={"FAULT_SLEEP": "0.05"}) as run:
        run.until(lambda: (run.run.pointed("last") or 0) >= 6)
        run.process.send_signal(signal.SIGTERM)
        said = run.ends(85)
    recipe = run.run.recipe.read_text()
    run.run.recipe.unlink()
    with Run(folder, 2, "--resume") as run:
        said += run.ends(0)
    assert "recipe.yaml: is missing; using the recipe in the newest checkpoint" in said
    assert run.run.recipe.read_text() == recipe
    assert outcome(folder) == expected
    assert said.count("\\x1b[31mrun\\u202e") >= 4 and not HARMFUL.search(said.replace("\n", ""))
