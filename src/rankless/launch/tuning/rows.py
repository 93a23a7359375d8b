"""The terminal output of a search: a row per trial."""

from __future__ import annotations

from rankless.errors import escaped
from rankless.launch.tuning.output import TrialOutput
from rankless.launch.tuning.record import Record, Trial
from rankless.launch.tuning.tune import Watcher


class TrialRows(Watcher):
    """Prints rows under a header; on a terminal, the row of a running trial is replaced by its result."""

    def __init__(self, record: Record, output: TrialOutput) -> None:
        self._record, self._output = record, output
        self._is_live = output.terminal.isatty()
        self._print(record.header())

    def began(self, trial: Trial) -> None:
        """Show that it runs."""
        self._output.run = self._record.run(trial.number)
        if self._is_live:
            self._print(self._record.row(trial), end="\r")

    def ended(self, trial: Trial, *, is_best: bool) -> None:
        """Print its row, with a star if it is the best so far."""
        self._output.keep()
        star = "  *" if is_best else ""
        clear = "\x1b[K" if self._is_live else ""
        self._print(f"{self._record.row(trial)}{star}", before=clear)

    def _print(self, line: str, *, before: str = "", end: str = "\n") -> None:
        print(f"{before}{escaped(line)}", end=end, file=self._output.terminal, flush=True)
