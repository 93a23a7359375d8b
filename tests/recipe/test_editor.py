"""Recipes in an editor: what yaml-language-server, which VS Code, Neovim and others run, says of them.

``npm install yaml-language-server`` makes it available; ``YAML_LANGUAGE_SERVER`` may name its program.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankless.recipe.installed import EDITOR_LINE, SCHEMA_FILE, schema_text, shipped, shipped_text
from rankless.recipe.load import dump
from rankless.recipe.schema import Recipe

SERVER = shutil.which(os.environ.get("YAML_LANGUAGE_SERVER", "yaml-language-server"))
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(SERVER is None or not shutil.which("node"), reason="needs npm's yaml-language-server"),
]


class Editor:
    """A client of the language server, over its standard input and output."""

    def __init__(self) -> None:
        words = [str(SERVER), "--stdio"]
        self.server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.requests = 0
        self.guard = threading.Timer(60, self.server.kill)  # a silent server ends the test
        self.guard.start()
        self.ask("initialize", processId=None, rootUri=None, capabilities={})
        self.tell("initialized")

    def tell(self, method: str, **about: Any) -> None:
        self._send(method=method, params=about)

    def ask(self, method: str, **about: Any) -> Any:
        self.requests += 1
        self._send(id=self.requests, method=method, params=about)
        return self._wait(lambda message: message.get("id") == self.requests and "method" not in message)[
            "result"
        ]

    def opened(self, file: Path) -> list[str]:
        """Open a file; return the problems that the editor underlines."""
        text = file.read_text(encoding="utf-8")
        about = {"uri": file.as_uri(), "languageId": "yaml", "version": 1, "text": text}
        self.tell("textDocument/didOpen", textDocument=about)
        found = self._wait(
            lambda message: (
                message.get("method") == "textDocument/publishDiagnostics"
                and message["params"]["uri"] == file.as_uri()
            )
        )
        return [one["message"] for one in found["params"]["diagnostics"]]

    def at(self, what: str, file: Path, line: int, character: int) -> Any:
        """Ask for ``completion`` or ``hover`` at a place, counted from zero."""
        place = {"line": line, "character": character}
        return self.ask(f"textDocument/{what}", textDocument={"uri": file.as_uri()}, position=place)

    def completed(self, file: Path, line: int, character: int) -> dict[str, str]:
        """The words offered at a place, each with what is said about it."""
        found = self.at("completion", file, line, character)["items"]
        return {one["label"]: str(one.get("documentation", "")) for one in found}

    def close(self) -> None:
        self.guard.cancel()
        self.server.kill()
        self.server.communicate()

    def _send(self, **message: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self.server.stdin is not None
        self.server.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.server.stdin.flush()

    def _wait(self, wanted: Any) -> Any:
        out = self.server.stdout
        assert out is not None
        while True:
            length = 0
            while (line := out.readline()).strip():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            assert length, "yaml-language-server has ended"
            message = json.loads(out.read(length))
            if wanted(message):
                return message
            if "id" in message and "method" in message:  # it asks for the editor's settings
                empty = [None] * len(message["params"].get("items", [])) if message.get("params") else None
                self._send(id=message["id"], result=empty)


@pytest.fixture(scope="module")
def editor() -> Iterator[Editor]:
    one = Editor()
    yield one
    one.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / SCHEMA_FILE).write_text(schema_text(), encoding="utf-8")
    return tmp_path


def written(folder: Path, text: str) -> Path:
    file = folder / "my.yaml"
    file.write_text(EDITOR_LINE + text, encoding="utf-8")
    return file


def test_keys_are_offered_with_what_they_mean(editor: Editor, folder: Path) -> None:
    file = written(folder, "optim:\n  \nmodel:\n  \n")
    editor.opened(file)
    optim = editor.completed(file, 2, 2)
    assert {"name", "lr", "momentum", "weight_decay"} <= optim.keys()
    assert "learning rate" in optim["lr"].lower()
    assert {"name", "image_size", "width", "pretrained"} <= editor.completed(file, 4, 2).keys()


def test_sections_are_offered_at_the_margin(editor: Editor, folder: Path) -> None:
    file = written(folder, "optim:\n  name: sgd\n  \nep\n")
    editor.opened(file)
    assert {"epochs", "schedule", "data"} <= editor.completed(file, 4, 2).keys()


def test_choices_and_models_are_offered_as_values(editor: Editor, folder: Path) -> None:
    file = written(folder, "optim:\n  name: \nmodel:\n  name: \n")
    editor.opened(file)
    assert {"sgd", "adamw", "muon"} <= editor.completed(file, 2, 8).keys()
    models = editor.completed(file, 4, 8).keys()
    assert {"yolov4", "yolov4-tiny-anchor-free", "resnet18"} <= {one.strip("\"'") for one in models}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("optim:\n  lrr: 0.1\n", ["lrr", "not allowed"]),
        ("optim:\n  lr: fast\n", ["Incorrect type", "number"]),
        ("optim:\n  name: sdg\n", ["Value is not accepted", "adamw"]),
        ("epochs: 0\n", ["minimum"]),
        ("model:\n  name: yolov4\n  wdth: 2\n", ["wdth", "not allowed"]),
    ],
)
def test_a_mistake_is_underlined(editor: Editor, folder: Path, text: str, words: list[str]) -> None:
    (problem, *_) = editor.opened(written(folder, text))
    assert all(word in problem for word in words), problem


def test_hovering_shows_the_description(editor: Editor, folder: Path) -> None:
    file = written(folder, "optim:\n  lr: 0.1\nprecision: bf16\n")
    assert editor.opened(file) == []
    assert "learning rate" in str(editor.at("hover", file, 2, 3)["contents"]).lower()
    assert "bf16 if the device computes it natively" in str(editor.at("hover", file, 3, 3)["contents"])


@pytest.mark.parametrize("name", shipped())
def test_shipped_recipes_have_nothing_underlined(editor: Editor, folder: Path, name: str) -> None:
    file = folder / f"{name}.yaml"
    file.write_text(shipped_text(name), encoding="utf-8")
    assert editor.opened(file) == []


def test_a_recorded_recipe_has_nothing_underlined(editor: Editor, folder: Path) -> None:
    assert editor.opened(written(folder, dump(Recipe()))) == []
