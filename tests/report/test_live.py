"""The report on a port of this machine: what the journal says now, and for nobody else."""

from __future__ import annotations

import http.client
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rankless import cli
from rankless.errors import UserError
from rankless.report.live import HOST, PORT, report_server
from rankless.runs import journal


@pytest.fixture
def growing(tmp_path: Path) -> Path:
    """A run with two steps so far."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "recipe.yaml").write_text("epochs: 4\n")
    for entry in ({"event": "start", "at": 0, "steps": 8, "world_size": 1}, step(1), step(2)):
        journal.append(folder / "journal.jsonl", **entry)
    return folder


def step(number: int) -> dict[str, Any]:
    return {
        "step": number, "epoch": number / 2, "lr": 0.1, "loss": 1.0 / number, "gradient_norm": 1.0,
        "parts": {}, "timing": {"seconds": 0.5, "waited": 0.0},
    }  # fmt: skip


@contextmanager
def answering(run: Path, port: int | None = None) -> Iterator[int]:
    """The port of a server that answers."""
    with report_server(run, port) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join(30)


def asked(port: int, path: str = "/", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_every_request_gets_what_the_journal_says_now(growing: Path) -> None:
    with answering(growing) as port:
        status, page = asked(port)
        assert status == 200 and '<meta http-equiv="refresh" content="5">' in page
        assert not re.search(r'(src|href)="(?!data:)', page), "it loads nothing"
        journal.append(growing / "journal.jsonl", evaluation=2, scores={"AP": 0.4321})
        assert "0.4321" not in page and "0.4321" in asked(port)[1]
        journal.append(growing / "journal.jsonl", event="end", at=2, text="")
        assert "refresh" not in asked(port)[1].partition("<title>")[0], "nothing more will come"


def test_it_is_served_to_this_machine_alone(growing: Path) -> None:
    with answering(growing) as port:
        assert asked(port, Host="evil.example:80")[0] == 403  # a name that was made to mean 127.0.0.1
        assert asked(port, Host=f"localhost:{port}")[0] == 200
        assert asked(port, "/journal.jsonl")[0] == asked(port, "/../recipe.yaml")[0] == 404
        held = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        listening = {row[1] for row in held if row[3] == "0A" and row[1].endswith(f":{port:04X}")}
        assert listening == {f"0100007F:{port:04X}"}


def test_a_port_that_is_taken(growing: Path) -> None:
    with ExitStack() as stack:
        with suppress(OSError):  # another process has it
            stack.enter_context(socket.create_server((HOST, PORT)))
        with pytest.raises(UserError, match=f"--port {PORT}: cannot be used .*; use another --port"):
            report_server(growing, PORT).__enter__()
        with answering(growing) as other:  # one of the next
            assert PORT < other < PORT + 20


def test_mistakes(growing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, sentence in (
        (["--port", "8000"], "--port: has no effect without --web; add --web"),
        (["--web", "--port", "70000"], "--port is 70000: expected a number from 1 to 65535"),
        (["--web", "--port", "x"], "--port"),
    ):
        assert cli.main(["watch", str(growing), *words]) == 2
        assert sentence in capsys.readouterr().err
    assert cli.main(["watch", "gpu1:runs/my", "--web"]) == 2
    assert "ssh -L 8765:127.0.0.1:8765 gpu1 rankless watch runs/my --web" in capsys.readouterr().err
    assert cli.main(["watch", str(growing / "gone" / "run"), "--web"]) == 2
    assert str(growing / "gone" / "run") in capsys.readouterr().err


def test_it_is_what_runs_calls_running(growing: Path) -> None:
    os.utime(growing / "journal.jsonl", (0, 0))  # nobody has written to it for long
    with answering(growing) as port:
        assert "refresh" not in asked(port)[1].partition("<title>")[0]
