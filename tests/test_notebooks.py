"""The notebooks in ``examples/`` run from the first cell to the last, on a small recipe, in a real kernel."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

FOLDER = Path(__file__).parents[1] / "examples"
TINY = [
    "epochs=2",
    "batch.images=8",
    "batch.micro=4",
    "model.width=0.125",
    "model.image_size=64",
    "data.val_images=4",
]
SHORT = {
    "first_run": f"changes = {[*TINY, 'data.train_images=24']}",
    "own_data": f"root, number_of_images, changes = 'my shapes', 24, {TINY[:-1]}",
}
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def tagged(book: Any) -> list[Any]:
    """The cells that a short run replaces."""
    return [cell for cell in book.cells if "parameters" in cell.metadata.get("tags", ())]


def outputs(book: Any, kind: str) -> list[Any]:
    """What the cells have put on the page in one format."""
    shown = (one for cell in book.cells for one in cell.get("outputs", ()))
    return [one["data"][kind] for one in shown if kind in one.get("data", {})]


@pytest.fixture
def executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that runs a notebook whole in an empty folder."""
    # The kernel of this interpreter, the command beside it, and no settings of the person who tests.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("RANKLESS_CPU", "1")
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "jupyter"))
    (tmp_path / "here").mkdir()

    def execute(name: str) -> Any:
        book = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
        (parameters,) = tagged(book)
        parameters.source += f"\n{SHORT[name]}"
        return nbclient.NotebookClient(
            book, timeout=250, resources={"metadata": {"path": str(tmp_path / "here")}}
        ).execute()

    return execute


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_whole(name: str, executed: Any) -> None:
    book = executed(name)
    if folder := os.environ.get("NB_OUT"):
        nbformat.write(book, Path(folder) / f"{name}.ipynb")
