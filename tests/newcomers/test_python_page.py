"""The program at the top of the page about Python, as it stands, on fewer images and a narrower network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import rankless

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
SMALL = '"data.train_images=32", "data.val_images=8", "model.width=0.125", "batch.images=6"'

pytestmark = pytest.mark.processes


def test_the_program_runs(tmp_path, monkeypatch, capfd):
    program, *_ = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(program.replace('"data.train_images=512"', SMALL), names)
    assert 0 <= names["scores"]["AP"] <= 1
    assert len(names["report"].images) == 4
    assert rankless.digest_file(Path("runs/python/best.safetensors")) in capfd.readouterr().out
