"""The command ``rankless tune``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rankless.cli.options import (
    Devices,
    app,
    check_recipe,
    devices_here,
    flag,
    load_recipe,
    recipe_and_overrides,
    repeatable,
    whole_number,
)
from rankless.errors import UserError, check_all, shell_word
from rankless.launch import environments
from rankless.printing import say

if TYPE_CHECKING:
    from rankless.launch.tuning.record import Record


@app.command(
    sort_key=6,
    usage="Usage: rankless tune [RECIPE] [KEY=VALUE ...] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless tune digits --trials 10 epochs=5
  rankless tune my.yaml --search 'data.augment=light|heavy'
  rankless tune --resume --out runs/tune-my --trials 40
""",
)
def tune(
    *recipe: Annotated[
        str,
        Parameter(
            name="RECIPE KEY=VALUE",
            help="A shipped recipe or a YAML file, followed by changes for all trials, such as epochs=5.",
        ),
    ],
    trials: Annotated[str, Parameter(help="Total number of trials.", metavar="N")] = "20",
    search: Annotated[
        tuple[str, ...],
        Parameter(
            help="Range of a key, KEY=LOW..HIGH or 'KEY=A|B|C'. Repeatable. Default: ranges of the learning "
            "rate, the weight decay, the augmentation strength and the loss weights.",
            metavar="RANGE",
        ),
        repeatable,
    ] = (),
    out: Annotated[
        Path | None,
        Parameter(
            help="Folder for the search. Default: runs/tune-RECIPE or, if it exists, tune-RECIPE-2, -3 …"
        ),
    ] = None,
    keep_all: Annotated[
        bool, Parameter(help="Keep the weights of all trials, not only those of the best one."), flag
    ] = False,
    resume: Annotated[bool, Parameter(help="Continue the search in --out."), flag] = False,
    devices: Devices = "auto",
) -> int:
    """Tune a recipe's hyperparameters, such as the learning rate. Each trial is a run."""
    environments.refuse("tune", "run it once without the launcher, and set --devices")
    count, many = check_all(lambda: devices_here(devices), lambda: whole_number("--trials", trials))
    from rankless.launch import fork_server
    from rankless.launch.tuning import page
    from rankless.launch.tuning.tune import TrialOutput, run_trials

    if resume:
        record = _resume(recipe, search, out, keeps_all=keep_all)
    else:
        record = _begin(recipe, search, out, keeps_all=keep_all)
    say(f"trials in {record.folder}; to follow one: rankless watch {record.run(len(record.trials) + 1)}")
    with TrialOutput(record) as output:
        fork_server.start()  # forked ranks inherit the redirected output
        code = run_trials(record, many, devices=count, output=output)
    if len(record.ranked()) > 1:
        say("\ntrials, best first:")
        for line in record.table():
            say(line)
    if code:
        say(f"to continue: rankless tune --resume --out {shell_word(record.folder)} --trials {many}")
    elif best := record.ranked()[:1]:
        others = "kept" if record.search.keeps_all else "removed"
        say(f"the best weights are in {record.run(best[0].number)}; all others were {others}")
        say(f"to train with these values: {record.command(best[0])}")
    if record.trials:
        say(f"report of all trials: {record.folder / page.NAME}")
    return code


def _begin(recipe: tuple[str, ...], search: tuple[str, ...], out: Path | None, *, keeps_all: bool) -> Record:
    from rankless.files.numbered import given_or_numbered
    from rankless.launch.tuning.tune import begin

    name, words = recipe_and_overrides(recipe)
    chosen, called = load_recipe(name, words)
    check_recipe(chosen, begins=True)
    with given_or_numbered(out, Path("runs", f"tune-{Path(called).stem}"), "--out") as folder:
        return begin(folder, chosen, name or "", words, search, keeps_all=keeps_all)


def _resume(recipe: tuple[str, ...], search: tuple[str, ...], out: Path | None, *, keeps_all: bool) -> Record:
    from dataclasses import replace

    from rankless.launch.tuning.record import opened

    if out is None:
        raise UserError("--resume needs the folder of the search: add --out, as in --out runs/tune-digits")
    if recipe or search:
        raise UserError(
            "--resume uses the recorded recipe and ranges; remove the recipe, key=value and --search, or "
            "start a new search without --resume"
        )
    record = opened(out)
    record.search = replace(record.search, keeps_all=record.search.keeps_all or keeps_all)
    return record
