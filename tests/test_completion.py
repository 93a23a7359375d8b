"""Completion, by the shells themselves: Tab is pressed in a terminal, and the completed line is looked at."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankless import cli
from support.thorough import THOROUGH

SHELLS = {"bash": ["bash", "-i"], "zsh": ["zsh", "-i"], "fish": ["fish", "-i"]}
COLORS = r"\x1b\(B|\x1b\[[0-9;?]*[a-zA-Z]"
HOME_, END = "\x01", "\x05"  # Ctrl-A and Ctrl-E: to the line's beginning and end


class Terminal:
    """A shell in a terminal, with a home of its own."""

    def __init__(self, shell: str, home: Path) -> None:
        programs = home / "bin"
        programs.mkdir()
        program = programs / "rankless"
        program.write_text(
            f"#!{sys.executable}\nimport sys\nfrom rankless.__main__ import main\nsys.exit(main())\n"
        )
        program.chmod(0o755)
        names = ("LANG", "LC_ALL", "PYTHONPATH")
        kept = {name: os.environ[name] for name in names if name in os.environ}
        path = f"{programs}:{os.environ['PATH']}"
        environment = {**kept, "HOME": str(home), "PATH": path, "TERM": "xterm", "PS1": "> "}
        if shell == "zsh":
            (home / ".zshrc").write_text("autoload -Uz compinit && compinit -u\n")
        words = [str(program), "--install-completion", shell]
        subprocess.run(words, env=environment, cwd=home, check=True, capture_output=True, timeout=60)
        (home / "runs" / "mine").mkdir(parents=True)
        (home / "runs" / "mine" / "recipe.yaml").write_text("epochs: 1\n")
        (home / "photo.weights").write_text("")
        # Otherwise the first fish reads all manual pages.
        (home / ".local/share/fish/generated_completions").mkdir(parents=True, exist_ok=True)
        self.shell, self.home, self.count, self.shown = shell, home, 0, ""
        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *SHELLS[shell]],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            cwd=home,
        )
        os.close(theirs)
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.line("echo ready")
        except AssertionError:
            self.close()
            raise

    def line(self, typed: str) -> str:
        """What stands on the line after these keys, with one space between its words."""
        self.count += 1
        file = self.home / f"line-{self.count}"
        self._type(f"{typed}{HOME_}echo {END} > {file.name}; echo >> {file.name}\r")
        self._until(lambda: file.exists() and file.read_text().endswith("\n\n"))
        return file.read_text().strip()

    def listed(self, typed: str, *words: str) -> None:
        """Wait until all words are listed; leave the line."""
        self.shown = ""
        self._type(typed)
        self._until(lambda: set(words) <= set(re.findall(r"\w+", re.sub(COLORS, " ", self.shown))))
        self._type("\x03")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)

    def _type(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def _until(self, holds) -> None:
        end = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < end, self.shown
            time.sleep(0.05)

    def _read(self) -> None:
        while True:
            try:
                self.shown += os.read(self.ours, 4096).decode(errors="replace")
            except OSError:
                return


@pytest.fixture(scope="module", params=SHELLS)
def terminal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    if not shutil.which(request.param):
        pytest.skip(f"{request.param} is not installed")
    opened = Terminal(request.param, tmp_path_factory.mktemp(request.param))
    yield opened
    opened.close()


# What differs between shells: a word and its end, an equals sign, a file's name, a folder behind an option.
IN_EVERY_SHELL = (
    ("rankless train digits-c\tepochs=1", "rankless train digits-classify epochs=1"),
    ("rankless train opt\tlr=1", "rankless train optim.lr=1"),
    ("rankless train digits optim.name=mu\t", "rankless train digits optim.name=muon"),
    ("rankless train model.pretrained=pho\t", "rankless train model.pretrained=photo.weights"),
    ("rankless train --run runs/mi\t", "rankless train --run runs/mine"),
)
IN_BASH = (
    ("rankless tra\t", "rankless train"),
    ("rankless data chec\t", "rankless data check"),
    ("rankless train --resu\t", "rankless train --resume"),
    ("rankless train digits optim.mom\t0.5", "rankless train digits optim.momentum=0.5"),
    ("rankless train seed=1 data.augment=hea\t", "rankless train seed=1 data.augment=heavy"),
    ("rankless train model.name=yolov4x\t", "rankless train model.name=yolov4x-mish"),
    ("rankless models densenet-bc-19\t", "rankless models densenet-bc-190-40"),
    ("rankless recipes blo\t", "rankless recipes blood-cells"),
    ("rankless evaluate pho\t", "rankless evaluate photo.weights"),
    ("rankless report runs/mi\t", "rankless report runs/mine"),
)


@pytest.mark.processes
def test_tab_completes(terminal: Terminal) -> None:
    everything = THOROUGH or terminal.shell == "bash"
    for typed, completed in (*IN_EVERY_SHELL, *(IN_BASH if everything else ())):
        assert terminal.line(typed).replace("mine/", "mine") == completed


@pytest.mark.processes
def test_tab_lists_the_choices(terminal: Terminal) -> None:
    terminal.listed("rankless train optim.name=\t\t", "sgd", "adam", "adamw", "muon")


@pytest.mark.processes
def test_completing_imports_nothing_heavy() -> None:
    code = (
        "import sys; from rankless.cli import main; main(['__complete']); "
        "print(*{'torch', 'numpy', 'pydantic'} & set(sys.modules))"
    )
    words = "train\x1fmodel.name=yolov4x\x1f"
    environment = {**os.environ, "CYCLOPTS_COMPLETION_WORDS": words}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-2:] == ["model.name=yolov4x-mish", ""]


def test_what_is_installed_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--show-completion", "bash"]) == 0
    assert "complete -o default -F _rankless rankless" in capsys.readouterr().out
    assert cli.main(["--show-completion", "tcsh"]) == 2
    assert "bash" in capsys.readouterr().err
