"""Files around the package that name what is in it: they go stale without a word."""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import rankless
from rankless.recipe.load import load

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"] == rankless.__version__
    assert citation["license"] == PROJECT["license"]
    assert [one["name"] for one in citation["authors"]] == [one["name"] for one in PROJECT["authors"]]


def test_the_image_is_made_of_what_is_here():
    copied = [
        name
        for names in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
        for name in names.split()
    ]
    assert {"src", "pyproject.toml", "constraints.txt"} <= set(copied)
    let_in = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(copied) == sorted(let_in)
    assert all((ROOT / name).exists() for name in copied)


def test_the_image_has_a_python_and_extras_that_there_are():
    (python,) = re.findall(r"^ARG PYTHON=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert python in SpecifierSet(PROJECT["requires-python"])
    (extras,) = re.findall(r'"\.\[(.+)\]"', DOCKERFILE)
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])


def test_each_kind_of_device_is_a_stage():
    (default,) = re.findall(r"^ARG DEVICE=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert {default, "cpu", "cuda"} <= set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE))


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_issue_templates_are_forms(template: Path):
    form = yaml.safe_load(template.read_text(encoding="utf-8"))
    if template.stem == "config":
        return
    assert form["name"]
    assert form["description"]
    kinds = {"textarea": {"label"}, "markdown": {"value"}}
    for part in form["body"]:
        assert kinds[part["type"]] <= set(part["attributes"])
    ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert len(ids) == len(set(ids)) > 0


def test_tools_of_a_release_are_an_extra():
    names = {Requirement(one).name for one in PROJECT["optional-dependencies"]["release"]}
    assert names == {"build", "twine"}


def test_a_release_trains_what_can_be_trained():
    (words,) = re.findall(r"^SMOKE := (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    name, *changes = words.split()
    recipe = load(name, changes)
    assert recipe.data.train_images >= recipe.batch.images


def test_contributing_names_files_that_exist():
    """Everything in code that has an ending or a slash is a path, of the repository or of the package."""
    page = re.sub(r"^```.*?^```", "", CONTRIBUTING, flags=re.DOTALL | re.MULTILINE)
    words = [word for code in re.findall(r"`([^`]+)`", page) for word in code.split()]
    paths = [
        word for word in words if re.fullmatch(r"[\w.-]+/[\w./-]*|[\w-]+\.(py|md|txt|toml|yml|yaml)", word)
    ]
    assert len(paths) > 30
    places = (ROOT, ROOT / "src" / "rankless")
    made = {"runs/digits", "timm/NAME"}
    assert not [path for path in set(paths) - made if not any((place / path).exists() for place in places)]


def test_worked_examples_work():
    names: dict[str, Any] = {}
    for example in re.findall(r"^```python\n(.*?)^```", CONTRIBUTING, re.DOTALL | re.MULTILINE):
        exec(example, names)
    one, shifted = torch.tensor([[0.0, 0, 4, 4]]), torch.tensor([[2.0, 0, 6, 4]])
    assert names["cubed_iou"](one, shifted).tolist() == pytest.approx([(1 / 3) ** 3])
    variables = {"TASK_RANK": "3", "JOB_SIZE": "8", "TASK_LOCAL_ID": "1", "JOB_NNODES": "4"}
    variables = {f"FLUX_{name}": value for name, value in variables.items()}
    assert names["Flux"].is_here(variables) and not names["Flux"].is_here({})
    flux = names["Flux"](variables)
    assert (flux.rank, flux.world_size, flux.local_rank, flux.local_world_size) == (3, 8, 1, 2)
    with pytest.raises(rankless.UserError, match="MASTER_ADDR"):
        _ = flux.address


def test_the_documentation_is_built_strictly():
    """With ``--quiet`` MkDocs counts no warnings, so that ``--strict`` means nothing."""
    (command,) = re.findall(r"mkdocs build.*", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert "--strict" in command
    assert "-q" not in command.replace("--strict", "")


def test_what_scripts_import_exists():
    """Benchmarks take hours and are run by hand: a name that has moved would show only then."""
    missing = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.module}.{alias.name}"
        for folder in ("benchmarks", "docs", "examples")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rankless"
        for alias in node.names
        if not hasattr(importlib.import_module(node.module or ""), alias.name)
        and importlib.util.find_spec(f"{node.module}.{alias.name}") is None
    ]
    assert not missing
