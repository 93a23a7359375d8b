"""Checkpoints that are written while training goes on: with the bits of one that it waits for."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rankless.engine import checkpoint
from rankless.engine.checkpoint import Copies, Snapshot
from rankless.engine.saver import Saver
from rankless.runs.directory import RunDirectory
from rankless.runs.saving import saving_process
from support.small_saves import messages_of, saver_of


class State(SimpleNamespace):
    """A state whose tensors change in place, as a training's do; not all lie as in a file."""

    def __init__(self) -> None:
        nets = [torch.ones(4, 3, 5, 5).to(memory_format=torch.channels_last) for _ in range(2)]
        tensors = {"net": nets[0], "average": nets[1], "momentum": torch.ones(3, 7).T}
        unreadable: dict[str, list[Any]] = {"trained": []}
        super().__init__(best=None, unreadable=unreadable, tensors=tensors, counted=torch.tensor(1))

    def go_on(self) -> None:
        for tensor in self.tensors.values():
            tensor.add_(torch.arange(tensor.numel()).view(tensor.shape))
        self.counted += 1
        self.unreadable["trained"].append([int(self.counted), "a.jpg", "cut"])

    def snapshot(self, step: int) -> Snapshot:
        model = {"weight": self.tensors["net"], "counted": self.counted}
        average = {"weight": self.tensors["average"]}
        rest = {"best": self.best, "images": 7, "unreadable": self.unreadable}
        return Snapshot(step, model, average, {"momentum/weight": self.tensors["momentum"]}, rest)


def saver_in(folder: Path) -> Saver:
    return saver_of(State(), folder, keep=9)


class Gate:
    """A disk that takes nothing until the gate is open."""

    def __init__(self) -> None:
        self.reached, self.open, self.problem = threading.Event(), threading.Event(), 0
        self.threads: list[set[str]] = [set()]  # that were here while one was
        self._flush = os.fsync

    def flush(self, file: int) -> None:
        self.threads[-1].add(threading.current_thread().name)
        self.reached.set()
        assert self.open.wait(60)
        self.threads.append(set())
        if self.problem:
            raise OSError(self.problem, os.strerror(self.problem))
        self._flush(file)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    monkeypatch.setattr(os, "fsync", gate.flush)
    yield gate
    gate.open.set()


def sums(run: RunDirectory) -> dict[int, str]:
    return {step: (run.step_directory(step) / "SHA256SUMS").read_text() for step in run.steps()}


def test_training_goes_on_and_does_not_change_what_is_written(tmp_path: Path, gate: Gate) -> None:
    gate.open.set()
    background, waited_for = saver_in(tmp_path / "background"), saver_in(tmp_path / "waited for")
    for saver in (background, waited_for):
        saver.save(1, required=True)
        saver.state.go_on()  # type: ignore[attr-defined]
    gate.open.clear()
    gate.reached.clear()
    background.save(2, required=False)
    assert gate.reached.wait(60)
    for _ in range(3):
        background.state.go_on()  # type: ignore[attr-defined]
        background.poll()
    assert saving_process(background.run) == os.getpid()
    assert background.run.steps() == [1] and background.run.pointed("last") == 1
    assert checkpoint.damage(background.run.step_directory(1)) is None
    gate.open.set()
    background.settle()
    assert saving_process(background.run) is None
    assert background.run.pointed("last") == 2
    assert checkpoint.newest(background.run, pytest.fail) == 2
    waited_for.save(2, required=True)
    assert sums(background.run) == sums(waited_for.run)
    assert not messages_of(background)
    background.close()


@pytest.mark.parametrize("ending", [Saver.settle, Saver.close, lambda saver: saver.save(3, required=True)])
def test_the_next_call_waits_for_a_running_save(
    tmp_path: Path, gate: Gate, ending: Callable[[Saver], None]
) -> None:
    saver = saver_in(tmp_path)
    saver.save(2, required=False)
    assert gate.reached.wait(60)
    threading.Timer(0.05, gate.open.set).start()
    ending(saver)
    assert max(map(len, gate.threads)) == 1, "one save at a time"
    assert saver.run.steps()[0] == 2 and checkpoint.damage(saver.run.step_directory(2)) is None


@pytest.mark.parametrize("ending", [Saver.settle, Saver.close, Saver.poll])
def test_one_that_fails_is_reported_when_it_is_known(
    tmp_path: Path, gate: Gate, ending: Callable[[Saver], None]
) -> None:
    saver = saver_in(tmp_path)
    saver.rank(2, {"AP": 0.5}, "AP")
    gate.problem = errno.ENOSPC
    saver.save(2, required=False)
    assert gate.reached.wait(60) and not messages_of(saver)
    gate.open.set()
    while saver._begun and not saver._begun[1].done():  # type: ignore[union-attr]
        pass
    ending(saver)
    (message,) = messages_of(saver)
    assert message.startswith("the checkpoint of step 2 could not be written ([Errno 28] No space left on")
    assert saver.run.steps() == [] and not list(saver.run.checkpoints.glob(".step-*"))
    if ending is not Saver.close:
        assert saver.state.best is None and message.endswith("training continues")
    saver.close()


def test_copies_lie_in_the_same_memory(tmp_path: Path) -> None:
    state, copies = State(), Copies()

    def places(snapshot: Snapshot) -> list[int]:
        assert snapshot.ema is not None
        return [
            tensor.data_ptr()
            for part in (snapshot.model, snapshot.ema, snapshot.training)
            for tensor in part.values()
        ]

    first = places(copies.copy(state.snapshot(1)))
    state.go_on()
    second = copies.copy(state.snapshot(2))
    assert places(second) == first and not set(first) & set(places(state.snapshot(2)))
    assert all(tensor.is_contiguous() for tensor in second.model.values())
    assert torch.equal(second.model["weight"], state.tensors["net"])
    state.tensors["momentum"] = torch.ones(11)  # as where a backbone is released
    assert copies.copy(state.snapshot(3)).training["momentum/weight"].shape == (11,)


class Scarce(dict[str, Tensor]):
    """Takes more memory than there is the first time it is read."""

    is_read = False

    def items(self) -> Any:
        if not self.is_read:
            self.is_read = True
            torch.empty(1 << 50)
        return super().items()


def test_where_there_is_no_memory_for_a_copy_training_waits(tmp_path: Path, gate: Gate) -> None:
    gate.open.set()
    saver = saver_in(tmp_path)
    state: Any = saver.state
    whole = state.snapshot(2)
    state.snapshot = lambda step: replace(whole, step=step, model=Scarce(whole.model))
    saver.save(2, required=False)
    assert saver.run.pointed("last") == 2  # before anybody asks
    state.snapshot = lambda step: 1 / 0
    with pytest.raises(ZeroDivisionError):
        saver.save(3, required=False)
    assert saving_process(saver.run) is None
