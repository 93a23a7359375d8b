"""Loader processes change the time and nothing else: batches, faults, chance and ends."""

import itertools
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision import tv_tensors

from rankless.data.datasets.detection import DetectionExamples, collate
from rankless.data.images.image_file import UnreadableImage
from rankless.data.loader import LoaderDiedError, MicroBatches
from rankless.data.order import Line, micro_batch
from rankless.errors import TaskError, UserError
from rankless.hardware.cpu_threads import set_threads
from rankless.randomness import torch_seed
from rankless.recipe.schema import Augment, Batch
from rankless.structures import Unreadable
from support.examples_for_loader import (
    Facts,
    Made,
    Rows,
    Strict,
    Threads,
    WholeLines,
    WholeThreads,
    layouts,
    noise,
    with_threads,
)
from support.process_server import SERVER

pytestmark = pytest.mark.timeout(120)


def lines(*samples: Sequence[tuple[int, int]]) -> list[Line]:
    return [Line(step, each) for step, each in enumerate(samples)]


def endless(drawn: list[int], seed: int = 5) -> Iterator[Line]:
    batch = Batch(images=10, micro=5)
    for step in itertools.count():
        for number in range(batch.micro_batches):
            drawn.append(step)
            yield Line(step, micro_batch(20, seed, step, number, batch))


HEAVY = Augment(
    preset="heavy", close_mosaic=0, mosaic=0.8, mixup_probability=0.5, copy_paste=0.5, partners="batch"
)
EXAMPLES = DetectionExamples(Made(noise), (32, 64), 1, HEAVY)


@pytest.mark.processes
def test_the_number_of_processes_changes_no_batch() -> None:
    runs = []
    for workers in (0, 2):
        drawn: list[int] = []
        state = torch.random.get_rng_state()
        with MicroBatches(EXAMPLES, collate, endless(drawn), workers=workers) as batches:
            runs.append(list(itertools.islice(batches, 9)))
            assert batches.waited > 0
            before = batches.waited
            time.sleep(0.2)
            assert batches.waited == before
        assert torch.equal(torch.random.get_rng_state(), state)
        assert len(drawn) <= 9 + 2 * workers  # an endless plan is drawn as it is needed
        with pytest.raises(StopIteration):
            next(batches)
        batches.close()
    for a, b in zip(*runs, strict=True):
        assert a.indices == b.indices and a.letterboxes == b.letterboxes and a.unreadable == b.unreadable
        for name in ("images", "boxes", "labels", "valid"):
            assert torch.equal(getattr(a, name), getattr(b, name))
    seen = [index for batch in runs[0][:4] for index in batch.indices]
    assert sorted(seen) == list(range(20))  # one epoch of 20 images in four micro-batches of 5
    assert {one for batch in runs[0] for one in batch.unreadable} == {
        Unreadable(13, "thirteen.jpg", "cut short")
    }


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_of_the_users_own_is_the_same_wherever_it_is_made(workers: int) -> None:
    """Random numbers, memory layout and settings: all that a collate() may have from its process."""
    own = [torch.get_default_dtype(), torch.backends.mkldnn.matmul.fp32_precision]  # type: ignore[attr-defined]
    plan = lines([(0, 1), (0, 2)], [(0, 3), (0, 4)], [(0, 1), (0, 2)], [(1, 1), (1, 2)])
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    expected = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    try:
        torch.set_default_dtype(torch.float64)
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # type: ignore[attr-defined]
        torch.set_flush_denormal(True)
        torch.set_deterministic_debug_mode("warn")
        with np.errstate(over="ignore"), MicroBatches(Rows(), layouts, plan, workers=workers, seed=7) as made:
            batches = list(made)
    finally:
        torch.set_default_dtype(own[0])
        torch.backends.mkldnn.matmul.fp32_precision = own[1]  # type: ignore[attr-defined]
        torch.set_flush_denormal(False)
        torch.set_deterministic_debug_mode("default")
    assert expected == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # noqa: NPY002
    assert len({tuple(batch.drawn) for batch in batches}) == 4  # each step, and each line, has its own
    first = batches[0]
    torch.manual_seed(torch_seed(7, "collate", 0, 0, 1))
    assert first.drawn[2] == float(torch.rand((), dtype=torch.float64))
    assert first.settings == ["torch.float64", "bf16", True, 0.0, "ignore"]
    features, labels = first.views
    assert labels.tolist() == [1, 2] and features.tolist() == [list(range(2, 8)), list(range(3, 9))]
    assert features.stride() == (7, 1) and labels.stride() == (7,) and first.boxes.stride() == (7, 1)
    # Where they were in a storage that now begins at a multiple of 64 bytes.
    assert [one.data_ptr() % 64 for one in (features, labels, first.boxes)] == [4, 0, 4]
    assert features.untyped_storage()._cdata == labels.untyped_storage()._cdata
    assert isinstance(first.boxes, tv_tensors.BoundingBoxes) and first.boxes.canvas_size == (8, 8)
    for array in first.arrays.values():
        assert array.flags.c_contiguous and array.ctypes.data % 64 == 0
    assert first.arrays["rows"].tolist() == features.tolist()


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_image_is_reported_as_itself(workers: int) -> None:
    plan = lines([(0, 1), (0, 2)], [(0, 3), (0, 13)], [(0, 4)])
    batches = MicroBatches(Strict(), list, plan, workers=workers)
    assert next(batches) == [1, 2]
    with pytest.raises(UserError) as caught:
        next(batches)
    assert type(caught.value) is UnreadableImage
    assert (caught.value.path, caught.value.reason) == ("thirteen.jpg", "cut short")
    with pytest.raises(StopIteration):
        next(batches)


@pytest.mark.processes
def test_processes_have_one_thread_ignore_signals_and_end() -> None:
    batches = MicroBatches(Facts(), list, lines([(0, 0)]) * 100, workers=2)
    facts = [next(batches)[0] for _ in range(6)]
    processes = {pid for pid, *_ in facts}
    assert len(processes) == 2 and os.getpid() not in processes
    assert {threads for _, threads, *_ in facts} == {1}
    assert all(ignored for _, _, ignored, _ in facts)
    for pid in processes:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    assert {next(batches)[0][0] for _ in range(10)} == processes  # still at work
    batches.close()
    assert not any(alive(pid) for pid in processes)


@pytest.mark.processes
@pytest.mark.parametrize(("kind", "workers"), [(Threads, 0), (WholeThreads, 0), (WholeThreads, 1)])
def test_items_and_collate_have_one_thread_wherever_they_run(kind: type[Threads], workers: int) -> None:
    before = torch.get_num_threads()
    set_threads(3)
    try:
        with MicroBatches(kind(), with_threads, lines([(0, 0)]), workers=workers) as batches:
            assert next(batches) == [1, 1]
        assert torch.get_num_threads() == 3
        with MicroBatches(Facts(), list, lines([(0, 2)]), workers=0) as batches, pytest.raises(TaskError):
            next(batches)
        assert torch.get_num_threads() == 3
    finally:
        set_threads(before)


@pytest.mark.processes
@pytest.mark.parametrize("finished", [False, True])
def test_a_killed_process_is_named_at_any_point_of_its_work(finished: bool) -> None:
    drawn: list[int] = []
    with MicroBatches(EXAMPLES, collate, endless(drawn), workers=1) as batches:
        next(batches)
        (process,) = multiprocessing.active_children()
        assert process.pid
        if finished:
            time.sleep(1)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(LoaderDiedError, match="was killed by SIGKILL, probably because memory ran out"):
            for _ in range(4):
                next(batches)


@pytest.mark.processes
def test_a_stuck_process_does_not_hold_up_the_end() -> None:
    batches = MicroBatches(Facts(), list, lines([(0, 0)]) * 4 + lines([(0, 1)]) * 4, workers=2)
    processes = [process.pid for process in multiprocessing.active_children()]
    assert len(processes) == 2
    for _ in range(4):
        next(batches)
    time.sleep(0.3)  # now both are stuck, for longer than a test may take
    batches.close()
    assert not any(alive(pid) for pid in processes if pid)


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_in_the_users_own_code_is_reported_with_its_line(workers: int) -> None:
    with (
        MicroBatches(Facts(), list, lines([(0, 2)]), workers=workers) as batches,
        pytest.raises(TaskError) as caught,
    ):
        next(batches)
    first, place, line = str(caught.value).splitlines()
    assert first == "ZeroDivisionError: an error in the user's code"
    assert re.fullmatch(r"  .*/examples_for_loader\.py:\d+, in item", place)
    assert line == """    raise ZeroDivisionError("an error in the user's code")"""


@pytest.mark.processes
def test_an_error_of_the_program_keeps_its_trace() -> None:
    examples = DetectionExamples(Made(noise), (32, 32), 0, None)
    examples.images = [None]  # type: ignore[assignment]
    with (
        MicroBatches(examples, list, lines([(0, 0)]), workers=1) as batches,
        pytest.raises(AttributeError, match="in item"),
    ):
        next(batches)


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 1])
def test_examples_that_draw_whole_lines_are_given_them_with_their_step(workers: int) -> None:
    plan = [Line(3, [(0, 4), (1, 5)]), Line(4, [(1, 6)]), Line(7, [(2, 1), (2, 2)])]
    batches = MicroBatches(WholeLines(), list, plan, workers=workers)
    assert next(batches) == ["3: 4 of 2 in 0", "3: 5 of 2 in 1"]
    assert next(batches) == ["4: 6 of 1 in 1"]
    with pytest.raises(UserError, match=r"items\(\) of WholeLines returned 1 item for 2 images"):
        next(batches)


def test_a_plan_ends() -> None:
    with MicroBatches(Facts(), list, lines([(0, 0)], [(0, 0), (3, 0)]), workers=0) as batches:
        assert [len(batch) for batch in batches] == [1, 2]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


RANK = """
import tempfile
folder = tempfile.TemporaryDirectory()  # a finalizer from before multiprocessing is imported
import os, signal, sys, time
sys.path.insert(0, {folder!r})
from rankless.hardware import forking
from rankless.data.loader import MicroBatches
from rankless.data.order import Line
from support.examples_for_loader import Facts

def save_and_wait(number, frame):
    time.sleep(0.5)
    print(*{{next(batches)[0][0] for _ in range(50)}}, flush=True)
    time.sleep(60)

if __name__ == "__main__":
    forking.fork_early()
    batches = MicroBatches(Facts(), list, [Line(0, [(0, 0)])] * 10**6, workers=2)
    signal.signal(signal.SIGTERM, save_and_wait)
    print(*{{next(batches)[0][0] for _ in range(6)}}, flush=True)
    if {waits}:
        signal.pause()
"""


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("waits", [True, False])
def test_processes_live_exactly_as_long_as_their_rank(tmp_path: Path, waits: bool) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK.format(folder=str(Path(__file__).parents[1]), waits=waits))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    takes, gives = os.pipe()
    with os.fdopen(takes) as said:
        with os.fdopen(gives, "wb") as output:
            rank = subprocess.Popen(
                [sys.executable, script], env=environment, cwd=tmp_path, stdout=output, start_new_session=True
            )
        processes = set(map(int, said.readline().split()))
        assert len(processes) == 2
        if waits:
            os.killpg(
                rank.pid, signal.SIGTERM
            )  # as a scheduler does: the rank still needs data for its last step
            assert set(map(int, said.readline().split())) == processes
            rank.kill()
        status = rank.wait(30)
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in processes) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(alive(pid) for pid in processes)
    assert status == (-signal.SIGKILL if waits else 0)


EARLY = """
import itertools, os, signal, sys
from pathlib import Path
from rankless.data import loader
from rankless.hardware import forking
from rankless.data.order import Line

def server_of_loaders(examples):
    with loader.MicroBatches(examples, list, (Line(0, [(0, 0)]) for _ in range(4)), workers=2) as batches:
        loaders = {facts[0] for (facts,) in batches}
    assert len(loaders) == 2 and os.getpid() not in loaders
    server = forking.forkserver._forkserver._forkserver_pid
    return server, Path(f"/proc/{server}/comm").read_text().strip()

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    if sys.argv[2] == "before":
        from support.examples_for_loader import Facts
    forking.fork_early()
    from support.examples_for_loader import Facts
    server, name = server_of_loaders(Facts())
    print(name)
    assert server_of_loaders(Facts()) == (server, name), "the same for the next loader"
    if name == "loader server":
        os.kill(server, signal.SIGKILL)
        os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
        assert server_of_loaders(Facts())[1] != name
"""


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("imported", ["before", "after"])
def test_loaders_are_forked_from_the_rank_if_it_had_what_they_need(tmp_path: Path, imported: str) -> None:
    (tmp_path / "early.py").write_text(EARLY)
    run = SERVER.run(str(tmp_path / "early.py"), str(Path(__file__).parents[1]), imported, cwd=tmp_path)
    assert run.returncode == 0 and not run.stderr, run.stderr
    assert (run.stdout == "loader server\n") == (imported == "before")
