"""The house rules that no linter knows, and the map of the code, which could go stale."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from support.changed import imports

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "rankless"
NO_ROOM = {"utils", "util", "core", "common", "helpers", "helper", "misc", "tools", "base", "shared"}


@cache
def texts() -> dict[str, str]:
    """The package's files by their paths."""
    files = SOURCE.rglob("*.py")
    return {file.relative_to(SOURCE).as_posix(): file.read_text(encoding="utf-8") for file in files}


def holding(pattern: str) -> set[str]:
    """The files that hold it."""
    return {name for name, text in texts().items() if re.search(pattern, text)}


def test_no_module_has_a_name_that_says_nothing():
    named = {part.removesuffix(".py").strip("_") for name in texts() for part in name.split("/")}
    assert not named & NO_ROOM


def test_only_world_talks_to_other_ranks():
    elsewhere = {
        (file, name)
        for file in holding(r"\b(distributed|parallel)\b")
        if not file.startswith("world/")
        for name in imports(texts()[file])
        if re.match(r"torch\.(distributed|nn\.parallel)\b", name)
    }
    assert not elsewhere


def test_only_process_group_reads_the_variables_of_launchers():
    names = "WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT"
    assert holding(rf"(?m)^(?!.*pop\().*environ\b.*\b({names})\b") == {"world/process_group.py"}


def test_only_environments_knows_the_variables_of_clusters():
    assert holding(r"""["'](SLURM|OMPI|PMIX?|MPI_LOCAL|PALS|MV2)_""") == {"launch/environments.py"}


def test_one_function_alone_begins_to_compute_in_half_precision():
    """``hardware.precision.autocast``, whose convolutions read no memory that nobody wrote."""
    found = holding(r"torch\.(\w+\.)*autocast\((?!.*enabled=False)")
    assert found == {"hardware/precision.py"}


def test_there_is_one_way_to_compute_with_a_model():
    """``hardware.computing``, because a computation that forgets one of these settings has other bits."""
    parts = r"(?<!def )(?<!self\.)\b(autocast|batch_invariant|set_deterministic|set_flush_denormal"
    parts += r"|use_deterministic_algorithms|set_float32_matmul_precision)\((?!.*enabled=False)"
    inside = {"hardware/computing.py", "hardware/precision.py", "hardware/process_settings.py"}
    assert holding(parts) == inside


def test_only_its_own_package_names_a_built_in_data_set():
    """The recipe ``digits`` has the name of its data; sentences may give the data as an example."""
    allowed = {
        "recipe/schema.py": 1,  # default of data.root
        "cli/options.py": 2,  # recipe of `rankless train` without a recipe
        "cli/data.py": 1,  # recipe of `rankless data show --augmented`
    }
    found = Counter[str]()
    for name, text in texts().items():
        if not name.startswith("data/builtin/digits/") and "digits" in text:
            values = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
            found[name] += sum(
                str(value).startswith(("digits:", "digits/")) or value == "digits" for value in values
            )
            found[name] += any("builtin.digits" in module for module in imports(text))
    assert +found == allowed


def test_only_the_records_of_tasks_tell_them_apart():
    """Other code asks ``task_kinds.kind_of``."""
    named = Counter[str]()
    for name, text in texts().items():
        if re.search("detect|classify", text):
            values = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
            named[name] = sum(value in ("detect", "classify") for value in values)
    # The list of models ends with timm's classifiers, and other programs have commands of these names.
    assert +named == {"task_kinds.py": 2, "printing.py": 1, "cli/foreign_options.py": 2}
    # Weights from transformers are those of a detector.
    assert holding(r"\b(DETECT|CLASSIFY)\b") == {"task_kinds.py", "recipe/recorded.py"}
    types = r"Detect|Classify|Detections|(Detection|Classification)\w*|\w+Finder|(Exported|Portable)\w+"
    assert not holding(rf"isinstance\([^()]*(\([^()]*\))?[^()]*\b({types})\b")


def additions() -> Iterator[tuple[str, set[str]]]:
    """The example and the files of every row of the table "Where to add things" that names files."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for row in re.findall(r"^\| an? [^|]*\|([^|]*)\|([^|]*)\|$", text, re.MULTILINE):
        example, *_ = re.findall(r"`([^`]+)`", row[0])
        if files := set(re.findall(r"`([\w/]+\.py)`", row[1])):
            yield example, files


@pytest.mark.slow
def test_the_architecture_says_where_things_are_added():
    rows = dict(additions())
    assert len(rows) > 5
    for example, files in rows.items():
        assert holding(rf"(?<![\w-]){re.escape(example)}(?![\w-])") == files, example


def test_the_architecture_names_every_package():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {path.name for path in SOURCE.rglob("*") if path.is_dir() and any(path.glob("*.py"))}
    assert not {room for room in rooms - {"__pycache__", "shipped"} if not re.search(rf"\b{room}\b", text)}
