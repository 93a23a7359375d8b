"""Print messages, JSON, scores, models and progress to the terminal."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, TextIO

from rankless.errors import HARMFUL, counted, escaped, listed

if TYPE_CHECKING:
    from rich.console import Console

_MOST_COLUMNS = 30
LINE_EVERY = 10.0
"""Seconds between two lines that a :class:`ProgressBar` prints without a terminal."""
_SHOW_EVERY = 0.05  # seconds between updates, because 100,000 items may be done per second


def say(text: str = "", *, file: TextIO | None = None) -> None:
    """Print a line, escaping characters that may harm a terminal. Line breaks at either end are kept."""
    body = text.strip("\n")
    before, _, after = text.partition(body) if body else (text, "", "")
    print(f"{before}{escaped(body)}{after}", file=file, flush=file is not None)


def warn(sentence: str) -> None:
    """Print a warning to standard error, unless it is closed."""
    with suppress(OSError):
        say(f"warning: {sentence}", file=sys.stderr)


def discard_output(stream: TextIO) -> None:
    """Redirect a stream to the null device, so that flushing it at exit does not fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def finite(value: Any) -> Any:
    """Replace NaN and infinity in a value with None, because JSON cannot represent them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, list | tuple) else value


def print_json(value: Any) -> None:
    print(as_json(value, indent=2))


def print_result(value: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Print a result as JSON, or as lines of text."""
    if as_json:
        print_json(value)
    else:
        for line in lines:
            say(line)


def as_json(value: Any, indent: int) -> str:
    """Return a value as JSON, escaping characters that may harm a terminal or are not UTF-8."""
    lines = json.dumps(value, indent=indent, ensure_ascii=False).split("\n")
    return "\n".join(HARMFUL.sub(lambda found: f"\\u{ord(found[0]):04x}", line) for line in lines)


def filled(parts: Sequence[str], width: int) -> str:
    """Join ``parts`` with two spaces into lines narrower than ``width``, without breaking a part."""
    lines = [""]
    for part in parts:
        longer = f"{lines[-1]}  {part}" if lines[-1] else part
        if len(longer) < width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(part)
    return "\n".join(lines)


def print_best(step: int, scores: Mapping[str, Any]) -> None:
    """Print all scores of an evaluation in columns that fit an 80-column terminal."""
    numbers = {name: value for name, value in scores.items() if isinstance(value, float)}
    width = max(map(len, numbers), default=0)
    in_what = f", in {scores['computed_in']}" if "computed_in" in scores else ""
    say(f"best (step {step}{in_what}):")
    cells = [f"{name:<{width}} {value:<9.4f}" for name, value in numbers.items()]
    for line in filled(cells, 78).split("\n"):
        say(f"  {line.rstrip()}")


def print_scores(scores: Mapping[str, Any]) -> None:
    """Print one score per line, a table of scores per class and, if present, the confusion matrix."""
    from rich.console import Console
    from rich.table import Table

    def number(value: Any) -> str:
        if value is None:
            return "–"
        return f"{value:.4f}" if isinstance(value, float) else str(value)

    single = {name: value for name, value in scores.items() if not isinstance(value, Mapping | list)}
    for name, value in sorted(
        single.items(), key=lambda one: isinstance(one[1], float | None)
    ):  # scores last
        say(f"{name:{max(map(len, single))}}  {number(value)}")
    for rows in (value for value in scores.values() if isinstance(value, Mapping)):
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        table = Table("class", *columns, box=None, pad_edge=False)
        absent = [name for name, row in rows.items() if _is_absent(row)]
        for name, row in rows.items():
            if name not in absent:
                table.add_row(escaped(name), *(number(row.get(column)) for column in columns))
        print()
        if len(absent) < len(rows):
            Console(soft_wrap=True, highlight=False, markup=False).print(table)
        if absent:
            say(_left_out(absent))
    if confusion := scores.get("confusion"):
        _print_confusion(confusion, list(scores["per_class"]))


def _is_absent(row: Mapping[str, Any]) -> bool:
    return row.get("support") == 0 or all(value is None for value in row.values())


def _left_out(names: Sequence[str]) -> str:
    classes = counted(len(names), "class has no data and is", "classes have no data and are")
    return f"{classes} not listed: {listed(names)}"


def _print_confusion(rows: Sequence[Sequence[int]], names: Sequence[str]) -> None:
    names = [escaped(name) for name in names]
    widest = max(map(len, names))
    numbers = [str(label) for label in range(len(names))]
    width = max(len(text) for text in [*numbers, *(str(count) for row in rows for count in row)]) + 1
    print("\nconfusion: rows are true classes, columns are predicted classes")
    if len(names) > _MOST_COLUMNS:
        print(f"{len(names)} classes are too many for a table; use --json to print the counts")
        return
    print(" " * (widest + len(numbers[-1]) + 1) + "".join(f"{number:>{width}}" for number in numbers))
    for number, name, row in zip(numbers, names, rows, strict=True):
        counts = "".join(f"{count or '·':>{width}}" for count in row)
        print(f"{name:{widest}} {number:>{len(numbers[-1])}}{counts}")


def print_models(rows: Sequence[Any]) -> None:
    """Print a table with a row for each :class:`rankless.models.listing.Listed`."""
    others = "timm/NAME"
    width = max(map(len, (others, *(row.name for row in rows)))) + 1
    lines = [(f"{'model':{width}}{'task':9}{'parameters':>11}{'GFLOPs':>8}{'input':>8}", "from")]
    for row in rows:
        size = "×".join(map(str, dict.fromkeys(row.size)))
        numbers = f"{row.parameters:>11,}{row.gflops:>8.2f}{size:>8}"
        lines.append((f"{row.name:{width}}{row.task:9}{numbers}", row.source))
    source = "any timm classifier, such as model.name=timm/convnext_tiny"
    lines.append((f"{others:{width}}{'classify':9}{'':27}", source))
    print_pairs(lines)


def print_pairs(lines: Sequence[tuple[str, str]]) -> None:
    """Print two columns of text with each pair on one line or, in a narrow terminal, on two lines."""
    left = max(len(first) for first, _ in lines)
    longest = max(left + 2 + len(second) for _, second in lines)
    columns = shutil.get_terminal_size((longest, 24)).columns  # without a terminal, one line each
    for first, second in lines:
        print(escaped(f"{first:{left}}  {second}" if longest <= columns else first.rstrip()))
        if longest > columns:
            print(f"    {escaped(second)}")


def console_for(file: IO[str]) -> Console:
    """Return a console that does not wrap lines and, in a notebook, writes plain text."""
    from rich.console import Console

    # A notebook's kernel claims that its output, and that of its child processes, is a color terminal, but
    # the page would show every frame of a progress bar below the previous one.
    live = False if is_notebook() or "JPY_PARENT_PID" in os.environ else None
    return Console(file=file, highlight=False, soft_wrap=True, force_jupyter=False, force_terminal=live)


def is_notebook() -> bool:
    """Check whether this process is the kernel of a notebook (Jupyter, Colab, Kaggle, VS Code)."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


class ProgressBar:
    """A context manager that shows a progress bar in a terminal and, elsewhere, a line every ten seconds.

    It prints to ``console`` or, by default, to ``file`` (standard error), where the bar disappears at the
    end.
    """

    def __init__(
        self,
        total: int,
        title: str,
        *,
        done: int = 0,
        console: Console | None = None,
        file: IO[str] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        from rich.console import Group
        from rich.live import Live
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.text import Text

        self.total, self.title, self.done = total, title, done
        self.console = console or console_for(file or sys.stderr)
        self.is_live = self.console.is_terminal and not self.console.quiet
        self._now = now
        self._began = self._printed = self._shown = now()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[left]}"),
            console=self.console,
            expand=True,
        )
        self._row = self._bar.add_task(title, total=total, completed=done, left="")
        self._part = self._bar.add_task("", visible=False, left="")
        self._details = Text(no_wrap=False, overflow="fold")

        def shown() -> Any:  # called several times a second
            if not self._details and self.done == done:
                self._bar.update(self._row, left=f"{clock(now() - self._began)} so far")
            # Details wrap below the bar, so that a narrow terminal truncates neither.
            return Group(self._bar, self._details) if self._details else self._bar

        self._live = Live(get_renderable=shown, console=self.console, transient=console is None)

    def __enter__(self) -> ProgressBar:
        if self.is_live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_live:
            self._live.stop()

    def advance(self, count: int = 1) -> None:
        """Count ``count`` more items as done, and estimate the remaining time from the average speed."""
        self.done += count
        now = self._now()
        if now - self._shown > _SHOW_EVERY or self.done == self.total:
            self._shown = now
            left = (self.total - self.done) * (now - self._began) / max(self.done, 1)
            self.update(self.done, f"{self.title}: {self.done:,} of {self.total:,}", left)

    def show(self, done: int, total: int) -> None:
        """Show the number of finished batches and a new total."""
        self.total = total
        left = (total - done) * (self._now() - self._began) / max(done, 1)
        if self.is_live:
            self._bar.update(self._row, total=total)
        self.update(done, f"{self.title}: {done:,} of {total:,} batches", left)

    def update(self, done: int, title: str, left: float, details: str = "", *, at_once: bool = False) -> None:
        """Show ``title`` before the bar, ``details`` below it, and ``left``, the remaining time in seconds.

        Without a terminal, ``at_once`` prints a line even if the previous one is recent.
        """
        self.done = done
        if self.is_live:
            self._bar.update(self._row, completed=done, description=title, left=f"{clock(left)} left")
            self._details.plain = details
        elif at_once or self._now() - self._printed >= LINE_EVERY:
            self._printed = self._now()
            self.console.print("  ".join(filter(None, (title, details, f"{clock(left)} left"))), markup=False)

    def within(self, title: str, done: int, total: int) -> None:
        """Show the progress of one part of the work in its own row until the part is finished."""
        now, is_over = self._now(), done >= total
        if self.is_live:
            self._bar.update(
                self._part, description=title, completed=done, total=max(total, 1), visible=not is_over
            )
        elif not is_over and now - self._printed >= LINE_EVERY:
            self._printed = now
            self.console.print(f"{title}  {done / total:.0%}", markup=False)


def clock(seconds: float) -> str:
    """Format a duration in seconds as ``1:02:03`` or ``2:03``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
