"""What a person sees while it trains: a live bar in a terminal, a line now and then in a file or a pipe."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, cast

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from rankless.errors import escaped
from rankless.structures import Scores

LINE_EVERY = 10.0  # seconds between lines where there is no terminal
_SMOOTHING = 0.9  # of the speed, per step


class Teller:
    """Speaks for the whole run; on every rank but the first it is silent.

    Args:
        steps: of the whole run.
        start: steps done already.
        images: of one step.
        speaks: whether this rank is the one that speaks.
    """

    def __init__(self, steps: int, start: int, images: int, *, speaks: bool) -> None:
        self.steps, self.images, self.speaks = steps, images, speaks
        audience = cast(IO[str], _Audience())
        self.console = Console(file=audience, quiet=not speaks, highlight=False, soft_wrap=True)
        self.live = speaks and self.console.is_terminal
        self.speed: float | None = None
        self.last_line = -LINE_EVERY
        self.bar = Progress(
            TextColumn("{task.fields[place]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[left]} left"),
            console=self.console,
            expand=True,
        )
        self.row = self.bar.add_task("", total=steps, completed=start, place="starting", left="?")
        self.numbers = Text(no_wrap=False, overflow="fold")
        # The numbers stand below the bar and wrap, so that a narrow terminal cuts neither.
        self.view = Live(Group(self.bar, self.numbers), console=self.console)

    def __enter__(self) -> Teller:
        if self.live:
            self.view.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.view.stop()

    def step(self, entry: Mapping[str, Any], seconds: float) -> None:
        """Show one step: its journal entry and the seconds it took."""
        if not self.speaks:
            return
        done = int(entry["step"])
        now = self.images / max(seconds, 1e-9)
        self.speed = now if self.speed is None else _SMOOTHING * self.speed + (1 - _SMOOTHING) * now
        left = (self.steps - done) * self.images / self.speed
        parts = " ".join(f"{name} {value:.3g}" for name, value in entry["parts"].items())
        loss = f"loss {entry['loss']:.4g}" + (f" ({parts})" if parts else "")
        memory = _memory_gib()
        text = (
            f"{loss}  lr {entry['lr']:.2e}  {self.speed:.0f} img/s  "
            f"waited {entry['timing']['waited']:.0%}  {memory:.1f} GiB"
        )
        place = f"step {done}/{self.steps}  epoch {entry['epoch']:.2f}"
        if self.live:
            self.bar.update(self.row, completed=done, place=place, left=_clock(left))
            self.numbers.plain = text
        elif time.monotonic() - self.last_line >= LINE_EVERY or done == self.steps:
            self.last_line = time.monotonic()
            self.console.print(f"{place}  {text}  {_clock(left)} left")

    def scores(self, step: int, scores: Scores, best: bool) -> None:
        """Show an evaluation."""
        plain = {name: value for name, value in scores.items() if isinstance(value, float | None)}
        shown = "  ".join(
            f"{name} {'–' if value is None else f'{value:.4f}'}" for name, value in plain.items()
        )
        self.say(f"step {step}/{self.steps}  {shown or scores}{'  (best so far)' if best else ''}")

    def say(self, sentence: str) -> None:
        """Print a line above the bar."""
        self.console.print(escaped(sentence), markup=False)


class _Audience(io.TextIOBase):
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
            # What is still in the buffer goes there too, else it fails again at the process's end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.out.fileno())


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _memory_gib() -> float:
    """Of this rank: allocated on its GPU, else resident."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**30
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**30
