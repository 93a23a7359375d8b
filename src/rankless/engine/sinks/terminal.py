"""What a person sees while it trains: a row an epoch, and below it a live bar in a terminal.

In a file, a pipe or a notebook a line now and then stands for the bar. Nothing here imports PyTorch, so that
a process which computes nothing may follow a run.
"""

from __future__ import annotations

import io
import os
import sys
import textwrap
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from rankless.engine.sinks.rows import Rows
from rankless.engine.sinks.sink import RunStart, Sink
from rankless.errors import counted, escaped
from rankless.printing import ProgressBar, console_for, discard_output, filled
from rankless.runs.pace import speed_text

if TYPE_CHECKING:
    from rankless.structures import Scores

_SMOOTHING = 0.9  # per step
_PATIENCE = 3.0  # seconds without a bar and a first step, before it is said what takes so long
_MOST_NOTES = 6  # lines about the data; the journal has them all
_AS_IT_IS = ("pretrained",)
_WARNINGS = ("warning", "not saved", "sink", "late", "slow")
_WAITING = "waiting for the first step"
_TITLED = {"note": "note", "copy": "note", **dict.fromkeys(_WARNINGS, "warning")}


class Terminal(Sink):
    """Shows a run on the standard output.

    Args:
        images: of one step.
        device: the type of the ranks' devices, ``cpu`` or ``cuda``.
        workers: loader processes of each rank; None where nobody knows.
        in_threads: whether the ranks are threads of this process.
        scores: the names of those that evaluations will have, as far as they are known.
    """

    def __init__(
        self,
        images: int,
        device: str = "cpu",
        workers: int | None = 0,
        *,
        in_threads: bool = False,
        scores: Sequence[str] = (),
    ) -> None:
        self.images, self.device, self.workers = images, device, workers
        self.in_threads, self.to_come = in_threads, scores
        self.console = console_for(cast(IO[str], _Output()))
        self.bar: ProgressBar | None = None
        self.rows = Rows(1, 1, images)
        self.steps = self.epochs = 0
        self.seconds: float | None = None  # of a step, smoothed: for the time that is left
        self._patience = threading.Timer(_PATIENCE, self._explain)

    def start(self, run: RunStart) -> None:
        """Say where and on what it trains, and show the bar."""
        self.steps, self.epochs = run.steps, int(run.recipe["epochs"])
        best = str(run.recipe.get("evaluate", {}).get("best", "auto"))
        self.rows = Rows(self.epochs, run.steps, self.images, best, self.console.width, self.to_come)
        one, many = ("process", "processes") if self.device == "cpu" else ("GPU", "GPUs")
        if self.in_threads:
            one, many = ("thread", "threads") if self.device == "cpu" else ("GPU", "GPUs, a thread each")
        on = counted(run.world_size, one, many)
        if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":  # not again when a rank has died
            workers = " (auto)" if run.recipe.get("workers") == "auto" else ""
            workers = "" if self.workers is None else f", workers: {self.workers}{workers}"
            self._print(f"training in {run.run} on {on}, {run.recipe['precision']}{workers}")
        self.bar = ProgressBar(run.steps, _WAITING, done=run.first, console=self.console)
        self.bar.__enter__()
        if run.first:
            self._print(f"resuming after step {run.first}")
        if not self.bar.is_live:
            self._patience.daemon = True
            self._patience.start()

    def step(self, entry: Mapping[str, Any]) -> None:
        """Show the means of the row under way, and the row of an epoch that ended with the step before."""
        self._patience.cancel()
        self._print_all(self.rows.step(entry))
        done, took = int(entry["step"]), entry["timing"]["seconds"]
        is_first = self.seconds is None
        self.seconds = took if self.seconds is None else _SMOOTHING * self.seconds + (1 - _SMOOTHING) * took
        if self.bar is None:
            return
        rows, pace = self.rows, self.rows.pace
        loss = [f"loss {rows.loss:.4g}"]
        parts = [f"{name} {value:.3g}" for name, value in rows.parts.items()]
        usual = [f"lr {entry['lr']:.2e}"]
        if speed := pace.images_per_second(self.images):
            usual += [f"{speed_text(speed)} images/s", f"waited {pace.waited:.0%}"]
        if memory := _memory_gib():
            usual.append(f"{memory:.1f} GiB")
        self.bar.update(
            done,
            # The last step may go on into an epoch that is not asked for.
            f"epoch {min(entry['epoch'], self.epochs):.2f}/{self.epochs}  step {done:,}/{self.steps:,}",
            (self.steps - done) * self.seconds,
            filled([*loss, *parts, *usual], self.console.width)
            if self.bar.is_live
            else "  ".join([*loss, *usual]),
            at_once=is_first or done == self.steps,
        )

    def scores(self, step: int, scores: Scores, is_best: bool) -> None:
        """Print the row of an evaluation."""
        self._print_all(self.rows.scores(step, scores, is_best))

    def event(self, name: str, step: int, text: str) -> None:
        """Print an event."""
        if name in ("end", "stop"):
            self._print_all(self.rows.end())
        if name == "note":
            first, *rest = text.split("\n")
            left = len(rest) - _MOST_NOTES
            more = [f"  … and {left} more, in journal.jsonl"] if left > 0 else []
            self._print_all([f"note: {first}", *rest[:_MOST_NOTES], *more])
        elif name in _AS_IT_IS:
            self._print(text)
        else:
            self._print(f"{_TITLED.get(name, f'step {step}')}: {text}")

    def progress(self, title: str, done: int, total: int) -> None:
        """Show how far a part of the run is that is no step, such as an evaluation."""
        if self.bar:
            self.bar.within(title, done, total)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._patience.cancel()
        if self.bar:
            self.bar.__exit__()

    def _explain(self) -> None:
        """Say what takes so long, where there is no bar to show that something happens."""
        self._print(f"{_WAITING}: the images are being loaded and PyTorch prepares its kernels")

    def _print_all(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._print(line)  # of a table: none is as wide as the terminal

    def _print(self, sentence: str) -> None:
        """Print a line above the bar; a terminal gets it wrapped between words, with long paths whole."""
        text = escaped(sentence)
        if self.console.is_terminal:
            indent = " " * (len(text) - len(text.lstrip()) + 2)
            text = textwrap.fill(
                text,
                max(self.console.width, 40) - 1,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
        self.console.print(text, markup=False)


class _Output(io.TextIOBase):
    """The standard output; when it goes away (a closed terminal, ``| head``) the run goes on in silence."""

    def __init__(self) -> None:
        self.out = sys.stdout  # now: the live bar puts itself in its place

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self.out, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        return self.out.isatty()

    def write(self, text: str) -> int:
        self._try(lambda: self.out.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(self.out.flush)

    def _try(self, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError:
            discard_output(self.out)


def _memory_gib() -> float:
    """Of this rank: allocated on its GPU, else resident."""
    torch = sys.modules.get("torch")
    if torch is None:  # this process follows a run and has no part in it
        return 0.0
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return float(torch.cuda.max_memory_allocated() / 2**30)
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**30
