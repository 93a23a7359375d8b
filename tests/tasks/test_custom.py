"""Tasks of the user's own: by module and by file, from Python, and what cannot be found."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from rankless.errors import UserError
from rankless.recipe.schema import Recipe
from rankless.tasks import open_task
from rankless.user_modules import absolute, name_of

METHODS = "model training_data evaluation_data collate loss predict score"
TASK = """\
    class Mine:
        class_names, score_name = (), "s"

        def __init__(self, recipe):
            self.epochs = recipe.epochs

""" + "".join(f"        def {name}(self, *_): ...\n" for name in METHODS.split())


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def clean_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(tmp_path / "none")  # at the end, the path is what it was


def test_by_file_whatever_its_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A name that is another module's, one that is no identifier, and one that needs its neighbor.
    write(tmp_path / "neighbor_of_mine.py", "EPOCHS = 3\n")
    for name in ("random.py", "my-task ü.py", "neighborly.py"):
        text = textwrap.dedent(TASK)
        path = write(tmp_path / name, f"import neighbor_of_mine\n{text}")
        monkeypatch.chdir(tmp_path)
        for place in (name, str(path), f"./{name}"):
            task: Any = open_task(Recipe(task=f"{place}:Mine", epochs=7))
            assert task.epochs == 7
        assert absolute(f"{name}:Mine") == f"{path}:Mine"
    assert absolute("package.module:Mine") == "package.module:Mine"
    import random

    assert Path(random.__file__).parent != tmp_path


@pytest.mark.processes
def test_another_process_can_unpickle_what_a_file_defines(tmp_path: Path, forked: Any) -> None:
    path = write(tmp_path / "random.py", TASK)
    task = open_task(Recipe(task=f"{path}:Mine", epochs=5))
    (tmp_path / "pickled").write_bytes(pickle.dumps(task))
    (tmp_path / "elsewhere").mkdir()
    code = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).epochs)"
    script = write(tmp_path / "elsewhere" / "script.py", code)
    done = forked(str(script), str(tmp_path / "pickled"), cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("5\n", "")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Nothing", "'task' is 'Nothing': expected 'detect', 'classify', 'package.module:Class' or 'file.py"),
        ("missing:Mine", "the module 'missing' cannot be imported .* run the command in the folder"),
        ("none.py:Mine", "no such file .*/none.py; expected the file of the class"),
        ("mine.py:Nein", "'mine.py' has no 'Nein'; expected one of Mine, Bare$"),
        ("mine.py:number", "task is 'mine.py:number': expected a class, found int"),
        ("broken.py:Mine", r"broken.py cannot be imported \(No module named 'nowhere'\)"),
        ("eager.py:Mine", 'put the call to rankless.train under `if __name__ == "__main__":`'),
    ],
)
def test_what_cannot_be_found_is_reported(tmp_path, monkeypatch, name, said):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "mine.py", TASK + "    class Bare: ...\n    number = 3\n")
    write(tmp_path / "broken.py", "import nowhere\n")
    write(tmp_path / "eager.py", "import rankless\nrankless.train(rankless.Recipe())\n")
    with pytest.raises(UserError, match=said):
        open_task(Recipe(task=name))


def test_every_missing_method_is_named(tmp_path: Path) -> None:
    text = "class Half:\n    def model(self): ...\n    def loss(self): ...\n    score = 3\n"
    path = write(tmp_path / "half.py", text)
    with pytest.raises(UserError) as caught:
        open_task(Recipe(task=f"{path}:Half"))
    first, *rest = caught.value.problems
    assert first.endswith("half.py:Half', which lacks 5 required methods; add:")
    missing = ["training_data", "evaluation_data", "collate", "predict", "score"]
    assert [line.split("(")[0] for line in rest] == missing


SCRIPT = """\
import sys
sys.path.insert(0, {folder!r})
import beside
from rankless.user_modules import name_of
class Here: ...
def inner():
    class Local: ...
    return Local
for made in (Here, beside.Mine, inner(), "any:Name", 3):
    try:
        print(name_of(made))
    except Exception as error:
        print(error)
"""


@pytest.mark.processes
def test_the_name_of_a_class(tmp_path: Path, forked: Any) -> None:
    beside = write(tmp_path / "far" / "beside.py", TASK)
    script = write(tmp_path / "near" / "script.py", SCRIPT.format(folder=str(beside.parent)))
    found = forked(str(script), cwd=tmp_path).stdout.splitlines()
    # A module that only the script's own path leads to is named by its file.
    assert found[:2] == [f"{script}:Here", f"{beside}:Mine"]
    assert "defined in a function or class" in found[2] and "inner.<locals>.Local" in found[2]
    assert found[3] == "any:Name"
    assert found[4] == "task is 3: expected a class, such as MyTask, or its name 'package.module:MyTask'"
    # From its own folder it is a module like any other.
    assert forked(str(script), cwd=beside.parent).stdout.splitlines()[1] == "beside:Mine"
    assert forked("-m", "script", cwd=script.parent).stdout.splitlines()[0] == "script:Here"
    # Typed, not written into a file: as in a notebook.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p.endswith("src"))}
    typed = {"input": script.read_text(), "env": environment, "text": True, "cwd": tmp_path}
    assert "cannot import it" in subprocess.check_output([sys.executable, "-"], **typed).splitlines()[0]
    assert name_of(Recipe) == "rankless.recipe.schema:Recipe"
