"""The house rules that no linter knows, and the pages of documentation that could go stale."""

import ast
import importlib.util
import re
import shlex
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import rankless
from rankless import cli
from rankless.recipe import load

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "rankless"
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
NO_ROOM = {"utils", "util", "core", "common", "helpers", "helper", "misc", "tools", "base", "shared"}


def imports(file: Path) -> Iterator[str]:
    """The dotted name of everything a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_there_is_no_module_without_a_job():
    named = {part.removesuffix(".py").strip("_") for file in SOURCE.rglob("*.py") for part in file.parts}
    assert not named & NO_ROOM


def test_only_world_talks_to_other_ranks():
    elsewhere = {
        (str(file.relative_to(SOURCE)), name)
        for file in SOURCE.rglob("*.py")
        if SOURCE / "world" not in file.parents
        for name in imports(file)
        if re.match(r"torch\.(distributed|nn\.parallel)\b", name)
    }
    # Torch's elastic agent starts and watches processes; it sends no tensor.
    strangers = {
        (file, name) for file, name in elsewhere if not name.startswith("torch.distributed.elastic.")
    }
    assert not strangers
    assert {file for file, _ in elsewhere} == {"launch/agent.py"}


def test_only_join_reads_what_launchers_set():
    pattern = re.compile(r"environ\b.*\b(WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)\b")
    found = {
        str(file.relative_to(SOURCE))
        for file in SOURCE.rglob("*.py")
        for line in file.read_text(encoding="utf-8").splitlines()
        if pattern.search(line) and "pop(" not in line
    }
    assert found == {"world/process_group.py"}


def test_only_environments_know_what_clusters_set():
    pattern = re.compile(r"""["'](SLURM|OMPI|PMIX?|MPI_LOCAL|PALS|MV2)_""")
    found = {
        file.parent.relative_to(SOURCE).as_posix()
        for file in SOURCE.rglob("*.py")
        if pattern.search(file.read_text(encoding="utf-8"))
    }
    assert found == {"launch/environments"}


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("make_recipe_table", "`data.augment.translate`"),
        ("make_findings_table", "| outside | boxes lie outside"),
    ],
)
def test_tables_of_the_docs_say_what_the_code_says(name: str, row: str):
    place = ROOT / "docs" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    text = maker.PAGE.read_text(encoding="utf-8")
    assert maker.page(text) == text, f"run: python docs/{name}.py"
    assert row in text


def commands() -> list[tuple[str, str]]:
    """Every ``rankless …`` that stands indented or fenced on a page of documentation."""
    found = []
    for page in PAGES:
        fenced = False
        for line in page.read_text(encoding="utf-8").splitlines():
            fenced ^= line.startswith("```")
            command = line.strip().removeprefix("$ ")
            if (fenced or line.startswith("    ")) and command.startswith("rankless "):
                found.append((page.name, command))
    return found


@pytest.mark.parametrize(("page", "command"), commands())
def test_documented_commands_are_right(page: str, command: str):
    words = shlex.split(command.split(" > ")[0], comments=True)[1:]
    if "--help" in words:
        return
    with warnings.catch_warnings():
        function, bound, _ = cli.app.parse_args(words, exit_on_error=False, print_error=False)
    assert function.__module__.startswith("rankless.cli.")
    assert bound.arguments or len(words) == 1
    overrides = [word for word in words if re.match(r"[a-z_.]+=", word)]
    shipped = [word for word in words[1:2] if word in load.shipped()]
    _ = load.load(shipped[0], overrides) if shipped else load.default(overrides)


def test_documented_commands_are_found():
    verbs = {command.split()[1] for _, command in commands()}
    assert {"train", "evaluate", "predict", "digest", "verify", "recipes"} <= verbs


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        other = page.parent / name if name else page
        assert other.exists(), target
        assert not anchor or anchor in anchors(other), target


def test_readme_names_every_public_name():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not [name for name in rankless.__all__ if name not in readme]


def additions() -> Iterator[tuple[str, set[str]]]:
    """The example and the files of every row of the table "Where do I add …" that names files."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for row in re.findall(r"^\| an? [^|]*\|([^|]*)\|([^|]*)\|$", text, re.MULTILINE):
        example, *_ = re.findall(r"`([^`]+)`", row[0])
        if files := set(re.findall(r"`([\w/]+\.py)`", row[1])):
            yield example, files


def test_the_architecture_says_where_things_are_added():
    rows = dict(additions())
    assert len(rows) > 5
    for example, files in rows.items():
        name = re.compile(rf"(?<![\w-]){re.escape(example)}(?![\w-])")
        found = {
            str(file.relative_to(SOURCE))
            for file in SOURCE.rglob("*.py")
            if name.search(file.read_text(encoding="utf-8"))
        }
        assert found == files, example


def test_the_architecture_names_every_room():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {path.name for path in SOURCE.rglob("*") if path.is_dir() and any(path.glob("*.py"))}
    assert not {room for room in rooms - {"__pycache__", "shipped"} if not re.search(rf"\b{room}\b", text)}
