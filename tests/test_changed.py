"""``make test CHANGED=main`` runs the tests that a change concerns."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.changed import ROOT, changed_files, concerned

pytest.importorskip("grimp", reason="the tools of make check are not installed")


@pytest.mark.processes
def test_files_that_differ_from_a_branch(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    git("init", "--quiet", "--initial-branch", "main")
    for name in ("same", "edited", "removed", "committed"):
        (tmp_path / name).write_text(name)
    git("add", "."), git("commit", "--quiet", "--message", "first")
    git("switch", "--quiet", "--create", "mine")
    (tmp_path / "committed").write_text("otherwise")
    git("commit", "--quiet", "--all", "--message", "second")
    (tmp_path / "edited").write_text("otherwise")
    (tmp_path / "new").write_text("new")
    (tmp_path / "removed").unlink()
    assert changed_files(tmp_path, "main") == {"committed", "edited", "new", "removed"}
    git("switch", "--quiet", "main", "--force")
    (tmp_path / "theirs").write_text("theirs")
    git("add", "theirs"), git("commit", "--quiet", "--message", "third")
    git("switch", "--quiet", "mine")
    assert "theirs" not in changed_files(tmp_path, "main")
    with pytest.raises(SystemExit, match=r"CHANGED=nowhere: .*nowhere.*; expected a branch or a commit"):
        changed_files(tmp_path, "nowhere")


@pytest.mark.parametrize(
    ("changed", "tests", "others"),
    [
        # Its own tests, and those of data/loader, which imports it; not those of the loader's users.
        ("src/rankless/data/order.py", ["data/test_order", "data/test_loader"], ["inference/test_predict"]),
        (
            "src/rankless/curation/checking.py",
            ["curation/test_checking", "test_cli_data"],
            ["engine/test_loop"],
        ),
        ("src/rankless/engine/sinks/mlflow.py", ["engine/sinks/test_sinks"], ["data/test_order"]),
        ("tests/support/loss_cases.py", ["models/heads/test_yolo_loss"], ["test_cli"]),
        ("tests/faults/conftest.py", ["faults/test_chains"], ["machines/test_hosts"]),
        ("tests/data/test_order.py", ["data/test_order"], ["data/test_loader"]),
        ("docs/own-data.md", ["newcomers/test_own_data_page"], ["newcomers/test_own_task"]),
    ],
)
def test_tests_that_a_file_concerns(changed: str, tests: list[str], others: list[str]) -> None:
    found = set(concerned(ROOT, [changed]))
    assert found >= {f"tests/{name}.py" for name in tests}
    assert not found & {f"tests/{name}.py" for name in others}


def test_what_concerns_all_and_nothing() -> None:
    assert concerned(ROOT, ["docs/own-data.md", "pyproject.toml"]) == ["tests"]
    assert concerned(ROOT, ["src/other.txt"]) == []
