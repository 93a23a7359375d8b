"""Training in the caller's own process: the same weights, and errors and requests to stop as they come."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import rankless
from rankless.cli import main
from rankless.errors import INTERRUPTED, UserError
from rankless.launch.requests import TWICE
from rankless.models.weights_files.weights import digest_file
from rankless.recipe.load import load
from rankless.runs.directory import RunDirectory

pytestmark = pytest.mark.processes

WORDS = ["batch.images=12", "batch.micro=4", "epochs=3"]
STEPS = 6


class Watcher(rankless.Sink):
    """Notes the process, and sends it signals after a step."""

    seen: ClassVar[list[int]] = []
    kill_at: ClassVar[dict[int, int]] = {}

    def step(self, entry: Mapping[str, Any]) -> None:
        self.seen.append(os.getpid())
        for number in range(self.kill_at.get(entry["step"], 0)):
            time.sleep(1.5 * TWICE * bool(number))  # so that the second one is one of its own
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def watcher():
    Watcher.seen.clear()
    Watcher.kill_at.clear()
    return Watcher


@pytest.fixture(scope="module")
def recipe(small_recipe):
    return load(small_recipe, WORDS)


@pytest.fixture(scope="module")
def launched(recipe, tmp_path_factory):
    """The digest of the run of two processes."""
    run = tmp_path_factory.mktemp("launched") / "run"
    assert rankless.train(recipe, run, devices=2) == 0
    return weights_of(run)


def weights_of(run: Path, step: int = STEPS) -> str:
    return digest_file(RunDirectory(run).step_directory(step) / "model.safetensors")


def test_it_is_this_process_and_the_weights_are_the_same(recipe, launched, tmp_path, watcher):
    threads, numbers = torch.get_num_threads(), (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.getsignal(number) for number in numbers]
    torch.manual_seed(5)
    drawn = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    run = tmp_path / "run"
    assert rankless.train(recipe, run, inline=True, sinks=[Watcher]) == 0
    assert watcher.seen == [os.getpid()] * STEPS
    assert weights_of(run) == launched
    # Nothing of this process is left changed.
    assert torch.equal(torch.get_rng_state(), drawn[0]) and random.getstate() == drawn[1]
    assert np.random.get_state()[1].tolist() == drawn[2]  # noqa: NPY002
    assert threads == torch.get_num_threads() and not torch.are_deterministic_algorithms_enabled()
    assert [signal.getsignal(number) for number in numbers] == handlers
    assert not torch.distributed.is_initialized()


def test_ctrl_c_saves_and_the_run_goes_on(recipe, launched, tmp_path, watcher, capfd):
    run, sinks = tmp_path / "run", [Watcher]
    watcher.kill_at[2] = 1
    assert rankless.train(recipe, run, inline=True, sinks=sinks) == INTERRUPTED
    assert "stopped by SIGINT; saved after step" in capfd.readouterr().err
    assert 2 <= RunDirectory(run).pointed("last") < STEPS
    watcher.kill_at.clear()
    assert rankless.train(recipe, run, inline=True, resume=True, sinks=sinks) == 0
    assert weights_of(run) == launched


def test_a_second_ctrl_c_interrupts(recipe, tmp_path, watcher):
    watcher.kill_at[2] = 2
    with pytest.raises(KeyboardInterrupt):
        rankless.train(recipe, tmp_path / "run", inline=True, sinks=[Watcher])
    assert not torch.distributed.is_initialized()
    # The lock is free again.
    with pytest.raises(UserError, match="already contains a run") as caught:
        rankless.train(recipe, tmp_path / "run", inline=True, resume=False)
        raise UserError("already contains a run")  # before its first checkpoint it may begin again
    assert "another process" not in str(caught.value)


def test_what_is_in_the_way_is_said_at_once(recipe, tmp_path):
    with pytest.raises(UserError) as caught:
        rankless.train(load("digits-classify", ["cpu_isa=avx2"]), tmp_path / "run", inline=True, devices=2)
    first, second = caught.value.problems
    assert first.startswith("inline: trains in this process on one device, but 2 devices were requested")
    assert second.startswith("inline: cpu_isa is 'avx2', which must be set before PyTorch is imported")
    assert not (tmp_path / "run").exists()


def test_the_command_refuses_what_does_not_go_with_it():
    assert main(["train", "digits", "--inline", "--hosts", "a,b"]) == 2
