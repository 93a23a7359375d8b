"""What a person gets who installs the package: the wheel, in a fresh environment, away from the checkout.

The environment's other packages are those of the environment that runs the tests, shown to it by links: that
needs no network and takes seconds. With RANKLESS_EMPTY_ENVIRONMENT=1 all of them are installed into it
instead, held to constraints.txt.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
PACKED = (".py", ".json", ".yaml", ".typed", ".gz", ".txt")
FULL = bool(os.environ.get("RANKLESS_EMPTY_ENVIRONMENT"))

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1200 if FULL else 300)]


def run(*words: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command that must succeed, with nothing of this process's Python in its environment."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env={**clean, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{words}:\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the checkout's files, so that the build leaves nothing in it."""
    folder = tmp_path_factory.mktemp("build")
    copy = folder / "source"
    copy.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        (copy / name).write_bytes((ROOT / name).read_bytes())
    for path in (ROOT / "src").rglob("*"):
        if path.is_file() and path.suffix in PACKED:
            target = copy / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    words = ["--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder, copy]
    run(sys.executable, "-m", "pip", "wheel", *words, cwd=folder)
    (made,) = folder.glob("rankless-*.whl")
    return made


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment that has the wheel."""
    folder = tmp_path_factory.mktemp("installed") / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    programs = folder / "bin"
    if FULL:
        words = ["--constraint", str(CONSTRAINTS)]
    else:
        words = ["--no-index"]
        _show_packages(folder)
    pip = [sys.executable, "-m", "pip", "--python", programs / "python"]
    run(*pip, "install", *words, wheel, cwd=folder)
    return programs


def _show_packages(environment: Path) -> None:
    """Let an environment see every installed package but this one."""
    inside = next(environment.glob("lib/python*/site-packages"))
    links = environment / "packages"
    links.mkdir()
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(place).iterdir():
            if "rankless" not in entry.name and entry.name != "pip":
                (links / entry.name).symlink_to(entry)
    (inside / "packages.pth").write_text(f"{links}\n")


def test_the_wheel_holds_the_whole_package(wheel: Path) -> None:
    source = ROOT / "src" / "rankless"
    expected = {str(path.relative_to(ROOT / "src")) for path in source.rglob("*") if path.suffix in PACKED}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == expected


def test_the_demos_first_steps_from_the_wheel(environment: Path, tmp_path: Path) -> None:
    """``make demo``, shortened: train on two ranks, and predict."""
    rankless = environment / "rankless"
    settings = {"RANKLESS_CPU": "1", "OMP_NUM_THREADS": "1"}
    where = run(environment / "python", "-c", "import rankless; print(rankless.__file__)", cwd=tmp_path)
    assert Path(where.stdout.strip()).is_relative_to(environment.parent)
    short = ["data.train_images=24", "data.val_images=4", "epochs=1", "model.width=0.125"]
    short += ["batch.images=8", "batch.micro=4"]
    run(rankless, "train", "digits", *short, "--run", "run", "--devices", "2", cwd=tmp_path, **settings)
    run(rankless, "predict", "run", "digits:val:1000-1001", "--out", "found", cwd=tmp_path, **settings)
    assert (tmp_path / "found" / "digits-val-1000.png").is_file()


def test_every_requirement_is_pinned() -> None:
    pinned = {
        Requirement(line).name.lower() for line in CONSTRAINTS.read_text().splitlines() if line[0] != "#"
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    required = [Requirement(text) for texts in (project["dependencies"], *extras) for text in texts]
    assert not [one.name for one in required if one.name.lower() not in {*pinned, project["name"]}]
    assert "torch" in pinned
