"""Ranks that are threads of this process: the weights of one device and of processes; errors as they come."""

from __future__ import annotations

import functools
import os
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import rankless
from rankless.data.loader import LoaderDiedError
from rankless.errors import INTERRUPTED, TaskError, UserError
from rankless.launch.inline import _main_error
from rankless.models.weights_files.weights import digest_file
from rankless.recipe.load import load
from rankless.recipe.schema import Recipe
from rankless.runs import journal
from rankless.runs.directory import RunDirectory
from rankless.world.process_group import LostPeerError
from support.process_server import SERVER

pytestmark = pytest.mark.processes

SIX = ["batch.images=12", "batch.micro=2", "epochs=2", "evaluate.every=0"]
CLASSIFIER = ["digits-classify", "model.name=resnet20-cifar", "model.image_size=16", "model.dropout=0.3"]
CASES = {
    "detector": ["SMALL", *SIX],
    "detector, bf16, sync": ["SMALL", *SIX, "precision=bf16", "batch_norm=sync"],
    "classifier": [*CLASSIFIER, *SIX, "precision=fp32"],
}
STEPS = 3


def outcome(run: Path) -> tuple[str, list[dict[str, Any]]]:
    directory = RunDirectory(run)
    last = directory.step_directory(directory.pointed("last") or 0)
    return digest_file(last / "model.safetensors"), journal.numbers(directory.journal)


@pytest.fixture(scope="module")
def recipe(small_recipe):
    def of(case: str, *more: str) -> Recipe:
        name, *words = CASES[case]
        return load(small_recipe if name == "SMALL" else name, [*words, *more])

    return of


@pytest.fixture(scope="module")
def expected(recipe, tmp_path_factory):
    """The outcome of a case on one device, or with two processes."""

    @functools.cache
    def of(case: str) -> tuple[str, list[dict[str, Any]]]:
        run = tmp_path_factory.mktemp("expected") / "run"
        way: dict[str, Any] = {"devices": 2} if case == "classifier" else {"inline": True}
        assert rankless.train(recipe(case), run, dry_run_steps=STEPS, **way) == 0
        return outcome(run)

    return of


@pytest.mark.parametrize(("case", "size"), [("detector", 3), ("detector, bf16, sync", 2), ("classifier", 2)])
def test_the_weights_do_not_know_the_number_of_threads(case, size, recipe, expected, tmp_path):
    torch.manual_seed(5)
    drawn, threads = torch.get_rng_state(), set(threading.enumerate())
    run = tmp_path / "run"
    code = rankless.train(recipe(case), run, parallel="threads", devices=size, dry_run_steps=STEPS)
    assert code == 0 and outcome(run) == expected(case)
    # Nothing of this process is left changed.
    assert torch.equal(torch.get_rng_state(), drawn) and set(threading.enumerate()) <= threads
    assert not torch.distributed.is_initialized()


def test_in_a_thread_of_a_notebook_and_with_loader_processes(recipe, expected, tmp_path):
    """Some notebooks run cells in threads. Loaders start as ever."""
    codes: list[int] = []

    def cell() -> None:
        loading = recipe("detector", "workers=1")
        run = tmp_path / "run"
        codes.append(rankless.train(loading, run, parallel="threads", devices=2, dry_run_steps=STEPS))

    thread = threading.Thread(target=cell)
    thread.start()
    thread.join(300)
    assert codes == [0] and outcome(tmp_path / "run") == expected("detector")


INTERRUPTING = """\
import os, signal
import rankless

class Interrupting(rankless.Sink):
    def step(self, entry):
        if entry["step"] == 1:
            os.kill(os.getpid(), signal.SIGINT)
"""


def test_ctrl_c_saves_and_processes_go_on(recipe, tmp_path, capfd):
    (tmp_path / "interrupting.py").write_text(INTERRUPTING)
    run, short = tmp_path / "run", recipe("detector", "evaluate.every=0")
    sinks = [f"{tmp_path}/interrupting.py:Interrupting"]
    assert rankless.train(short, run, parallel="threads", devices=3, sinks=sinks) == INTERRUPTED
    printed = capfd.readouterr()
    assert "on 3 threads, fp32" in printed.out and "stopped by SIGINT; saved after step" in printed.err
    assert rankless.train(short, run, resume=True, devices=2) == 0
    assert rankless.train(short, tmp_path / "whole", inline=True) == 0
    assert outcome(run)[0] == outcome(tmp_path / "whole")[0]


BROKEN = """
    import threading
    from rankless.tasks.classify import Classify
    from rankless.tasks.detect import Detect

    class Broken(Classify):
        def loss(self, model, batch):
            if threading.current_thread().name == "rank 1":
                return {"a": 1}["b"]
            return super().loss(model, batch)

    class Stops(Detect):
        has_stopped = False

        def loss(self, model, batch):
            if threading.current_thread() is threading.main_thread() and not self.has_stopped:
                self.has_stopped = True
                breakpoint()
            return super().loss(model, batch)
"""


def test_an_error_of_one_thread_ends_all_and_keeps_its_cause(tmp_path, monkeypatch):
    (tmp_path / "breaking_task.py").write_text(textwrap.dedent(BROKEN))
    monkeypatch.syspath_prepend(tmp_path)
    words = ["task=breaking_task:Broken", *CLASSIFIER[1:], "batch.micro=4", "evaluate.every=0"]
    broken = load("digits-classify", words)
    with pytest.raises(TaskError) as caught:
        rankless.train(broken, tmp_path / "run", parallel="threads", devices=3)
    assert "return {" in str(caught.value) and "breaking_task.py:9, in loss" in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)  # what a debugger shows, frame by frame
    assert journal.ending(tmp_path / "run" / "journal.jsonl") != "it finished after step 1"
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("rank ")] == []


def test_a_breakpoint_in_the_task_holds_all_threads(small_recipe, tmp_path):
    (tmp_path / "stopping_task.py").write_text(textwrap.dedent(BROKEN))
    words = [small_recipe, "task=stopping_task.py:Stops", "epochs=1", "evaluate.every=0"]
    words += ["batch.images=6", "batch.micro=3"]
    asked = "p sorted(t.name for t in threading.enumerate() if 'rank' in t.name)\nc\n"
    options = ["--run", "run", "--parallel", "threads", "--devices", "2"]
    (tmp_path / "asked").write_text(asked)
    environment = {**os.environ, "RANKLESS_CPU": "1"}
    with (tmp_path / "asked").open("rb") as given, (tmp_path / "printed").open("wb") as output:
        command = ["-m", "rankless", "train", *words, *options]
        process = SERVER.start(command, environment=environment, cwd=tmp_path, given=given, output=output)
        code = process.wait(300)
    printed = (tmp_path / "printed").read_text()
    assert code == 0, printed
    assert "['rank 1']" in printed and "run directory: run" in printed


def test_what_is_in_the_way_is_said_at_once(recipe, tmp_path):
    run, words = tmp_path / "run", ["reduce=fast", "model.checkpointing=true", "cpu_isa=avx2"]
    with pytest.raises(UserError) as caught:
        rankless.train(recipe("detector", *words), run, parallel="threads", devices=2)
    fast, checkpointing, isa = caught.value.problems
    assert fast.startswith("parallel: reduce is 'fast', but threads exchange only along the fixed tree")
    assert checkpointing.startswith("parallel: model.checkpointing is true, but")
    assert isa.startswith("parallel: cpu_isa is 'avx2'") and "train … --parallel threads" in isa
    with pytest.raises(UserError, match="parallel is 'thread': expected one of processes, threads"):
        rankless.train(recipe("detector"), run, parallel="thread")
    with pytest.raises(UserError, match="--devices is 9, but a step has only 6 micro-batches"):
        rankless.train(recipe("detector"), run, parallel="threads", devices=9)
    assert not run.exists()


def test_the_first_cause_is_raised():
    lost, died = LostPeerError("rank 1 has ended"), LoaderDiedError("was killed by SIGKILL")
    one, other = UserError("a: is 1"), UserError("b: is 2")
    assert _main_error([None, None]) is None
    assert _main_error([lost, died, one]) is died
    assert _main_error([lost, one, UserError("a: is 1")]) is one
    merged = _main_error([one, other, lost])
    assert isinstance(merged, UserError) and merged.problems == ("a: is 1", "b: is 2")
    assert _main_error([lost, None]) is lost
