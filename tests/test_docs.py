"""README and docs: every command parses, those that cost little are run, and every link leads somewhere."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
import shlex
import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cyclopts import MissingArgumentError

import rankless
from rankless import cli
from rankless.cli.options import recipe_and_overrides
from rankless.recipe import load
from rankless.recipe.installed import shipped
from support.documented import PAGES, ROOT, Line, code, commands, makes, scripts

README, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
THEIRS = ("train.py", "my_task.py")  # scripts that a page speaks of and the reader has


def parsed(line: Line) -> inspect.BoundArguments | None:
    """The arguments as the command line's own parser understands them; None for help, or a beginning."""
    words = shlex.split(line.text)
    try:
        with warnings.catch_warnings():
            function, bound, _ = cli.app.parse_args(words, exit_on_error=False, print_error=False)
    except MissingArgumentError:
        assert line.is_inline, line
        return None
    if {"--help", "--version"} & set(words) or words == ["data"]:
        return None
    assert function.__module__.startswith("rankless.cli."), line
    return bound


def each(lines: Iterable[Line], check: Callable[[Line], None]) -> None:
    """Check all lines; an error names its line."""
    for line in lines:
        try:
            check(line)
        except Exception as error:
            error.add_note(str(line))
            raise


@pytest.mark.slow
def test_commands_parse():
    each(commands(), check_command)


def check_command(line: Line) -> None:
    bound = parsed(line)
    if bound is None:
        return
    words = [str(word) for value in bound.arguments.values() if isinstance(value, tuple) for word in value]
    name = None
    if "recipe" in bound.arguments:
        name, overrides = recipe_and_overrides(bound.arguments["recipe"])
        named = (None, *shipped(), "mydata", "mydata-2")  # a folder with data may stand in place of a recipe
        assert name in named or name.endswith(".yaml") or line.is_inline, line
    else:
        overrides = [word for word in words if re.match(r"[a-z][a-z_.]*=", word)]
    _ = load.load(name, overrides) if name in shipped() else load.default(overrides)


def test_every_command_of_the_program_is_documented():
    documented = {tuple(shlex.split(line.text)[:2]) for line in commands()}
    verbs = {first for first, *_ in documented}

    def missing(app: Any, seen: set[str]) -> set[str]:
        return {name for name in app if not name.startswith("-")} - seen

    assert not missing(cli.app, verbs)
    for group in ("data", "submit"):
        assert not missing(cli.app[group], {words[1] for words in documented if words[0] == group})


def test_scripts_exist_and_have_their_options():
    each(scripts(), check_script)


def check_script(line: Line) -> None:
    name, *words = shlex.split(line.text)
    if name in THEIRS:
        return
    places = [ROOT / name, ROOT / "examples" / name]
    (script,) = [place for place in places if place.exists()][:1] or [None]
    assert script, line
    source = script.read_text(encoding="utf-8")
    for option in [word.partition("=")[0] for word in words if word.startswith("--")]:
        assert f'"{option}"' in source, f"{line}: {option}"


def test_targets_of_make_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for line in makes():
        for word in shlex.split(line.text)[1:]:
            name, equals, _ = word.partition("=")
            named = rf"^{name}\s*:" if not equals else rf"\$[({{]{name}\b"
            assert re.search(named, makefile, re.MULTILINE), line


def test_names_of_the_package_exist():
    """Whatever stands behind ``rankless.`` in code, and between the brackets of ``rankless[…]``."""
    for line in code():
        for name in re.findall(r"(?<![\w/.-])rankless\.([a-zA-Z_]\w*)", line.text):
            module = ROOT / "src" / "rankless" / name
            assert name in rankless.__all__ or module.is_dir() or module.with_suffix(".py").exists(), line
        for extras in re.findall(r"rankless\[([\w,]+)\]", line.text):
            assert set(extras.split(",")) <= EXTRAS, line


def test_examples_in_python_can_be_parsed():
    examples = [
        example
        for page in PAGES
        for example in re.findall(
            r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
        )
    ]
    assert len(examples) > 2
    for example in examples:
        ast.parse(example)


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            if target.startswith("https://"):
                continue
            name, _, anchor = target.partition("#")
            other = page.parent / name if name else page
            assert other.exists(), (page, target)
            assert not anchor or anchor in anchors(other), (page, target)


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {page.name for page in PAGES if page.parent in (ROOT, ROOT / "docs")}
    assert not {name for name in pages - {"README.md", "README.zh-CN.md"} if f": {name}\n" not in navigation}


def test_every_public_name_is_documented():
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    documented = re.findall(r"^::: rankless\.(\w+)$", text, re.MULTILINE)
    assert sorted(documented) == sorted(set(rankless.__all__) - {"__version__"})


def blocks(page: Path) -> Iterator[str]:
    """Commands of a page, and its digests, in their order."""
    text = page.read_text(encoding="utf-8")
    for line in re.findall(r"^    (.+)$|`([0-9a-f]{64})`", text, re.MULTILINE):
        yield re.split(r"\s+#", "".join(line))[0]


def test_the_chinese_readme_has_the_same_commands_and_digests():
    assert list(blocks(CHINESE)) == list(blocks(README))
    assert len(set(blocks(README))) > 10


def results(page: Path) -> list[str]:
    """The numbers and the command in each row of the table of results."""
    (table,) = [part for part in page.read_text(encoding="utf-8").split("\n\n") if "`make demo` |" in part]
    return [" ".join(sorted(re.findall(r"\d+\.\d+|`[^`]+`", row))) for row in table.splitlines()[2:]]


def test_both_readmes_have_the_same_five_results():
    assert results(CHINESE) == results(README)
    assert len(results(README)) == 5


def test_the_readme_says_at_once_that_no_gpu_was_measured():
    first_screen = README.read_text(encoding="utf-8").splitlines()[:30]
    assert any("GPU" in line and "measured" in line for line in first_screen)
    assert any("335b2e29" in line for line in first_screen)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("make_recipe_table", "`data.augment.translate`"),
        ("make_findings_table", "| outside | boxes are outside"),
        ("make_commands_page", "### rankless data split"),
        ("make_recipe_schema", '"densenet-bc-190-40"'),
        ("make_levels", ">curation</text>"),
    ],
)
def test_generated_pages_are_up_to_date(name: str, row: str):
    maker = runpy.run_path(str(ROOT / "docs" / f"{name}.py"))
    text = maker["PAGE"].read_text(encoding="utf-8")
    assert maker["page"](text) == text, f"run: python docs/{name}.py"
    assert row in text


def test_examples_in_docstrings_have_a_heading_that_is_known():
    """Under ``Example:`` the page would show a program as a sentence, and its brackets as links."""
    for file in (ROOT / "src").rglob("*.py"):
        assert not re.search(r"^ +Example:$", file.read_text(encoding="utf-8"), re.MULTILINE), file
