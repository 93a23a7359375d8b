"""The test files that a change concerns, which ``make test CHANGED=main`` runs.

They mirror or import a changed module, or a module that imports it. Modules that import these in turn are
left to the whole suite: a third step would select nearly every file.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
EVERYTHING = {"pyproject.toml", "constraints.txt", "Makefile", "setup.py", "tests/conftest.py"}
# These import the package's parts when they are asked for them, and half of the tests import these.
ENTRANCES = {"rankless", "rankless.cli"}


def imports(text: str) -> Iterator[str]:
    """The dotted name of everything a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def changed_files(root: Path, revision: str) -> set[str]:
    """The files that differ from where the branch left ``revision``, and those that git does not know yet."""
    found: set[str] = set()
    for words in ("diff --name-only --merge-base", "ls-files --others --exclude-standard --"):
        command = ["git", *words.split(), *([revision] if "diff" in words else [])]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        if done.returncode:
            said = done.stderr.splitlines()[0]
            sys.exit(f"error: CHANGED={revision}: git: {said}; expected a branch or a commit")
        found |= set(done.stdout.splitlines())
    return found


def importers(modules: set[str]) -> set[str]:
    """The modules of the package that import one of ``modules`` directly."""
    import grimp  # belongs to the tools of `make check`

    graph = grimp.build_graph("rankless", exclude_type_checking_imports=True, cache_dir=None)
    found: set[str] = set().union(*map(graph.find_modules_that_directly_import, modules & graph.modules))
    return found - ENTRANCES


def module(file: str) -> str:
    """The dotted name of a file in ``src`` or ``tests``; a file that is no module belongs to its package."""
    path = PurePosixPath(file)
    named = path.with_suffix("") if path.suffix == ".py" and path.stem != "__init__" else path.parent
    return ".".join(named.parts[1:])


def mirrors(test: str, name: str) -> bool:
    """Whether ``tests/data/test_order.py`` or a folder ``tests/data/order`` tests ``rankless.data.order``."""
    if name.startswith("rankless.cli"):
        return test.startswith("tests/test_cli")
    *folders, last = ["tests", *name.split(".")[1:]]
    return test == "/".join([*folders, f"test_{last}.py"]) or test.startswith("/".join([*folders, last, ""]))


@cache
def texts_and_imports(root: Path) -> tuple[dict[str, str], dict[str, set[str]]]:
    """The text of each file in ``tests``, and what it imports: modules, and perhaps names in them."""
    texts = {
        path.relative_to(root).as_posix(): path.read_text("utf-8") for path in root.glob("tests/**/*.py")
    }
    names = {file: {*imports(text)} for file, text in texts.items()}
    return texts, {file: found | {name.rpartition(".")[0] for name in found} for file, found in names.items()}


def concerned(root: Path, files: Iterable[str]) -> list[str]:
    """The test files that a change of ``files`` concerns; all paths are relative to ``root``."""
    files = set(files)
    if files & EVERYTHING:
        return ["tests"]
    texts, names = texts_and_imports(root)

    def testing(one: str) -> set[str]:
        """The files of the tests that mirror a module, or import it."""
        return {file for file in texts if mirrors(file, one) or one in names[file]}

    def users(found: set[str]) -> set[str]:
        """``found`` and the files that use one of them, and so on."""
        while (
            more := {file for used in found if "/support/" in used for file in testing(module(used))} - found
        ):
            found = found | more
        return found

    modules = {module(file) for file in files if file.startswith("src/rankless/")}
    # A module that is only loaded by its name is tested with its package.
    alone = {one for one in modules if not testing(one) and one.count(".") > 1}
    found = set().union(*map(testing, modules | {one.rpartition(".")[0] for one in alone}))
    found = users(found.union(*map(testing, importers(modules))))
    own = users({file for file in files if file.startswith("tests/")})
    folders = tuple(file.removesuffix("conftest.py") for file in own if file.endswith("/conftest.py"))
    pages = [PurePosixPath(file).name for file in files if not file.startswith(("src/", "tests/"))]
    found |= own | {
        file for file in texts if file.startswith(folders) or any(one in texts[file] for one in pages)
    }
    return sorted(file for file in found if file in texts and PurePosixPath(file).name.startswith("test_"))


if __name__ == "__main__":
    found = concerned(ROOT, changed_files(ROOT, sys.argv[1]))
    if not found:
        sys.exit(f"error: no test is concerned by what differs from {sys.argv[1]}; run make test")
    print(f"{len(found)} test files are concerned by what differs from {sys.argv[1]}", file=sys.stderr)
    print("\n".join(found))
