"""Forks for the processes that measure."""

import os
import signal
import subprocess
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.process_server import SERVER


def popen(command, *, stderr, env, stdin=None, stdout=None, text=False):
    """What ``subprocess.Popen`` is to the pages of planning, in a process that has PyTorch at once."""
    (takes, asks), (answers, gives) = os.pipe(), os.pipe()
    with os.fdopen(takes, "rb") as given, os.fdopen(gives, "wb") as output:
        process = SERVER.start(
            command[1:], environment=env, cwd=Path.cwd(), given=given, output=output, errors=stderr
        )
    process.stdin, process.stdout = (
        os.fdopen(pipe, mode + "b" * (not text)) for pipe, mode in ((asks, "w"), (answers, "r"))
    )

    def communicate(timeout=None):
        with process.stdin, process.stdout:
            said = process.stdout.read()
        process.wait(timeout)
        process.communicate = lambda timeout=None: ("", None)
        return said, None

    process.communicate = communicate
    process.kill = partial(process.send_signal, signal.SIGKILL)
    return process


@pytest.fixture
def forked_pages(monkeypatch):
    """The processes that measure are forked: each would import PyTorch, most of what a short one takes."""
    for page in ("measurement_worker", "measuring"):
        forks = SimpleNamespace(**{**vars(subprocess), "Popen": popen})
        monkeypatch.setattr(f"rankless.launch.planning.{page}.subprocess", forks)
