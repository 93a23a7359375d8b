"""One rank of a test: takes functions over its standard input, runs each in a fresh process group.

Importing torch takes seconds, so the ranks live as long as the test session and serve many tests.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import pickle
import sys
import traceback
import warnings
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from rankless.engine import loader_count
from rankless.hardware.forking import fork_early
from rankless.hardware.heap import fill_with_nan
from rankless.world.process_group import World
from rankless.world.transport import PROCESS_GROUP

sys.path.insert(0, str(Path(__file__).parents[1]))
from support import thorough  # noqa: F401  # registers the profiles that test modules name

loader_count.usable_cores = lambda: 1  # so that tests alone decide about loader processes
fill_with_nan()  # so that what reads memory that nobody wrote shows
TIMEOUT = timedelta(seconds=60)


@cache
def module_at(path: str) -> ModuleType:
    """The test module in a file, which no name leads to."""
    spec = importlib.util.spec_from_file_location(f"job_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses and pickle look it up
    spec.loader.exec_module(module)
    return module


def run(path: str, name: str, arguments: tuple[Any, ...], rank: int, size: int, store: str) -> Any:
    function = getattr(module_at(path), name)
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, size), rank=rank, world_size=size, timeout=TIMEOUT
    )
    try:
        PROCESS_GROUP.gather_apart(TIMEOUT)
        # A function may end without any communication, while a slower rank is still connecting.
        dist.barrier(PROCESS_GROUP.beside)
        return function(World(rank, size, torch.device("cpu"), rank), *arguments)
    finally:
        PROCESS_GROUP.beside = None
        gc.collect()
        dist.destroy_process_group()


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a function prints is no answer
    warnings.simplefilter("error")
    fork_early()  # as a rank does, before anything is computed
    torch.set_num_threads(1)
    gc.freeze()  # what has been imported stays
    while True:
        try:
            job = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        try:
            answer: tuple[bool, Any] = (True, run(*job))
        except Exception:
            answer = (False, traceback.format_exc())
        answers.write(pickle.dumps(answer))
        answers.flush()
    os._exit(0)  # gloo's threads have nothing more to add


if __name__ == "__main__":
    main()
