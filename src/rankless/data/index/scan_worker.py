"""A program that scans chunks of files: ``python -m rankless.data.index.scan_worker JOB PARENT``.

A separate program is independent of the caller's threads and main script. It imports everything once, forks
while it has a single thread, and reports each finished chunk on standard output.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from rankless.data.index.scan import NotStored, Report, read_chunk
from rankless.errors import UserError
from rankless.hardware.processes import die_with_parent
from rankless.messages import line

_job: dict[str, Any] = {}


def main() -> int:
    die_with_parent(int(sys.argv[2]))
    _job.update(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    resolve_name(_job["work"])  # imports the module once, before the fork
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(
        _job["processes"], context, initializer=die_with_parent, initargs=(os.getpid(),)
    ) as pool:
        waiting = {pool.submit(_chunk, number): number for number in range(len(_job["chunks"]))}
        try:
            for done in as_completed(waiting):
                _report(Report(waiting[done], done.result()))
        except UserError as error:
            _report(Report(problems=list(error.problems)))
        except NotStored as error:
            _report(Report(full=str(error)))
        except BrokenProcessPool:
            _report(Report())
        except Exception:
            _report(Report(trace=traceback.format_exc()))
        else:
            return 0
        pool.shutdown(wait=False, cancel_futures=True)
        os._exit(1)  # the workers die with this process


def _chunk(number: int) -> str:
    items = [tuple(item) for item in _job["chunks"][number]]
    return read_chunk(resolve_name(_job["work"]), items, Path(_job["store"]))


def _report(what: Report) -> None:
    sys.stdout.buffer.write(line(what))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
