"""What several rooms' tests need: ranks to run functions on, and a small data set to train on."""

from __future__ import annotations

import contextlib
import gc
import inspect
import itertools
import multiprocessing.process
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from support import thorough  # noqa: F401  # registers the profiles that test modules name
from support.made_once import made_once
from support.process_server import RANKS, SERVER, SHARED, STARTED

HERE = Path(__file__).parent
SUPPORT = HERE / "support"

# A shell ignores these for what it starts in the background, and so would all that tests start and interrupt.
for number in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def pytest_configure(config: pytest.Config) -> None:
    """Prepare a process that runs tests; the one that only hands them out to workers imports no PyTorch."""
    os.environ.setdefault(SHARED, f"{CACHE.name}/server")
    if "PYTHON_EXEC" not in os.environ:
        os.environ["PYTHON_EXEC"] = _forked_python()
    if config.getoption("numprocesses", 0) and not hasattr(config, "workerinput"):
        return
    import numpy.testing  # noqa: F401 - older releases run lscpu in this import; here it is not inside a test
    import torch  # noqa: F401 - so does its import, by way of the bindings for CUDA

    from rankless.engine import loader_count
    from rankless.hardware.heap import fill_with_nan
    from rankless.launch import fork_server

    # The ranks that tests start in their own process are forked, as those of the command are.
    fork_server._running = SERVER  # type: ignore[assignment]
    loader_count.usable_cores = lambda: 1  # so that tests alone decide about loader processes
    fill_with_nan()  # so that what reads memory that nobody wrote shows


def _forked_python() -> str:
    """A program like Python's, with which torchrun starts ranks that have PyTorch at once."""
    program = Path(CACHE.name) / "python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{SUPPORT / "forked_python.py"}" "$@"\n')
    program.chmod(0o755)
    return str(program)


# `make test-fast` leaves out what is marked as starting processes. So that no mark is forgotten, a test
# without it fails where it starts one.
UNMARKED: list[str] = []
STARTS = {"subprocess.Popen", "os.fork", "os.posix_spawn", "os.system", STARTED}


def _refuse_in_unmarked_tests() -> None:
    if UNMARKED and multiprocessing.current_process().name == "MainProcess":
        pytest.fail(f"{UNMARKED[0]} starts a process: mark it 'processes'", pytrace=True)


def _audit(event: str, _: tuple[Any, ...]) -> None:
    if event in STARTS:
        _refuse_in_unmarked_tests()


sys.addaudithook(_audit)
_start = multiprocessing.process.BaseProcess.start


def _checked_start(process: multiprocessing.process.BaseProcess) -> None:
    _refuse_in_unmarked_tests()  # a fork server starts processes without an audit event
    _start(process)


multiprocessing.process.BaseProcess.start = _checked_start  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note which test runs while it may start no process."""
    if item.get_closest_marker("processes") is None:
        UNMARKED.append(item.nodeid)
    try:
        return (yield)
    finally:
        UNMARKED.clear()


def pytest_collection_finish() -> None:
    """What has been imported and collected stays: no garbage collection has to walk through it again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Keep tests that share a slow fixture on one worker, and start with those that take longest."""
    _group(items)
    yield
    for item in items:  # pytest 9.2 has moved the name, and xdist 3.8 writes the group to where it was
        named = getattr(item, "_nodeid", item.nodeid)
        if named != item.nodeid:
            item._id = type(item._id).parse(named)  # type: ignore[attr-defined]


def _group(items: list[pytest.Item]) -> None:
    """Mark the groups, each of which one worker runs, and sort them.

    Together are the tests that share a fixture of their file, and those that call functions on ranks, half of
    whose files are one group: two workers have ranks then, and not all. Every other test that starts
    processes is a group of its own, so that no worker is left with a long file at the end; the others fill
    the gaps, five or twenty of them a group, because handing out one takes longer the more there are. First
    come the ranks, which compute, and beside them the machines, which mostly wait.
    """
    with_ranks = sorted({item.path for item in items if "ranks" in item.fixturenames})  # type: ignore[attr-defined]
    seen: Counter[tuple[Path, int]] = Counter()

    def group(item: pytest.Item) -> str:
        if given := item.get_closest_marker("xdist_group"):
            return str(given.args[0])
        definitions = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
        if "ranks" not in definitions and all(one[-1].scope != "module" for one in definitions.values()):
            if (long := length(item)) > 1:
                return item.nodeid
            seen[item.path, long] += 1
            number = seen[item.path, long] // (5 if long else 20)
            return f"{item.nodeid.partition('::')[0]}-{long}-{number}"
        if item.path in with_ranks:
            return f"ranks-{with_ranks.index(item.path) % 2}"
        return item.nodeid.partition("::")[0]

    def length(item: pytest.Item) -> int:
        if item.path.parent == HERE / "machines":
            return 3
        return 2 if item.get_closest_marker("processes") else 1 if item.get_closest_marker("slow") else 0

    groups = {item: group(item) for item in items}
    longest: dict[str, int] = {}
    for item, name in groups.items():
        if name != item.nodeid:
            item.add_marker(pytest.mark.xdist_group(name))
        longest[name] = max(longest.get(name, 0), length(item))
    items.sort(key=lambda item: (not groups[item].startswith("ranks-"), -longest[groups[item]]))


# What is read of data is kept; here for this session alone, and for the processes that tests start.
CACHE = tempfile.TemporaryDirectory(prefix="rankless-tests-")
os.environ["RANKLESS_CACHE"] = CACHE.name
os.environ["HF_HOME"] = f"{CACHE.name}/huggingface"


class Rank:
    """A process that takes functions over its input and answers over its output."""

    def __init__(self, errors: IO[bytes]) -> None:
        takes, jobs = os.pipe()
        answers, gives = os.pipe()
        self.jobs, self.answers = os.fdopen(jobs, "wb"), os.fdopen(answers, "rb")
        environment = {**os.environ, "RANKLESS_CPU": "1"}
        if sys.platform == "linux":
            environment["GLOO_SOCKET_IFNAME"] = "lo"
        words = [str(SUPPORT / "rank_process.py")]
        with os.fdopen(takes, "rb") as jobs_end, os.fdopen(gives, "wb") as answers_end:
            self.process = RANKS.start(
                words,
                environment=environment,
                cwd=Path.cwd(),
                given=jobs_end,
                output=answers_end,
                errors=errors,
            )

    def close(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        with contextlib.suppress(BrokenPipeError):
            self.jobs.close()
        self.answers.close()


class Ranks:
    """Real processes that meet over gloo; started when first needed and then kept."""

    def __init__(self) -> None:
        self.processes: list[Rank] = []
        self.folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self.count = itertools.count()
        self.patience = 120.0  # seconds until all answers
        self.log = Path(self.folder.name) / "output"

    def __call__(self, size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call ``function(world, *arguments)``, of a module's top level, on ``size`` ranks at once.

        Arguments and answers must pickle and hold nothing of a class of the test module's own.
        """
        while len(self.processes) < size:
            with self.log.open("ab") as log:
                self.processes.append(Rank(log))
        store = str(Path(self.folder.name) / f"store-{next(self.count)}")
        for number, rank in enumerate(self.processes[:size]):
            job = (inspect.getfile(function), function.__name__, arguments, number, size, store)
            rank.jobs.write(pickle.dumps(job))
            rank.jobs.flush()
        return self._answers(size)

    def _answers(self, size: int) -> list[Any]:
        waiting = {rank.answers: number for number, rank in enumerate(self.processes[:size])}
        found: dict[int, Any] = {}
        until = time.monotonic() + self.patience
        while waiting:
            ready, _, _ = select.select(list(waiting), [], [], max(until - time.monotonic(), 0))
            for pipe in ready:
                rank = waiting.pop(pipe)
                try:
                    fine, answer = pickle.load(pipe)
                except EOFError:
                    fine, answer = False, "it died"
                if not fine:
                    said = self.log.read_text(errors="replace")[-2000:]
                    self.close()
                    pytest.fail(f"rank {rank} of {size}: {answer}\n{said}", pytrace=False)
                found[rank] = answer
            if not ready:
                self.close()
                pytest.fail(f"ranks {sorted(waiting.values())} of {size} gave no answer", pytrace=False)
        return [found[rank] for rank in range(size)]

    def close(self) -> None:
        for rank in self.processes:
            rank.close()
        self.processes = []


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """``ranks(size, function, *arguments)``: see :class:`Ranks`."""
    pool = Ranks()
    yield pool
    pool.close()
    pool.folder.cleanup()


@pytest.fixture
def forked() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``forked(*words, cwd=…)`` does what ``python WORDS`` does, in a process that has PyTorch at once."""
    return SERVER.run


# Every part that could depend on a rank is on.
RECIPE = """\
model: {name: yolov4-tiny, width: 0.125, image_size: 64, dropout: 0.1}
data:
  root: FOLDER/data.yaml
  augment: {flip: 0.5, hue: 0.02, saturation: 0.5, value: 0.3, scale: 0.3, translate: 0.1}
optim: {lr: 0.02}
schedule: {warmup: 5}
precision: fp32
ema: {decay: 0.95}
"""


@pytest.fixture(scope="session")
def small_recipe() -> str:
    """A recipe: 21 training and 11 validation images of 64 × 64, bright rectangles of two classes."""
    return str(made_once("shapes", _shapes) / "small.yaml")


def _shapes(folder: Path) -> None:
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(1)
    for split, count in (("train", 21), ("val", 11)):
        (folder / "images" / split).mkdir(parents=True)
        (folder / "labels" / split).mkdir(parents=True)
        for number in range(count):
            image = rng.integers(0, 90, (64, 64, 3), dtype=np.uint8)
            lines = []
            for _ in range(rng.integers(1, 4)):
                label = int(rng.integers(2))
                x, y = rng.integers(0, 40, 2)
                w, h = rng.integers(12, 24, 2)
                image[y : y + h, x : x + w, label] = 250
                lines.append(f"{label} {(x + w / 2) / 64} {(y + h / 2) / 64} {w / 64} {h / 64}")
            Image.fromarray(image).save(folder / "images" / split / f"{number:02}.png")
            (folder / "labels" / split / f"{number:02}.txt").write_text("\n".join(lines) + "\n")
    text = f"path: {folder}\ntrain: images/train\nval: images/val\nnames: [red, green]\n"
    (folder / "data.yaml").write_text(text)
    (folder / "small.yaml").write_text(RECIPE.replace("FOLDER", str(folder)))
