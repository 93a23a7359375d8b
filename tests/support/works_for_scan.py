"""Readers that scan tests send to real processes; a module of its own, so that it is imported by name."""

import os
import signal
from pathlib import Path

from rankless.data.index.raw import Raw, RawBuilder
from rankless.errors import UserError


def numbers(items: list[tuple[str, ...]]) -> Raw:
    """One box per number in each file; notes in ``LOG`` that the files were read."""
    made, paths = RawBuilder(), [path for (path,) in items]
    for path in paths:
        image, words = made.add_image(path, path, size=(100, 100)), Path(path).read_text().split()
        if not words:
            made.findings.add("empty", path)
        for word in words:
            made.add_box(image, (0.0, 0.0, float(word), 1 / 3), 0, 0)
    if log := os.environ.get("LOG"):
        with Path(log).open("a") as file:
            file.write("".join(f"{path}\n" for path in paths))
    return made.raw(names=["a class"], depends=paths)


def dying(items: list[tuple[str, ...]]) -> Raw:
    if any(path == os.environ.get("FATAL") for (path,) in items):
        os.kill(os.getpid(), signal.SIGKILL)
    return numbers(items)


def refusing(items: list[tuple[str, ...]]) -> Raw:
    raise UserError([f"{items[0][0]}: bad", "expected better"])


def damaged(items: list[tuple[str, ...]]) -> Raw:
    raise ZeroDivisionError("in the work")


def slow(items: list[tuple[str, ...]]) -> Raw:
    import time

    Path(os.environ["LOG"]).write_text(str(os.getpid()))
    time.sleep(600)
    return numbers(items)
