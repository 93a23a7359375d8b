"""Load micro-batches in separate processes, in the order of a schedule.

A batch depends only on its line in the schedule, so the number of processes affects only the speed. The
processes exit when their rank closes the loader or dies.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from types import TracebackType
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from rankless.data.alignment import Nowhere, aligned
from rankless.data.order import Line
from rankless.errors import ShortageError, UserError, counted
from rankless.hardware import forking
from rankless.hardware.cpu_threads import one_thread
from rankless.hardware.process_settings import ProcessSettings
from rankless.hardware.processes import STOP_SIGNALS, die_with_parent
from rankless.hardware.shortages import shared_memory_shortage, shortage
from rankless.randomness import GENERATORS, kept_generators, seed_generators
from rankless.user_code import explained

B = TypeVar("B")
_LESS = "use fewer `workers`, a smaller batch.micro or data.cache=none"
_GRACE = 1.0  # seconds that a closing loader waits for the current batch


class MicroBatches(Generic[B]):
    """An iterator over micro-batches in the order of a schedule. As a context manager, it closes on exit.

    Args:
        examples: the data; see :class:`rankless.tasks.protocol.Examples`. Loader processes get a copy.
        collate: a function that converts a list of items to a batch. It must be picklable.
        schedule: an iterable with one line per micro-batch, which is read lazily and may be endless.
        workers: number of loader processes; 0 loads the items in this process.
        seed: the recipe's seed. Random numbers of the process's generators in ``collate`` depend only on it
            and on the line.
        pin_memory: whether to copy batches to page-locked memory for a GPU.

    Attributes:
        waited: total time in seconds that the caller has waited for batches.
        is_waiting: whether the caller is currently waiting for a batch.
    """

    def __init__(
        self,
        examples: Any,
        collate: Callable[[Sequence[Any]], B],
        schedule: Iterable[Line],
        *,
        workers: int,
        seed: int = 0,
        pin_memory: bool = False,
    ) -> None:
        self.waited, self.is_waiting = 0.0, False
        self._batches: Iterator[Any]
        fetch = _Fetch(examples, collate, seed)
        if workers or pin_memory:
            self._batches = self._loaded(fetch, schedule, workers, pin_memory=pin_memory)
        else:  # a DataLoader takes 0.1 ms for each batch
            self._batches = map(fetch.__getitems__, schedule)
        self._processes: list[BaseProcess] = list(getattr(self._batches, "_workers", ()))
        # Also runs at interpreter exit, where multiprocessing would wait forever for processes that ignore
        # SIGTERM.
        self._end = Finalize(self, _end, (self._batches, self._processes), exitpriority=0)

    @staticmethod
    def _loaded(fetch: _Fetch, schedule: Iterable[Line], workers: int, *, pin_memory: bool) -> Iterator[Any]:
        if workers:
            forking.ensure(_modules(fetch.examples, fetch.collate))
        loader = DataLoader(
            fetch,
            batch_sampler=schedule,  # type: ignore[arg-type]  # torch needs only an iterable of lists
            collate_fn=_unchanged,
            num_workers=workers,
            pin_memory=pin_memory,
            multiprocessing_context="forkserver" if workers else None,
            worker_init_fn=partial(_init_worker, ProcessSettings.current()) if workers else None,
            generator=torch.Generator(),  # otherwise, torch would use the global generator
        )
        try:
            return iter(loader)
        except OSError as error:  # no space for a semaphore
            raise shortage(error) or error from None

    def __iter__(self) -> MicroBatches[B]:
        return self

    def __next__(self) -> B:
        if not self._end.still_active():
            raise StopIteration
        started, self.is_waiting = time.perf_counter(), True
        try:
            batch = next(self._batches)
        except (RuntimeError, OSError, EOFError) as error:  # a dead process causes the last two
            if self._processes:  # the exit of the process may not be visible yet
                wait([process.sentinel for process in self._processes], _GRACE)
            if death := _death(self._processes):
                raise death from error
            raise
        finally:
            self.waited += time.perf_counter() - started
            self.is_waiting = False
        if isinstance(batch, _Failure):
            self.close()
            raise batch.error
        return aligned(batch)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Stop the loader processes after their current batches. Further calls do nothing."""
        self._end()

    def __enter__(self) -> MicroBatches[B]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LoaderDiedError(RuntimeError):
    """Raised when a loader process dies. The message states the exit code or signal and the likely cause."""


class _Failure:
    """An error in a loader process, sent as a result because torch would send only its traceback."""

    def __init__(self, error: UserError) -> None:
        self.error = error


class _Fetch(Dataset[Any]):
    """A data set whose items are the micro-batches of a schedule."""

    def __init__(self, examples: Any, collate: Callable[[Sequence[Any]], Any], seed: int) -> None:
        self.examples, self.collate, self.seed = examples, collate, seed

    @one_thread()  # also without loader processes, because more threads would round sums differently
    def __getitems__(self, line: Line) -> Any:
        try:
            items = self._items(line)
            with GENERATORS, nullcontext() if get_worker_info() else kept_generators():
                seed_generators(self.seed, "collate", line.step, *line.images[0])
                batch = self.collate(items)
            if get_worker_info():
                _share(batch)
        except Exception as error:
            return _failure(error)
        return batch

    def _items(self, line: Line) -> list[Any]:
        draw = getattr(self.examples, "items", None)
        if not callable(draw):  # the data may have an attribute of that name
            return [self.examples.item(index, epoch) for epoch, index in line.images]
        items: list[Any] = draw(line.images, line.step)
        _check_count(self.examples, items, len(line.images))
        return items


def _unchanged(batch: Any) -> Any:
    return batch


class _Sharing(ForkingPickler):
    """A pickler that moves all tensors to shared memory, as multiprocessing does when sending them."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        if value.layout is torch.strided and value.device.type == "cpu":
            value.share_memory_()
        return str, ()


def _share(batch: Any) -> None:
    """Move a batch to shared memory early, so that a failure can be reported.

    Python sends batches in a thread that only prints errors, so after a failure there, the rank would wait
    forever.
    """
    try:
        _Sharing(Nowhere(), pickle.HIGHEST_PROTOCOL).dump(batch)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UserError(
            f"collate() returned a value of type {type(batch).__name__}, which cannot be sent from a loader "
            f"process ({error}); remove objects that cannot be pickled, or set workers=0"
        ) from error


def _check_count(examples: Any, items: Any, images: int) -> None:
    if not isinstance(items, list) or len(items) != images:
        returned = counted(len(items), "item") if isinstance(items, list) else type(items).__name__
        raise UserError(
            f"items() of {type(examples).__name__} returned {returned} for {counted(images, 'image')}; "
            "expected a list with one item for each (epoch, index), in the same order"
        )


def _failure(error: Exception) -> _Failure:
    """Wrap an error that users can fix, so that it can be sent to the rank; raise any other error."""
    known = error if isinstance(error, UserError) else explained(error)
    if known is None:
        raise error
    if isinstance(known, ShortageError) and not isinstance(error, UserError) and get_worker_info():
        known = UserError(f"loader process: {'; '.join(known.problems)}; {_LESS}")
    return _Failure(known)


def _death(processes: Iterable[BaseProcess]) -> Exception | None:
    code = next((p.exitcode for p in processes if p.exitcode), None)
    if code is None:
        return None
    if code == -signal.SIGBUS:  # the process touched shared memory beyond the available space
        return shared_memory_shortage()
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    why = f", probably because memory ran out; {_LESS}" if code == -signal.SIGKILL else ""
    return LoaderDiedError(f"a loader process {how}{why}")


def _modules(examples: object, collate: object) -> set[str]:
    kinds = {__name__, type(examples).__module__, getattr(collate, "__module__", __name__)} - {"__main__"}
    return kinds.union(getattr(examples, "loader_imports", ()))


def _init_worker(settings: ProcessSettings, worker: int) -> None:
    """Make a new loader process compute like its rank, ignore termination signals and die with its rank."""
    settings.apply()
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    die_with_parent()  # the parent is the fork server
    rank = multiprocessing.parent_process()
    threading.Thread(target=_follow, args=(rank,), name="follow the rank", daemon=True).start()


def _follow(rank: BaseProcess) -> None:
    rank.join()
    os.kill(os.getpid(), signal.SIGKILL)


def _end(batches: Any, processes: list[BaseProcess]) -> None:
    """Let the loader processes exit, and kill those that are still busy after a grace period.

    A process killed while sending a batch would never release a lock, and the memory-pinning thread would
    wait for it forever.
    """
    shutdown = getattr(batches, "_shutdown_workers", None)
    if shutdown is None:
        return
    timer = threading.Timer(_GRACE, _kill, (processes,))
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # no thread can start at interpreter exit
        timer.start()
    shutdown()
    timer.cancel()
    _kill(processes)


def _kill(processes: list[BaseProcess]) -> None:
    for process in processes:
        if process.is_alive():
            process.kill()
