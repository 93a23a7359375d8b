"""Runs a case in this process and says how it went.

Fine is: the command works, or it ends with 2 (or 1, where that says "looked, and something is wrong") and
with sentences that a person can read on a terminal. Everything else is wrong, and has a name.
"""

from __future__ import annotations

import contextlib
import io
import os
import platform
import re
import shutil
import tempfile
import traceback
import unicodedata
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rankless import cli
from support.fuzz import limits
from support.fuzz.case import Case, build, snapshot
from support.fuzz.ranks import Started, in_this_process

LONGEST_LINE = 2_000
"""Characters of a line of an error. A sentence names a path or two, and values of some 100."""
LONGEST = 20_000
"""Characters of all errors."""

FINE = ("accepted", "reported", "refused")
WRONG = (
    "traceback", "exit code", "hang", "memory", "silent", "file changed", "left behind", "code executed",
    "control characters", "long message", "stray output", "died",
)  # fmt: skip

_REPORTING = {("data", "check"), ("data", "convert"), ("data", "pack"), ("predict",), ("verify",)}
"""Verbs whose exit code 1 is documented."""
_MEMORY = re.compile(r"MemoryError|can't allocate memory|Cannot allocate memory|std::bad_alloc")
_NOTE = ".rankless-outputs"
_CONTROLS = ("Cc", "Cs", "Zl", "Zp")
_DIRECTIONS = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
"""Unicode's categories and classes of what is not drawn but done: controls, breaks, other directions."""
_KNOWN_LINE = re.compile(r"error: .|warning: .|  |interrupted|stopped by ")


@dataclass(frozen=True)
class Verdict:
    """How a case went.

    Attributes:
        outcome: of :data:`FINE` or :data:`WRONG`.
        detail: what was printed, or what is wrong.
    """

    outcome: str
    detail: str

    @property
    def fine(self) -> bool:
        return self.outcome in FINE


class Judge:
    """Runs cases, one at a time, in folders that are removed behind them."""

    def __init__(self) -> None:
        import matplotlib

        memory = Path("/dev/shm")
        base = memory if os.access(memory, os.W_OK) else None
        self.own = tempfile.TemporaryDirectory(prefix="fuzz-", dir=base)
        self.folder = Path(self.own.name).resolve()
        self.scratch = self.folder / "scratch"
        self.scratch.mkdir()
        self.watch = limits.Watch()
        self.count = 0

        # Rooms that load when first needed and then stay: not a case's memory, nor its time.
        import rankless.inference.predict
        import rankless.interop.export
        import rankless.interop.importing
        import rankless.launch.local
        import rankless.launch.verify  # noqa: F401

        matplotlib.use("agg")
        import matplotlib.pyplot

        platform.processor()  # asks a program, once

    def close(self) -> None:
        self.own.cleanup()

    def __call__(
        self, case: Case, command: Callable[[list[str]], int] = cli.main, **allowed: float
    ) -> Verdict:
        """Run a case's command line with ``command``, within limits as of :func:`limits.little_time`."""
        self.count += 1
        root = self.folder / f"case-{self.count}"
        root.mkdir()
        try:
            build(case, root)
            return self._judged(case, root, lambda: command(list(case.words)), allowed)
        finally:
            self._remove(root)

    def _remove(self, root: Path) -> None:
        shutil.rmtree(root, ignore_errors=True)
        for left in self.scratch.iterdir():
            shutil.rmtree(left, ignore_errors=True)

    def _judged(
        self, case: Case, root: Path, command: Callable[[], int], allowed: dict[str, float]
    ) -> Verdict:
        before = snapshot(root)
        with self.watch.over(root, self.scratch):
            ended, out, err = self._run(root, command, allowed)
        after = snapshot(root)
        shown = f"exit {ended}\n{out}{err}"
        if isinstance(ended, limits.Hang):
            return Verdict("hang", "".join(traceback.format_exception(ended))[-2000:])
        if self.watch.started:
            return Verdict("code executed", "\n".join(self.watch.started[:5]) + "\n" + shown)
        if self.watch.found and not case.anywhere:
            return Verdict("file changed", "\n".join(self.watch.found[:5]) + "\n" + shown)
        if isinstance(ended, BaseException) or "Traceback" in err:
            raised = "".join(traceback.format_exception(ended)) if isinstance(ended, BaseException) else ""
            wrong = "memory" if _MEMORY.search(err + raised) else "traceback"
            return Verdict(wrong, f"{err[-3000:]}{raised[-3000:]}")
        if misplaced := _misplaced(case, before, after, ended):
            return Verdict(misplaced[0], f"{misplaced[1]}\n{shown[:2000]}")
        return _heard(case, ended, out, err)

    def _run(
        self, root: Path, command: Callable[[], int], allowed: dict[str, float]
    ) -> tuple[int | BaseException, str, str]:
        """The exit code (or what came out in its place), and what was printed."""
        out, err = Stream("strict"), Stream("backslashreplace")
        here = Path.cwd()
        saved = dict(os.environ)
        os.environ |= {"RANKLESS_CPU": "1", "RANKLESS_CACHE": f"{self.scratch}/cache", "COLUMNS": "80"}
        os.environ["TMPDIR"] = str(self.scratch)
        temporary, tempfile.tempdir = tempfile.tempdir, str(self.scratch)
        os.chdir(root)
        ended: int | BaseException
        try:
            with (
                warnings.catch_warnings(),
                in_this_process(),
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(err),
                limits.little_memory(),
                limits.little_time(**allowed),
            ):
                warnings.resetwarnings()
                for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
                    warnings.simplefilter("ignore", kind)
                ended = command()
                out.flush()
        except Started:
            ended = 0
        except (KeyboardInterrupt, SystemExit) as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            ended = error
        except BaseException as error:
            ended = error
        finally:
            os.chdir(here)
            tempfile.tempdir = temporary
            os.environ.clear()
            os.environ.update(saved)
        return ended, out.text(), err.text()


class Stream(io.TextIOWrapper):
    """What a terminal's stream in UTF-8 takes, as Python opens it."""

    def __init__(self, errors: str) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors=errors, newline="", write_through=True)

    def text(self) -> str:
        self.flush()
        held = self.buffer
        assert isinstance(held, io.BytesIO)
        return held.getvalue().decode("utf-8", "replace")


def _misplaced(
    case: Case, before: dict[str, str], after: dict[str, str], ended: int | BaseException
) -> tuple[str, str] | None:
    """Files that should not have changed, or should not be there."""
    worked = ended in (0, 1)
    changed = [name for name, content in before.items() if after.get(name) != content]
    fine = (*case.logs, *(case.changes if worked else ()))
    if wrong := [name for name in changed if name not in fine]:
        return "file changed", f"changed or removed: {wrong[:8]}"
    # The note of which files were written lies beside them.
    new = [name for name in after if name not in before and not name.endswith(_NOTE)]
    if wrong := [name for name in new if not name.startswith(case.out or ("\0",))]:
        return "file changed", f"new outside the output: {wrong[:8]}"
    new = [name for name in new if name not in case.logs]
    if not worked and new:
        return "left behind", f"refused, and new: {new[:8]}"
    return None


def _acts(letter: str) -> bool:
    """Whether a terminal does something when it is to show it."""
    return unicodedata.category(letter) in _CONTROLS or unicodedata.bidirectional(letter) in _DIRECTIONS


def _heard(case: Case, ended: int | BaseException, out: str, err: str) -> Verdict:
    shown = f"exit {ended}\n{out[:3000]}{err[:3000]}"
    reports = any(case.words[: len(verb)] == verb for verb in _REPORTING)
    if ended not in (0, 2) and not (ended == 1 and reports):
        return Verdict("exit code", shown)
    if ended == 2 and not err.strip():
        return Verdict("silent", shown)
    own = set("".join(case.words))  # a path that the user gave may be shown as it is when all went well
    for text, known in ((out, own), (err, set[str]())):
        if odd := set(filter(_acts, set(text))) - known - {"\n"}:
            return Verdict("control characters", f"{sorted(map(ascii, odd))[:20]}\n{shown!a}")
    lines = err.splitlines()
    if ended == 2 and (stray := [line for line in lines if not _KNOWN_LINE.match(line)]):
        return Verdict("stray output", f"{stray[:3]}\n{shown}")
    if ended == 2 and out.strip() and case.words[:1] != ("train",):
        return Verdict("stray output", f"on the standard output of a refusal\n{shown}")
    if any(len(line) > LONGEST_LINE for line in lines) or len(err) > LONGEST:
        longest = max(map(len, lines))
        return Verdict("long message", f"{len(lines)} lines, the longest of {longest} characters\n{shown}")
    return Verdict({0: "accepted", 1: "reported", 2: "refused"}[int(str(ended))], shown)
