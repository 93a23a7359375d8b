"""What a person sees while it trains: a live bar in a terminal, a line now and then in a file or a pipe."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, cast

import torch
from rich.console import Console

from rankless.engine.sinks.sink import RunStart, Sink
from rankless.errors import counted, escaped
from rankless.printing import ProgressBar, discard_output
from rankless.structures import Scores

_SMOOTHING = 0.9  # of the speed, per step
_AS_IT_IS = ("pretrained",)
_WARNINGS = ("warning", "not saved", "sink", "late", "slow")
_TITLED = {"note": "note", "copy": "note", **dict.fromkeys(_WARNINGS, "warning")}


class Terminal(Sink):
    """Shows a run on the standard output.

    Args:
        images: of one step.
        device: the type of the ranks' devices, ``cpu`` or ``cuda``.
        workers: loader processes of each rank.
    """

    def __init__(self, images: int, device: str = "cpu", workers: int = 0) -> None:
        self.images, self.device, self.workers = images, device, workers
        self.console = Console(file=cast(IO[str], _Output()), highlight=False, soft_wrap=True)
        self.bar: ProgressBar | None = None
        self.steps = self.epochs = 0
        self.speed: float | None = None

    def start(self, run: RunStart) -> None:
        """Say where and on what it trains, and show the bar."""
        self.steps, self.epochs = run.steps, int(run.recipe["epochs"])
        one, many = ("process", "processes") if self.device == "cpu" else ("GPU", "GPUs")
        on = counted(run.world_size, one, many)
        if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":  # not again when a rank has died
            workers = f"workers: {self.workers}" + (" (auto)" if run.recipe.get("workers") == "auto" else "")
            self._print(f"training in {run.run} on {on}, {run.recipe['precision']}, {workers}")
        self.bar = ProgressBar(run.steps, "starting", done=run.first, console=self.console)
        self.bar.__enter__()
        if run.first:
            self._print(f"resuming after step {run.first}")

    def step(self, entry: Mapping[str, Any]) -> None:
        """Show the numbers of a step."""
        done, timing = int(entry["step"]), entry["timing"]
        now = self.images / max(timing["seconds"], 1e-4)
        is_first = self.speed is None
        self.speed = now if self.speed is None else _SMOOTHING * self.speed + (1 - _SMOOTHING) * now
        parts = " ".join(f"{name} {value:.3g}" for name, value in entry["parts"].items())
        loss = f"loss {entry['loss']:.4g}" + (f" ({parts})" if parts else "")
        details = (
            f"{loss}  lr {entry['lr']:.2e}  {self.speed:.0f} img/s  waited {timing['waited']:.0%}  "
            f"{_memory_gib():.1f} GiB"
        )
        if self.bar:
            self.bar.update(
                done,
                # The last step may go on into an epoch that is not asked for.
                f"step {done}/{self.steps}  epoch {min(entry['epoch'], self.epochs):.2f}/{self.epochs}",
                (self.steps - done) * self.images / self.speed,
                details,
                at_once=is_first or done == self.steps,
            )

    def scores(self, step: int, scores: Scores, is_best: bool) -> None:
        """Print an evaluation."""
        plain = {name: value for name, value in scores.items() if isinstance(value, float | None)}
        shown = "  ".join(
            f"{name} {'–' if value is None else f'{value:.4f}'}" for name, value in plain.items()
        )
        precision = f"  in {scores['computed_in']}" if "computed_in" in scores else ""
        best = "  (best so far)" if is_best else ""
        self._print(f"step {step}/{self.steps}  {shown or scores}{precision}{best}")

    def event(self, name: str, step: int, text: str) -> None:
        """Print an event."""
        if name in _AS_IT_IS:
            self._print(text)
        else:
            self._print(f"{_TITLED.get(name, f'step {step}')}: {text}")

    def close(self) -> None:
        """Leave the bar as it is."""
        if self.bar:
            self.bar.__exit__()

    def _print(self, sentence: str) -> None:
        """Print a line above the bar."""
        self.console.print(escaped(sentence), markup=False)


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
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**30
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**30
