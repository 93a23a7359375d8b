"""Runs whose own files were damaged: one sentence, no restart, nothing rewritten before all is checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness_for_faults import Run, outcome

from rankless.errors import HARMFUL

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]


def test_damage_on_the_way_to_a_resumption(tmp_path: Path, expected: dict[str, Any]) -> None:
    """One run is hurt again and again, because each start of processes takes seconds."""
    folder = tmp_path / "run"
    with Run(folder, 1, environment={"FAULT_SLEEP": "0.05"}) as run:
        run.until(lambda: (run.run.pointed("last") or 0) >= 6)
        run.process.terminate()
        assert run.wait() == 85, run.text()
        run.gone()
    directory = run.run
    recipe = directory.recipe.read_text()
    # All checkpoints are damaged: the run ends before the first step, and its recipe stays as it was.
    last = directory.pointed("last")
    files = [directory.step_directory(step) / "state.json" for step in directory.steps()]
    kept = [file.read_bytes() for file in files]
    for file in files:
        file.write_bytes(b"[" * 100_000)
    with Run(folder, 1, "--resume", "epochs=9") as run:
        assert run.wait() == 2, run.text()
        run.gone()
        assert "add model.pretrained=FILE" in run.text().splitlines()[-1]
        assert "restarting" not in run.text() and not run.noise(), run.text()
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
        assert run.wait() == 0, run.text()
        run.gone()
        assert f"warning: {directory.recipe}: is damaged (" in run.text()
        assert "damaged lines were removed" in run.text() and not run.noise(), run.text()
    assert directory.recipe.read_text() == recipe
    assert (folder / "recipe.yaml.replaced-1").read_text() == recipe[: len(recipe) // 3]
    assert outcome(folder) == expected
    assert (folder / "journal.jsonl.replaced-1").is_file()


def test_a_recipe_that_is_gone_is_restored_from_the_checkpoint(
    tmp_path: Path, expected: dict[str, Any]
) -> None:
    """In a folder whose name would color the terminal and turn the line around."""
    folder = tmp_path / "\x1b[31mrun\u202e"
    with Run(folder, 1, environment={"FAULT_SLEEP": "0.05"}) as run:
        run.until(lambda: (run.run.pointed("last") or 0) >= 6)
        run.process.terminate()
        assert run.wait() == 85, run.text()
        run.gone()
        said = run.text()
    recipe = run.run.recipe.read_text()
    run.run.recipe.unlink()
    with Run(folder, 2, "--resume") as run:
        assert run.wait() == 0, run.text()
        run.gone()
        assert "recipe.yaml: is missing; using the recipe in the newest checkpoint" in run.text()
        said += run.text()
    assert run.run.recipe.read_text() == recipe
    assert outcome(folder) == expected
    assert said.count("\\x1b[31mrun\\u202e") >= 4 and not HARMFUL.search(said.replace("\n", ""))
