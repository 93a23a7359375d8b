"""The notebooks in ``examples/`` run from the first cell to the last, on a small recipe, in a real kernel."""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from pathlib import Path

import pytest

from support.thorough import THOROUGH

ROOT = Path(__file__).parents[1]
BOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
TINY = ["epochs=1", "batch.images=8", "batch.micro=4", "model.width=0.125", "model.image_size=64"]
SHORT = {
    "first_run": f"changes = {[*TINY, 'data.train_images=24', 'data.val_images=4']}",
    "own_data": f"root, number_of_images, changes = 'my shapes', 30, {TINY}",
}


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_traces_of_a_run(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    book = json.loads(text)
    for cell in book["cells"]:
        assert cell.get("outputs", []) == [] and cell.get("execution_count") is None
    assert text == json.dumps(book, indent=1, ensure_ascii=False) + "\n"  # so that a diff shows what changed
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    owner = project["urls"]["Repository"].split("/")[3]
    assert set(re.findall(r"(\w+)/rankless", text)) == {owner}
    linked = re.findall(r"/rankless/blob/main/([^)#]+)|\]\(([\w.]+)\)", text)
    assert all((ROOT / page).exists() if page else (path.parent / beside).exists() for page, beside in linked)
    assert f"examples/{path.name}" in [page for page, _ in linked]


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize(
    "path", BOOKS if THOROUGH else [ROOT / "examples/own_data.ipynb"], ids=lambda path: path.stem
)
def test_a_notebook_runs_whole(path, tmp_path, monkeypatch, forked):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    # The command of this interpreter, forked from what this starts, and nothing of the person who tests.
    assert not forked("-m", "rankless", "--version", cwd=tmp_path).returncode
    (command := tmp_path / "rankless").write_text('#!/bin/sh\nexec "$PYTHON_EXEC" -u -m rankless "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PYTHON_EXEC", os.environ.get("PYTHON_EXEC", sys.executable))
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "jupyter"))
    book = nbformat.read(path, as_version=4)
    (parameters,) = [cell for cell in book.cells if "parameters" in cell.metadata.get("tags", ())]
    parameters.source += f"\n{SHORT[path.stem]}"
    here = tmp_path / "here"
    here.mkdir()
    where = {"metadata": {"path": str(here)}}
    nbclient.NotebookClient(book, timeout=250, allow_errors=True, resources=where).execute()

    outputs = [output for cell in book.cells for output in cell.get("outputs", ())]
    printed = "".join(output["text"] for output in outputs if output.output_type == "stream")
    assert not [output for output in outputs if output.output_type == "error"], printed
    # Commands behind "!" that fail do not end the notebook; a bar would fill the page with frames.
    assert not re.search(r"error:|warning: the sink|\x1b\[", printed), printed
    trained = printed.count("training in runs/")
    curves = [output for output in outputs if output.output_type == "display_data"]
    drawn = [one.metadata["image/png"]["alt"] for one in curves]
    assert len(drawn) == trained == {"first_run": 3, "own_data": 1}[path.stem]  # one image each, redrawn
    assert all(re.search(r"epoch (\d+)\.00/\1  step (\d+)/\2  0:00 left", text) for text in drawn)
    pages = [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert any('<img alt="' in page for page in pages)  # the predictions
    assert any(page.startswith("<iframe srcdoc") and 'sandbox="allow-scripts"' in page for page in pages)
    assert len(list(here.glob("*.png"))) == 1
