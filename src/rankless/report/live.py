"""A local web server for a run's report during training. Each request renders the report again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from rankless.errors import UserError
from rankless.report.collected import Collected
from rankless.report.page import render
from rankless.runs.weights_digest import of_run

HOST = "127.0.0.1"
PORT = 8765
_TRIED = 20  # number of default ports
_AGAIN = 5  # seconds


@contextmanager
def report_server(run: Path, port: int | None = None) -> Iterator[ThreadingHTTPServer]:
    """Yield a server for the report of ``run``, which handles requests once ``serve_forever`` is called.

    It listens on the loopback address, on ``port`` or on the first free port starting at :data:`PORT`.
    """
    collected = Collected(run).refresh()
    lock, newest = threading.Lock(), lru_cache(maxsize=1)(lambda best, last: of_run(run))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # A request with another host name may come from a malicious page (DNS rebinding).
            if self.headers.get("Host", "").rpartition(":")[0] not in (HOST, "localhost"):
                self.send_error(HTTPStatus.FORBIDDEN)
                return
            if self.path != "/":
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            with lock:
                collected.refresh()
                digest = newest(collected.run.pointed("best"), collected.run.pointed("last"))
                again = _AGAIN if collected.state == "running" else 0
                page = render([collected], {str(run): digest or ""}, refresh=again).encode()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(page)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            """Suppress the log of requests."""

    with _bound(Handler, port) as server:
        yield server


def _bound(handler: type[BaseHTTPRequestHandler], port: int | None) -> ThreadingHTTPServer:
    for number in [port] if port is not None else range(PORT, PORT + _TRIED):
        try:
            return ThreadingHTTPServer((HOST, number), handler)
        except OSError as error:
            problem = error
    tried = f"{port}" if port is not None else f"{PORT} to {PORT + _TRIED - 1}"
    raise UserError(f"--port {tried}: cannot be used ({problem.strerror}); use another --port")
