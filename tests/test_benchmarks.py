"""The scripts in ``benchmarks/`` start, also new ones, and the pages say what their stored results say."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.thorough import THOROUGH

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
SCRIPTS = [path for path in sorted(RESULTS.parent.glob("*.py")) if "__main__" in path.read_text("utf-8")]


@pytest.mark.processes
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_explains_itself(script: Path, forked: Any, tmp_path: Path) -> None:
    done = forked(str(script), "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"python benchmarks/{script.name}" in done.stdout


@pytest.mark.processes
@pytest.mark.skipif(not THOROUGH, reason="some minutes of CPU: HYPOTHESIS=thorough")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "script", [one for one in SCRIPTS if '"--tiny"' in one.read_text("utf-8")], ids=lambda path: path.stem
)
def test_a_script_measures_a_tiny_case(script: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(script), "--tiny"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "RANKLESS_CPU": "1"}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def runs_by_case(name: str, seed: int) -> Iterator[list[dict[str, Any]]]:
    """The runs of a file whose case differs only in the seed, which stands at this place."""
    found = defaultdict(list)
    for line in (RESULTS / name).read_text("utf-8").splitlines():
        run = json.loads(line)
        if run["case"][seed] < 5:  # 77 is the detector that others start from
            found[(*run["case"][:seed], *run["case"][seed + 1 :])].append(run)
    yield from found.values()


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.3f} ({min(values):.3f}–{max(values):.3f})"


def test_the_page_of_the_same_budget_says_what_the_runs_say() -> None:
    page = (ROOT / "docs" / "same-budget.md").read_text("utf-8")
    cells = [
        spread([run[name] for run in runs])
        for runs in runs_by_case("same_budget.jsonl", 2)
        for name in ("AP", "AP50")
    ]
    assert len(cells) == 30
    assert not [cell for cell in cells if cell not in page]


def test_the_page_of_fine_tuning_says_what_the_runs_say() -> None:
    page = (ROOT / "docs" / "weights.md").read_text("utf-8")
    cells = [
        f"{spread([run['AP'][-1] for run in runs])}, {statistics.mean(run['AP50'][-1] for run in runs):.3f}"
        for runs in runs_by_case("fine_tuning.jsonl", 3)
        if len(runs) == 5
    ]
    assert len(cells) == 20
    assert not [cell for cell in cells if cell not in page]


def test_the_page_of_other_programs_says_what_the_runs_say() -> None:
    page = (ROOT / "docs" / "invariance.md").read_text("utf-8")
    rows = json.loads((RESULTS / "invariance.json").read_text("utf-8"))["rows"].values()
    found = [
        row[kind].get(ranks, {})
        for row in rows
        for kind, ranks in (("usual", "2"), ("usual", "4"), ("bare", "2"))
    ]
    cells = [f"{one['max']:.1e}; {100 * one['relative']:.3g} %" for one in found if one.get("max")]
    assert len(cells) > 10
    assert not [cell for cell in cells if cell not in page]
