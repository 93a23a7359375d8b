"""Files around the package that name what is in it: they go stale without a word."""

from __future__ import annotations

import ast
import importlib.util
import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from markdown_it import MarkdownIt
from packaging.specifiers import SpecifierSet

import rankless
from rankless.recipe.load import load, shipped

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"] == rankless.__version__
    assert citation["license"] == PROJECT["license"].split(" AND ")[0]
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


def test_a_release_trains_what_can_be_trained():
    (words,) = re.findall(r"^SMOKE := (.+)$", MAKEFILE, re.MULTILINE)
    name, *changes = words.split()
    recipe = load(name, changes)
    assert recipe.data.train_images >= recipe.batch.images


def test_the_readme_of_the_package_leads_to_the_repository():
    text = runpy.run_path(str(ROOT / "setup.py"))["readme"]()
    here = (ROOT / "README.md").read_text(encoding="utf-8")
    html = MarkdownIt("commonmark").enable("table").render(text)
    addresses = re.findall(r'(?:src|href)="([^"]+)"', html)
    assert len(addresses) == here.count("](") > 20
    assert all(one.startswith("https://") for one in addresses)
    home = f"{PROJECT['urls']['Repository']}/"
    own = [one.removeprefix(home).split("/", 2) for one in addresses if one.startswith(home)]
    assert len(own) > 15
    for view, tag, path in own:
        assert tag == f"v{PROJECT['version']}"
        assert (ROOT / path.partition("#")[0]).exists(), path
        assert view == ("raw" if path.startswith("docs/images/") else "blob")


def test_addresses_of_the_project_have_one_place():
    """``pyproject.toml``, from which the site and the package's README take them."""
    urls = PROJECT["urls"]
    owner = urls["Repository"].split("/")[3]
    assert urls["Documentation"].endswith("/")  # pages' names are appended
    assert all(urls[name].startswith(f"{urls['Repository']}/") for name in ("Issues", "Changelog"))
    for path in ("mkdocs.yml", "README.md", "README.zh-CN.md", "CITATION.cff", "setup.py"):
        assert f"{owner}/rankless" not in (ROOT / path).read_text(encoding="utf-8")


def jobs(workflow: Path) -> dict[str, Any]:
    tree = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    # YAML 1.1, which PyYAML reads, has "on" for true.
    assert tree[True] and tree["name"]
    assert tree["permissions"] == {"contents": "read"}
    jobs: dict[str, Any] = tree["jobs"]
    return jobs


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_what_there_is(workflow: Path):
    """With no more permissions than they need, no secrets, and actions of one major version each."""
    assert "secrets" not in workflow.read_text(encoding="utf-8")
    steps = [step for job in jobs(workflow).values() for step in job.get("steps", [])]
    for step in steps:
        if "uses" in step:
            assert re.fullmatch(r"actions/[\w-]+@v\d+|pypa/gh-action-pypi-publish@release/v1", step["uses"])
            assert "checkout" not in step["uses"] or step["with"]["persist-credentials"] is False
    commands = [line for step in steps for line in step.get("run", "").splitlines()]
    for command in commands:
        name, *words = command.split()
        if name == "make":
            for word in words:
                target, equals, _ = word.partition("=")
                assert re.search(rf"^{target} :?=" if equals else rf"^{target}:", MAKEFILE, re.MULTILINE), (
                    command
                )
        else:
            assert name == "grep" or (ROOT / name).stat().st_mode & 0o111, command


def test_workflows_may_write_only_to_pages_and_pypi():
    allowed = {
        f"{workflow.stem}.{name}": job["permissions"]
        for workflow in WORKFLOWS
        for name, job in jobs(workflow).items()
        if "permissions" in job
    }
    pages = {"pages": "write", "id-token": "write"}
    assert allowed == {"docs.deploy": pages, "release.publish": {"id-token": "write"}}


def test_workflows_use_the_pythons_that_the_package_allows():
    allowed = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)
    assert all(f"{python}.0" in SpecifierSet(PROJECT["requires-python"]) for python in allowed)
    (ci,) = [workflow for workflow in WORKFLOWS if workflow.stem == "ci"]
    assert jobs(ci)["check-and-test"]["strategy"]["matrix"]["python"] == allowed
    fixed = {
        step["with"]["python-version"]
        for workflow in WORKFLOWS
        for job in jobs(workflow).values()
        for step in job.get("steps", [])
        if "python-version" in step.get("with", {})
    }
    assert fixed - {"${{ matrix.python }}"} <= set(allowed)


def test_the_recorded_digests_are_of_recipes_and_of_each_number_of_devices():
    lines = (ROOT / "benchmarks" / "digests.txt").read_text(encoding="utf-8").splitlines()
    names = [line.split()[0] for line in lines if not line.startswith("|")]
    (asked,) = re.findall(r"recipe_digests\.py ([^=]+) \w+=", MAKEFILE)
    assert names == asked.split()
    assert set(names) <= set(shipped())
    rows = [line for line in lines if re.search(r"\| `[0-9a-f]{64}` \|$", line)]
    assert len(rows) == 4
    assert len({row.split(" | ", 1)[1] for row in rows}) == 1


def test_contributing_names_files_that_exist():
    """Everything in code that has an ending or a slash is a path, of the repository or of the package."""
    page = re.sub(r"^```.*?^```", "", CONTRIBUTING, flags=re.DOTALL | re.MULTILINE)
    words = [word for code in re.findall(r"`([^`]+)`", page) for word in code.split()]
    paths = [
        word for word in words if re.fullmatch(r"[\w.-]+/[\w./-]*|[\w-]+\.(py|md|txt|toml|yml|yaml)", word)
    ]
    assert len(paths) > 30
    places = (ROOT, ROOT / "src" / "rankless")
    made = {"runs/digits", "timm/NAME", "build/digests.txt", "dist/", "llms.txt", "llms-full.txt"}
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
