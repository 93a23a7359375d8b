"""The skeleton of a task on the page about tasks runs as it stands there, and learns."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "own-task.md"

pytestmark = pytest.mark.processes


def test_the_skeleton_runs_and_learns(tmp_path: Path, forked: Any) -> None:
    text = PAGE.read_text(encoding="utf-8")
    skeleton, *_ = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len([line for line in skeleton.splitlines() if line.strip()]) <= 27
    (tmp_path / "my_task.py").write_text(skeleton)
    (train,) = re.findall(r"^    rankless (train task=my_task.*)$", text, re.MULTILINE)

    def command(words: str) -> str:
        done = forked("-m", "rankless", *words.split(), "--devices", "1", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    command(train)
    scores = json.loads(command("evaluate runs/mine --task my_task.py:MyTask --json"))
    assert scores["images"] == 256 and scores["accuracy"] > 0.9
    assert "data" not in scores  # a task of one's own need not have it from data.root
    words = ["predict", "runs/mine", "digits:val:0", "--task", "my_task.py:MyTask"]
    done = forked("-m", "rankless", *words, cwd=tmp_path)
    assert done.returncode == 2 and "has no method predict_image(self, model, image)" in done.stderr
