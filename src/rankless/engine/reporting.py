"""The report that rank 0 writes during training: ``report.html`` and details of the best evaluation.

Errors in the report do not end training. The first one is reported as a warning.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rankless.engine.sinks.sink import Sinks
from rankless.errors import UserError, printable
from rankless.files.writing import beside
from rankless.printing import finite
from rankless.report import page
from rankless.report.collected import Collected
from rankless.runs.directory import RunDirectory
from rankless.runs.weights_digest import of_run
from rankless.tasks.protocol import Task

SHARE = 0.01
"""Maximum fraction of a run's time for writing the report before the run ends."""
_FIRST_COST = 0.1  # seconds assumed for writing the first page


class Reporting:
    """Writes ``evaluation.json`` and ``report.html`` during a run if ``enabled``."""

    def __init__(self, task: Task, run: RunDirectory, sinks: Sinks, *, enabled: bool) -> None:
        self.run, self.sinks, self.enabled = run, sinks, enabled
        self._details = getattr(task, "report_details", None)
        self._predictions: Sequence[Any] = ()
        self._warned, self._step = False, 0
        self._collected = Collected(run.path)
        self._began = time.monotonic()
        self._spent, self._cost = 0.0, _FIRST_COST

    def keep(self, predictions: Sequence[Any]) -> None:
        """Keep the predictions of an evaluation until :meth:`evaluated` is called."""
        self._predictions = predictions

    def evaluated(self, step: int, *, is_best: bool) -> None:
        """Update the report after the evaluation at ``step``."""
        predictions, self._predictions, self._step = self._predictions, (), step
        if not self.enabled:
            return
        with self._no_error():
            if is_best and callable(self._details):
                details = finite({"step": step, **self._details(predictions)})
                with beside(self.run.evaluation, durable=False) as part:
                    part.write_text(json.dumps(details, separators=(",", ":")) + "\n", encoding="utf-8")
            if self._spent + self._cost <= SHARE * (time.monotonic() - self._began):
                self._write({})

    def close(self) -> None:
        """Write the report at the end of the run, even if the run failed."""
        if self.enabled and self.run.journal.exists():
            with self._no_error(f"write it with: rankless report {self.run.path}"):
                digest = of_run(self.run.path)
                self._write({str(self.run.path): digest} if digest else {})

    def _write(self, digests: dict[str, str]) -> None:
        began = time.monotonic()
        page.write([self._collected.refresh()], self.run.report, digests)
        self._cost = time.monotonic() - began
        self._spent += self._cost

    @contextmanager
    def _no_error(self, advice: str = "training continues") -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not self._warned:
                self._warned = True
                reason = error.strerror if isinstance(error, OSError) else None
                why = printable(reason or f"{type(error).__name__}: {error}", 300)
                with suppress(UserError):  # if the journal cannot be written either, the next step reports it
                    text = f"the report could not be written ({why}); {advice}"
                    self.sinks.event("warning", self._step, text)
