"""A local server that answers like the Hugging Face Hub."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {"config.json": b"{}", "model.safetensors": b"weights" * 100, "model.bin": b"a pickle"}


class Hub(BaseHTTPRequestHandler):
    """One repository, a/b, whose safetensors are stored as large files.

    Attributes:
        files: the content of each.
        lies: whether another content is sent.
        asked: the names of the files that were sent.
    """

    files: ClassVar[dict[str, bytes]] = FILES
    asked: ClassVar[list[str]] = []
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
                    for name, content in self.files.items()
                ]
                return self.send(200, json.dumps(tree).encode())
            siblings = [{"rfilename": each} for each in self.files]
            return self.send(200, json.dumps({"id": "a/b", "sha": COMMIT, "siblings": siblings}).encode())
        if not self.path.startswith("/a/b/") or name not in self.files:
            return self.send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        content, headers = self.files[name], {"X-Repo-Commit": COMMIT}
        digest = hashlib.sha256 if name.endswith(".safetensors") else hashlib.sha1
        headers["ETag"] = f'"{digest(content).hexdigest()}"'
        return self.send(200, content[::-1] if self.lies else content, headers)

    def send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.asked.append(self.path.rpartition("/")[2])
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def running(files: dict[str, bytes] = FILES) -> Iterator[tuple[type[Hub], str]]:
    """Yield the handler of a running server, and its address."""
    handler = type("OneHub", (Hub,), {"files": files, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield handler, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
