"""hf:// addresses, and the files behind them from a local server that answers like the Hub."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants
import pytest

from rankless.errors import UserError
from rankless.files.hub import HubAddress, fetch, parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {"config.json": b"{}", "model.safetensors": b"weights" * 100, "model.bin": b"a pickle"}


class Hub(BaseHTTPRequestHandler):
    """One repository, a/b, whose safetensors are stored as large files."""

    lies = False

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        name = self.path.rpartition("/")[2]
        if self.path.startswith("/api/models/a/b"):
            revision = self.path.partition("?")[0].rpartition("/")[2]
            if revision not in ("main", "v1", COMMIT):
                return self.send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            if "/tree/" in self.path:
                tree = [
                    {
                        "type": "file",
                        "path": name,
                        "size": len(content),
                        "oid": hashlib.sha1(content).hexdigest(),
                    }
                    for name, content in FILES.items()
                ]
                return self.send(200, json.dumps(tree).encode())
            siblings = [{"rfilename": each} for each in FILES]
            return self.send(200, json.dumps({"id": "a/b", "sha": COMMIT, "siblings": siblings}).encode())
        if not self.path.startswith("/a/b/") or name not in FILES:
            return self.send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        content, headers = FILES[name], {"X-Repo-Commit": COMMIT}
        digest = hashlib.sha256 if name.endswith(".safetensors") else hashlib.sha1
        headers["ETag"] = f'"{digest(content).hexdigest()}"'
        return self.send(200, content[::-1] if self.lies else content, headers)

    def send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    handler = type("OneHub", (Hub,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here = f"http://127.0.0.1:{server.server_port}"
    for name, value in {  # from HF_ENDPOINT and HF_HOME, but read when the library is imported
        "ENDPOINT": here,
        "HUGGINGFACE_CO_URL_TEMPLATE": here + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setattr(huggingface_hub.constants, name, value)
    yield handler
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf://a/b", HubAddress("a/b")),
        ("hf://a/b@v1", HubAddress("a/b", "v1")),
        ("hf://a/b/x/y.safetensors", HubAddress("a/b", "", "x/y.safetensors")),
        ("hf://a/b@refs%2Fpr%2F1/y", HubAddress("a/b", "refs/pr/1", "y")),
    ],
)
def test_an_address_has_a_repository_a_revision_and_a_file(text: str, expected: HubAddress) -> None:
    assert parse(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize("text", ["a/b", "hf://a", "hf://../b", "hf://a/b/../../c", "hf://a/b@", "hf://a/b/"])
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="expected hf://OWNER/NAME"):
        parse(text)


def test_files_but_no_pickles_are_fetched_into_a_folder_named_like_the_commit(hub: type[Hub]) -> None:
    folder = fetch(parse("hf://a/b@v1"))
    assert folder.name == COMMIT
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {
        name: content for name, content in FILES.items() if name != "model.bin"
    }


def test_a_fetched_file_needs_no_network(hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    there = fetch(parse("hf://a/b/config.json"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch(parse("hf://a/b/config.json")) == there
    with pytest.raises(UserError, match=r"model\.safetensors.*HF_HUB_OFFLINE is set.*hf download a/b model"):
        fetch(parse("hf://a/b/model.safetensors"))


def test_a_file_with_another_sha_is_refused(hub: type[Hub]) -> None:
    hub.lies = True
    with pytest.raises(UserError, match="is damaged: its SHA-256 is"):
        fetch(parse("hf://a/b"))


@pytest.mark.parametrize("text", ["hf://a/c", "hf://a/b@gone", "hf://a/b/absent.safetensors"])
def test_an_unknown_name_is_named(hub: type[Hub], text: str) -> None:
    with pytest.raises(UserError, match=f"^{text}: "):
        fetch(parse(text))
