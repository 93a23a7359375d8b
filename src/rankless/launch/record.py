"""Entries that a launcher adds to a run's journal when no rank can."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from contextlib import suppress

from rankless.errors import UserError
from rankless.launch.supervisor import Death
from rankless.runs import journal
from rankless.runs.directory import RunDirectory


def record_death(run: RunDirectory, death: Death) -> None:
    """Add a death to the journal of a run whose ranks have all ended."""
    how = {"signal": signal.Signals(-death.code).name} if death.code < 0 else {"code": death.code}
    who = {} if death.rank is None else {"rank": death.rank}
    _append(run, {"event": "death", "at": _step(run), **who, **how, "text": death.text})


def record_error(run: RunDirectory, errors: Sequence[str]) -> None:
    """Add the error that ended a run to its journal and report, if the run had begun."""
    if run.journal.exists():
        _append(run, {"event": "error", "at": _step(run), "text": "\n".join(errors)})
        if run.report.exists():  # rank 0 wrote the report without the error
            from rankless.report import page
            from rankless.report.collected import Collected

            with suppress(UserError, OSError):
                page.write([Collected(run.path).refresh()], run.report)


def _step(run: RunDirectory) -> int:
    try:
        return journal.last_step(run.journal)
    except OSError:
        return 0


def _append(run: RunDirectory, entry: dict[str, object]) -> None:
    with suppress(OSError):  # a full disk may be the cause
        journal.append(run.journal, **entry, timing={"time": round(time.time(), 1)})
