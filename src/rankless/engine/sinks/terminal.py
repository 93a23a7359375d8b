"""A sink that prints a table with a row per epoch and evaluation, above a progress bar.

In a file or a pipe, occasional lines replace the bar. In a notebook, curves replace it. This module does not
import PyTorch, because commands that only follow a run should start fast.
"""

from __future__ import annotations

import math
import os
import sys
import textwrap
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from rankless.engine.sinks.sink import RunStart, Sink
from rankless.errors import counted, escaped
from rankless.printing import ProgressBar, console_for, discard_output, filled
from rankless.runs.pace import Pace, speed_text

if TYPE_CHECKING:
    from rankless.structures import Scores

_HEADER_EVERY = 40
"""Number of rows after which the header is repeated."""
_SCORES = 3
"""Maximum number of columns with scores. The journal and the report contain all scores."""
_GAP = "  "
_VALIDATION = "val loss"


class Rows:
    """The rows of the table. Each row summarizes the steps up to an evaluation or the end of an epoch.

    Args:
        images: number of images per step.
        best: the score that selects the best weights, as in ``evaluate.best``.
        width: width of the terminal in characters. A row is narrower.
        scores: names of the expected scores, which have a column from the start.
    """

    def __init__(
        self,
        epochs: int,
        steps: int,
        images: int,
        best: str = "auto",
        width: int = 80,
        scores: Sequence[str] = (),
    ) -> None:
        self.epochs, self.steps, self.images, self.best = epochs, max(steps, 1), images, best
        self.width = width
        self._header: list[str] = []
        self._to_come = self._columns(scores)
        self._since_header = 0
        self._epoch = 0.0
        self.pace = Pace()
        self._clear()

    def _clear(self) -> None:
        self.pace = Pace(begins=self.pace.begins)
        self._loss = self._lr = 0.0
        self._parts: dict[str, float] = {}
        self._steps = 0
        self._whole: int | None = None  # the epoch that the last step finished

    def step(self, entry: Mapping[str, Any]) -> list[str]:
        """Add a step, and return the lines of a previous epoch that ended without an evaluation."""
        lines = self.end()
        before, self._epoch = self._epoch, float(entry["epoch"])
        # The first step after a resume has no previous step and may be in the middle of an epoch.
        if math.floor(self._epoch) > math.floor(before) and (before or int(entry["step"]) == 1):
            self._whole = math.floor(self._epoch)
        self._steps += 1
        self._loss += float(entry["loss"])
        for name, value in entry["parts"].items():
            if name.partition("/")[2] in entry["parts"]:
                continue  # parts of single heads are only in the journal
            self._parts[name] = self._parts.get(name, 0.0) + float(value)
        self.pace.add(entry["timing"]["seconds"], entry["timing"]["waited"])
        self._lr = float(entry["lr"])
        return lines

    @property
    def loss(self) -> float:
        """Mean loss of the steps in the current row. There must be at least one step."""
        return self._loss / self._steps

    @property
    def parts(self) -> dict[str, float]:
        return {name: total / self._steps for name, total in self._parts.items()}

    def scores(self, step: int, scores: Mapping[str, Any], is_best: bool) -> list[str]:
        """Return the lines of an evaluation after ``step`` steps."""
        plain: dict[str, Any] = {
            name: value
            for name, value in scores.items()
            if isinstance(value, float | None) and (name, value) != ("loss", None)
        }
        shown = {
            name: _loss(plain["loss"]) if name == _VALIDATION else _score(plain[name])
            for name in self._columns(plain)
        }
        if not self._steps:  # repeated after a resume
            self._epoch = step / self.steps * self.epochs
        return self._row(shown, is_best)

    def _columns(self, scores: Collection[str]) -> list[str]:
        plain = [name for name in scores if name != "loss"]
        first = sorted(plain, key=lambda name: name != self.best)[:_SCORES]  # otherwise in the task's order
        return [*([_VALIDATION] if "loss" in scores else []), *(name for name in plain if name in first)]

    def end(self) -> list[str]:
        """Return the lines of an epoch that ended without an evaluation, if any."""
        return self._row({}, False) if self._whole is not None else []

    def _row(self, scores: dict[str, str], is_best: bool) -> list[str]:
        loss = _loss(self.loss) if self._steps else "–"
        per_second = self.pace.images_per_second(self.images)
        speed = "–" if per_second is None else speed_text(per_second)
        rate = f"{self._lr:.2e}" if self._steps else "–"
        names = list(scores) or self._header[2:-3] or self._to_come
        cells = ["epoch", "loss", *names, "lr", "images/s", "best"]
        values = [self._label(), loss, *(scores.get(name, "") for name in names), rate, speed]
        values.append("*" if is_best else "")
        self._clear()
        while sum(map(self._width, cells)) + len(_GAP) * (len(cells) - 1) >= self.width and len(cells) > 5:
            del cells[-4], values[-4]  # the last score
        lines = []
        if cells != self._header or self._since_header >= _HEADER_EVERY:
            self._header, self._since_header = cells, 0
            lines.append(self._line(cells, cells))
        self._since_header += 1
        return [*lines, self._line(cells, values)]

    def _label(self) -> str:
        """Return the epoch as ``3/10`` at its end, or as ``2.57`` in the middle."""
        epoch = min(self._whole if self._whole is not None else self._epoch, self.epochs)
        whole = abs(epoch - round(epoch)) < 1e-6
        return f"{round(epoch)}/{self.epochs}" if whole else f"{epoch:.2f}"

    def _line(self, names: Sequence[str], values: Sequence[str]) -> str:
        cells = (f"{value:>{self._width(name)}}" for name, value in zip(names, values, strict=True))
        return _GAP.join(cells).rstrip()

    def _width(self, name: str) -> int:
        epoch = max(7, len(f"{self.epochs}/{self.epochs}"))
        return max(len(name), {"epoch": epoch, "loss": 8, "lr": 8, "best": 4}.get(name, 6))


def _loss(value: float) -> str:
    """Format a loss in at most eight characters."""
    return f"{value:.4g}" if 1e-3 <= abs(value) < 1e4 else f"{value:.2e}"


def _score(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.4g}"


_SMOOTHING = 0.9  # per step
_PATIENCE = 3.0  # seconds to wait for the first step before explaining the delay, if there is no bar
_MOST_NOTES = 6  # maximum lines of a note about the data
_WARNINGS = ("warning", "not saved", "sink", "late", "slow", "silent error")
_WAITING = "waiting for the first step"
_TITLED = {"note": "note", "copy": "note", **dict.fromkeys(_WARNINGS, "warning")}


class Terminal(Sink):
    """Shows a run on standard output.

    Args:
        images: number of images per step.
        device: type of the ranks' devices, ``cpu`` or ``cuda``.
        workers: number of loader processes per rank, or None if unknown.
        in_threads: whether the ranks are threads of this process.
        scores: names of the scores that are known before the first evaluation.
        has_bar: whether to show the progress between rows.
    """

    def __init__(
        self,
        images: int,
        device: str = "cpu",
        workers: int | None = 0,
        *,
        in_threads: bool = False,
        scores: Sequence[str] = (),
        has_bar: bool = True,
    ) -> None:
        self.images, self.device, self.workers = images, device, workers
        self.in_threads, self.to_come, self.has_bar = in_threads, scores, has_bar
        self.console = console_for(cast(IO[str], _Output()))
        self.bar: ProgressBar | None = None
        self.rows = Rows(1, 1, images)
        self.steps = self.epochs = 0
        self.seconds: float | None = None  # per step, smoothed, to estimate the remaining time
        self._busy: list[float] = []  # last known fraction of time that each rank spent computing
        delay = f"{_WAITING} (loading images and preparing PyTorch's kernels)"
        self._patience = threading.Timer(_PATIENCE, self._print, [delay])

    def start(self, run: RunStart) -> None:
        self.steps, self.epochs = run.steps, int(run.recipe["epochs"])
        best = str(run.recipe.get("evaluate", {}).get("best", "auto"))
        self.rows = Rows(self.epochs, run.steps, self.images, best, self.console.width, self.to_come)
        one, many = ("process", "processes") if self.device == "cpu" else ("GPU", "GPUs")
        if self.in_threads:
            one, many = ("thread", "threads") if self.device == "cpu" else ("GPU", "GPUs (one thread each)")
        on = counted(run.world_size, one, many)
        if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":  # only once, not after each restart
            workers = " (auto)" if run.recipe.get("workers") == "auto" else ""
            workers = "" if self.workers is None else f", workers: {self.workers}{workers}"
            self._print(f"training in {run.run} on {on}, {run.recipe['precision']}{workers}")
        if self.has_bar:
            self.bar = ProgressBar(run.steps, _WAITING, done=run.first, console=self.console)
            self.bar.__enter__()
        if run.first:
            self._print(f"resuming after step {run.first}")
        if not self.bar or not self.bar.is_live:
            self._patience.daemon = True
            self._patience.start()

    def step(self, entry: Mapping[str, Any]) -> None:
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
        if busy := entry["timing"].get("busy", self._busy):
            self._busy = busy
            usual.append("busy " + "–".join(dict.fromkeys(f"{one:.0%}" for one in (min(busy), max(busy)))))
        self.bar.update(
            done,
            # The last step may extend past the last epoch.
            f"epoch {min(entry['epoch'], self.epochs):.2f}/{self.epochs}  step {done:,}/{self.steps:,}",
            (self.steps - done) * self.seconds,
            filled([*loss, *parts, *usual], self.console.width)
            if self.bar.is_live
            else "  ".join([*loss, *usual]),
            at_once=is_first or done == self.steps,
        )

    def scores(self, step: int, scores: Scores, is_best: bool) -> None:
        self._print_all(self.rows.scores(step, scores, is_best))

    def event(self, name: str, step: int, text: str) -> None:
        if name in ("end", "stop"):
            self._print_all(self.rows.end())
        if name == "note":
            first, *rest = text.split("\n")
            left = len(rest) - _MOST_NOTES
            more = [f"  … and {left} more in journal.jsonl"] if left > 0 else []
            self._print_all([f"note: {first}", *rest[:_MOST_NOTES], *more])
        elif name == "pretrained":
            self._print(text)
        else:
            self._print(f"{_TITLED.get(name, f'step {step}')}: {text}")

    def progress(self, title: str, done: int, total: int) -> None:
        """Show the progress of an evaluation or other work between two steps."""
        if self.bar:
            self.bar.within(title, done, total)

    def close(self) -> None:
        """Stop the bar, and leave its current state on the screen."""
        self._patience.cancel()
        if self.bar:
            self.bar.__exit__()

    def _print_all(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._print(line)  # table lines are narrower than the terminal

    def _print(self, sentence: str) -> None:
        """Print a line above the bar. On a terminal, wrap it between words without breaking long paths."""
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


class _Output:
    """Standard output, which may be closed (with the terminal or by ``| head``) without ending the run.

    This is not an ``io.TextIOBase``, because the destructor of that class would flush the stream.
    """

    def __init__(self) -> None:
        self.out = sys.stdout  # the live bar replaces sys.stdout later

    @property
    def encoding(self) -> str:
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
    """Return this rank's memory in GiB, either the peak allocated on its GPU or the resident memory."""
    torch = sys.modules.get("torch")
    if torch is None:  # this process only follows a run
        return 0.0
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return float(torch.cuda.max_memory_allocated() / 2**30)
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**30
