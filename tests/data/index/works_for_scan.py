"""Readers that scan tests send to real processes; a module of its own, so that it is imported by name."""

import os
import signal
from pathlib import Path

import numpy as np

from rankless.data.index.findings import Findings
from rankless.data.index.raw import Raw
from rankless.errors import UserError


def numbers(items: list[tuple[str, ...]]) -> Raw:
    """One box per number in each file; notes in ``LOG`` that the files were read."""
    boxes, image, findings = [], [], Findings()
    for number, (path,) in enumerate(items):
        words = Path(path).read_text().split()
        if not words:
            findings.add("empty", path)
        for word in words:
            image.append(number)
            boxes.append((0.0, 0.0, float(word), 1 / 3))
    if log := os.environ.get("LOG"):
        with Path(log).open("a") as file:
            file.write("".join(f"{path}\n" for (path,) in items))
    none = np.zeros(len(boxes))
    return Raw(
        paths=[path for (path,) in items],
        sizes=np.full((len(items), 2), 100, np.int32),
        stated=np.zeros((len(items), 2), np.int32),
        annotated_in=[path for (path,) in items],
        image=np.array(image, np.int64),
        boxes=np.array(boxes, np.float64).reshape(-1, 4),
        labels=none.astype(np.int64),
        flags=none.astype(np.uint8),
        areas=np.full(len(boxes), np.nan, np.float32),
        lines=none.astype(np.int64),
        names=["a class"],
        depends=[path for (path,) in items],
        findings=findings,
        about=[f"began with {Path(items[0][0]).name}"] if items else [],
    )


def dying(items: list[tuple[str, ...]]) -> Raw:
    """:func:`numbers`, but where the file ``FATAL`` names is among the items the process is killed."""
    if any(path == os.environ.get("FATAL") for (path,) in items):
        os.kill(os.getpid(), signal.SIGKILL)
    return numbers(items)


def refusing(items: list[tuple[str, ...]]) -> Raw:
    """A user's mistake."""
    raise UserError([f"{items[0][0]}: bad", "expected better"])


def damaged(items: list[tuple[str, ...]]) -> Raw:
    """A mistake of the program's."""
    raise ZeroDivisionError("in the work")


def slow(items: list[tuple[str, ...]]) -> Raw:
    """Says that it has begun, and takes for ever."""
    import time

    Path(os.environ["LOG"]).write_text(str(os.getpid()))
    time.sleep(600)
    return numbers(items)
