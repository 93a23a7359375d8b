"""``rankless tune``: search for better recipe values with Optuna; each trial is an ordinary run."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from rankless.errors import INTERRUPTED, STOPPED, UserError, escaped
from rankless.extras import needed
from rankless.files.writing import remove_tree
from rankless.launch import local
from rankless.launch.tuning import page
from rankless.launch.tuning import space as spaces
from rankless.launch.tuning.record import FAILED, FINISHED, RUNNING, Record, Search, Trial
from rankless.launch.tuning.space import Range
from rankless.recipe import load
from rankless.recipe.schema import Recipe
from rankless.runs.directory import RunDirectory
from rankless.runs.overview import overview
from rankless.runs.scoring import LOWER_IS_BETTER
from rankless.task_kinds import kind_of

LOG = "output.log"
"""Name of the file with a run's output in its ``logs`` directory."""
_SHARED = ".output"


class TrialOutput:
    """A context manager that redirects standard output and error of this process and its children to a file.

    The terminal shows a header and a row per trial. All trials share one file, because the fork server keeps
    the streams with which it was started. After a trial, its output is moved to the log of its run.
    """

    def __init__(self, record: Record) -> None:
        self._record, self._path, self._run = record, record.folder / _SHARED, record.folder

    def __enter__(self) -> TrialOutput:
        self._flush()
        self._before = {stream: os.dup(stream) for stream in (1, 2)}
        self._terminal: TextIO = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, buffering=1)
        self._is_live = self._terminal.isatty()
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o666)
        for stream in self._before:
            os.dup2(self._file, stream)
        self._print(self._record.header())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._save()
        for stream, before in self._before.items():
            os.dup2(before, stream)
            os.close(before)
        os.close(self._file)
        self._terminal.close()
        self._path.unlink(missing_ok=True)

    def start(self, trial: Trial) -> None:
        """Show the row of a trial that starts or resumes."""
        self._run = self._record.run(trial.number)
        if self._is_live:
            self._print(self._record.row(trial), end="\r")

    def end(self, trial: Trial, *, is_best: bool) -> None:
        """Print the row of a finished trial, with a star if it is the best so far."""
        self._save()
        star = "  *" if is_best else ""
        clear = "\x1b[K" if self._is_live else ""
        self._print(f"{self._record.row(trial)}{star}", before=clear)

    def _save(self) -> None:
        self._flush()
        printed = os.pread(self._file, os.fstat(self._file).st_size, 0)
        if printed:
            logs = RunDirectory(self._run).logs
            logs.mkdir(parents=True, exist_ok=True)
            with (logs / LOG).open("ab") as file:
                file.write(printed)
        os.ftruncate(self._file, 0)

    def _print(self, line: str, *, before: str = "", end: str = "\n") -> None:
        print(f"{before}{escaped(line)}", end=end, file=self._terminal, flush=True)

    def _flush(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()


_RANDOM = 5
"""Number of random trials before the sampler learns from results."""


def suggestion(search: Search, trials: Sequence[Trial], number: int) -> dict[str, Any]:
    """Return parameters for trial ``number``, based on the previous trials."""
    optuna = needed("optuna", "tune", "rankless tune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {key: _distribution(optuna, one) for key, one in search.space.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # multivariate sampling is experimental in Optuna
        sampler = optuna.samplers.TPESampler(
            seed=search.seed * 100_003 + number, n_startup_trials=_RANDOM, multivariate=True
        )
        direction = "minimize" if search.lower_is_better else "maximize"
        study = optuna.create_study(sampler=sampler, direction=direction)
        for trial in trials:
            # The unchanged recipe may be outside the space.
            if trial.score is not None and set(trial.params) == set(distributions):
                done = optuna.trial.create_trial(
                    params=dict(trial.params), distributions=distributions, value=trial.score
                )
                study.add_trial(done)
        params: dict[str, Any] = study.ask(distributions).params
    return params


def _distribution(optuna: Any, one: Range) -> Any:
    if one.choices:
        return optuna.distributions.CategoricalDistribution(one.choices)
    if one.whole:
        return optuna.distributions.IntDistribution(int(one.low or 0), int(one.high or 0))
    return optuna.distributions.FloatDistribution(one.low, one.high, log=one.is_logarithmic)


Train = Callable[[Recipe, Path, bool], int]


def begin(
    folder: Path,
    recipe: Recipe,
    name: str,
    words: Sequence[str],
    search: Sequence[str],
    *,
    keeps_all: bool = False,
) -> Record:
    """Create a search, choose its search space, and record it.

    Args:
        folder: a new or empty folder for the search.
        recipe: the recipe of all trials: ``name`` with the user's changes ``words`` applied.
        search: ranges such as ``key=low..high`` or ``key=a|b``; if empty, the default search space is used.
        keeps_all: whether to keep the weights of all trials instead of only those of the best trial.
    """
    needed("optuna", "tune", "rankless tune")
    space = spaces.parsed(search) or spaces.usual(recipe)
    _check(recipe, space)
    best = recipe.evaluate.best
    score_name = kind_of(recipe.task).score if best == "auto" else best
    if folder.exists() and any(folder.iterdir()):
        raise UserError(
            f"--out {folder}: is not empty; use a new folder, or continue its search with --resume"
        )
    folder.mkdir(parents=True, exist_ok=True)
    record = Record(
        folder,
        Search(
            load.to_json(recipe),
            name,
            list(words),
            space,
            score_name,
            score_name in LOWER_IS_BETTER,
            recipe.seed,
            keeps_all,
        ),
    )
    record.write()
    return record


def run_trials(
    record: Record,
    trials: int,
    *,
    devices: int | Sequence[int] | None = None,
    output: TrialOutput | None = None,
    train: Train | None = None,
) -> int:
    """Train until the search has ``trials`` trials, including earlier ones, and return the exit code.

    The exit code is 0, or that of a run stopped by a signal. ``devices`` has the same meaning as in
    :func:`rankless.train`. ``train`` is called instead of that function, with a recipe, a run directory and
    whether to resume.
    """
    recipe = load.from_json(record.search.recipe)
    run_it = train or (lambda one, run, resume: local.train(one, run, devices=devices, resume=resume))
    for number in range(len(record.trials) + 1, trials + 1):
        if number == 1:
            params, changes = spaces.of_recipe(recipe, record.search.space), []
        else:
            params = suggestion(record.search, record.trials, number)
            changes = spaces.overrides(params, recipe)
        trial = Trial(number, params, changes, RUNNING)
        if output:
            output.start(trial)
        run = record.run(number)
        begun = (run / "journal.jsonl").exists()
        try:  # each value is valid, but the combination may not be
            code = run_it(load.changed(recipe, changes), run, begun)
        except UserError as error:
            if number == 1:
                raise
            trial = replace(trial, state=FAILED, problem=error.problems[0])
        else:
            if code in (STOPPED, INTERRUPTED):
                return code
            trial = _with_result(trial, record, code)
        record.add(trial)
        page.write(record)
        if not record.search.keeps_all:
            _drop_weights(record)
        if output:
            output.end(trial, is_best=record.ranked()[:1] == [trial])
    return 0


def _with_result(trial: Trial, record: Record, code: int) -> Trial:
    run = RunDirectory(record.run(trial.number))
    seen = overview(run, {"evaluate": {"best": record.search.score_name}})
    trial = replace(trial, seconds=seen.seconds)
    if code or seen.score is None:
        problem = f"see {run.logs}" if code else "the trial was never evaluated"
        return replace(trial, state=FAILED, problem=problem)
    return replace(trial, state=FINISHED, score=seen.score)


def _drop_weights(record: Record) -> None:
    best = [trial.number for trial in record.ranked()[:1]]
    for trial in record.trials:
        run = RunDirectory(record.run(trial.number))
        if trial.number not in best and run.checkpoints.is_dir():
            remove_tree(run.checkpoints)
            for name in ("best", "last"):
                run.link(name)  # removes the dangling link


def _check(recipe: Recipe, space: spaces.Space) -> None:
    problems: list[str] = []
    for key, one in space.items():
        ends = [int(end) if one.whole else end for end in (one.low, one.high) if end is not None]
        for value in one.choices or ends:
            try:
                _ = load.changed(recipe, spaces.overrides({key: value}, recipe))
            except UserError as error:
                problems += [problem for problem in error.problems if problem not in problems]
    if problems:
        raise UserError(f"--search: {problem.removeprefix('command line: ')}" for problem in problems)
