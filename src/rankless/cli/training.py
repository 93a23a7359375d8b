"""The commands ``rankless train``, ``attach`` and ``verify``.

``train`` runs as a rank of another launcher, on several hosts, or on this machine.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rankless.cli.new import check_changes, folders_like, holds_data, name_of, recipe_for, say_fine_tuning
from rankless.cli.options import (
    Device,
    Devices,
    Hosts,
    Json,
    Offline,
    Python,
    RecipeWords,
    Ssh,
    Sync,
    app,
    check_recipe,
    compute_on,
    device_count,
    devices_here,
    flag,
    go_offline,
    load_recipe,
    recipe_and_overrides,
    recipe_of,
    refuse_without,
    repeatable,
    whole_number,
    whole_numbers,
)
from rankless.errors import UserError, check_all, shell_word
from rankless.launch import environments
from rankless.printing import print_json, say
from rankless.task_kinds import DEFAULT

if TYPE_CHECKING:
    from rankless.launch.environments import Environment
    from rankless.launch.job import Wanted
    from rankless.recipe.schema import Recipe


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of ``rankless train``, with the recipe and the overrides as ``words``."""

    words: Annotated[tuple[str, ...], Parameter(parse=False)] = ()
    run: Annotated[
        Path | None,
        Parameter(
            name=("--run", "--out"),
            help="The run directory. Default: runs/RECIPE or, if it exists, RECIPE-2, -3 …",
        ),
    ] = None
    devices: Devices = "auto"
    device: Device = "auto"
    resume: Annotated[bool, Parameter(help="Resume from the last checkpoint in --run."), flag] = False
    sinks: Annotated[
        tuple[str, ...],
        Parameter(
            name="--sink",
            help="Also log metrics to csv, tensorboard, mlflow, wandb or a custom sink (package.module:Class "
            "or file.py:Class, whose code is run). Repeatable. With --resume, name the sinks again.",
            metavar="SINK",
        ),
        repeatable,
    ] = ()
    inline: Annotated[bool, Parameter(help="Train in this process, for debuggers and profilers."), flag] = (
        False
    )
    parallel: Annotated[str, Parameter(help="Run ranks as processes or threads.", metavar="KIND")] = (
        "processes"
    )
    download: Annotated[
        bool, Parameter(help="Download the data of data.root=torchvision/NAME first."), flag
    ] = False
    offline: Offline = False
    hosts: Hosts = None
    min_hosts: Annotated[
        str, Parameter(help="Minimum number of hosts with which to continue if others are lost.", metavar="N")
    ] = "1"
    sync: Sync = False
    detach: Annotated[
        bool, Parameter(help="Let the first host coordinate the run. See rankless attach."), flag
    ] = False
    ssh: Ssh = "ssh"
    python: Python = None

    def recipe(self) -> tuple[str | None, Sequence[str]]:
        found = recipe_and_overrides(self.words)
        if self.resume and self.run is None:
            run = next((word for word in self.words if Path(word).is_dir()), "runs/digits")
            raise UserError(
                f"--resume needs a run directory: add --run, as in --resume --run {shell_word(run)}"
            )
        return found

    def refuse(self, device: str, inline: str, download: str, parallel: str) -> None:
        """Raise a UserError if one of these options was given. The arguments are the error messages."""
        options = (
            ("--device", self.device != "auto", device),
            ("--inline", self.inline, inline),
            ("--download", self.download, download),
            ("--parallel", self.parallel != "processes", parallel),
        )
        if problems := [f"{option}: {why}" for option, is_given, why in options if is_given]:
            raise UserError(problems)


def train_here(given: TrainOptions) -> int:
    from rankless.engine.sinks.sink import check_sink
    from rankless.files.numbered import given_or_numbered
    from rankless.launch.job import check_parallel
    from rankless.launch.run_lock import refuse_no_run, refuse_used
    from rankless.runs.directory import RunDirectory

    name, overrides = given.recipe()
    run, resume = given.run, given.resume
    if given.inline or given.parallel == "threads":
        fix_instruction_set(name, overrides, run if resume else None)

    is_data = not resume and holds_data(name)

    def read() -> tuple[Recipe | None, str | None]:
        if resume and run is not None and name is None:
            refuse_no_run(RunDirectory(run))
            return None, None
        if name is not None and is_data:
            check_changes(name, overrides)
            return None, name
        try:
            return load_recipe(name, overrides)
        except UserError as error:
            if name is None:
                raise
            if (Path(name) / "recipe.yaml").exists():
                start, hint = f"{name}: this is a", f"; to continue the run: {RunDirectory(Path(name)).again}"
            elif os.path.lexists(name):
                if Path(name).is_dir():
                    from rankless.data.formats.registry import recognize

                    recognize(name)  # raises an error that says why the folder is not a data set
                raise
            else:
                start, hint = f"'{name}': no such file", folders_like(name)
            raise UserError(
                f"{one}{hint}" if one.startswith(start) and not one.endswith("?") else one
                for one in error.problems
            ) from None

    _, devices, (chosen, name), *_ = check_all(
        lambda: compute_on(given.device),  # may import PyTorch, so the instruction set is fixed first
        lambda: devices_here(given.devices),
        read,
        lambda: check_parallel(given.parallel),
        lambda: None if resume or run is None else refuse_used(RunDirectory(run)),
        *(partial(check_sink, sink) for sink in given.sinks),
    )
    with ExitStack() as undo:
        if name is not None and is_data:
            if not given.inline and given.parallel != "threads":
                from rankless.launch import fork_server

                fork_server.start(DEFAULT)  # before this process computes; most of it serves both tasks
            chosen, name = recipe_for(name, overrides, undo), name_of(name)
        if chosen is not None:
            if given.download:
                from rankless.data.datasets.torchvision_sets import download

                for sentence in download(chosen.data):
                    say(sentence)
            check_recipe(chosen, begins=not resume)
            if name == "fine-tune" and not resume:
                say_fine_tuning(chosen, overrides, is_here=True)
        with given_or_numbered(run, Path("runs", Path(name or "run").stem), "--run") as run:
            from rankless.launch import fork_server, local
            from rankless.launch.resume import recipe_of_run

            recorded = RunDirectory(run).recipe
            is_new = not recorded.exists()
            chosen = chosen or recipe_of_run(RunDirectory(run), overrides)
            if not given.inline and given.parallel != "threads":
                fork_server.start(chosen.task)
            try:
                return local.train(
                    chosen,
                    run,
                    devices=devices,
                    resume=resume,
                    sinks=given.sinks,
                    inline=given.inline,
                    parallel=given.parallel,
                )
            finally:
                if is_new and recorded.exists():  # the run has begun and needs the divided data
                    undo.pop_all()


def train_over_ssh(given: TrainOptions, hosts: str) -> int:
    """Train on several machines, or start a detached run on them."""
    given.refuse(
        device="applies only to this machine, and each host uses its GPUs, if any; remove --device",
        inline="trains in this process, but --hosts starts other processes; remove one of them",
        download="downloads files to this machine only; remove --download",
        parallel="runs ranks as threads of one process, but --hosts starts processes; remove one of them",
    )
    from rankless.launch.hosts.names import parse_hosts
    from rankless.launch.job import Wanted

    name, overrides = given.recipe()
    least, parsed = whole_number("--min-hosts", given.min_hosts), parse_hosts(hosts)
    if least > len(parsed):
        raise UserError(f"--min-hosts is {least}: expected a number from 1 to {len(parsed)} (all hosts)")
    if given.devices != "auto" and all(host.devices for host in parsed):
        raise UserError(
            f"--devices is {given.devices}, but --hosts already gives the number of devices for every host; "
            "remove --devices"
        )
    count, resume = device_count(given.devices), given.resume
    wanted = Wanted(None, "run", count, given.run, resume, given.sinks, overrides, least)
    if not (resume and name is None):  # otherwise the host with the run has the recipe
        recipe, called = load_recipe(name, overrides)
        if called == "fine-tune":
            say_fine_tuning(recipe, overrides, is_here=False)
        wanted = replace(wanted, recipe=recipe, name=Path(called).stem)
    from rankless.launch.hosts.channel import host_access
    from rankless.launch.hosts.coordinator import train_on_hosts
    from rankless.launch.hosts.detach import detach

    access = host_access(given.ssh, given.python, sync=given.sync)
    if not given.detach:
        return train_on_hosts(wanted, parsed, access)
    run = wanted.run or Path("runs") / f"{wanted.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    return detach(wanted, run, parsed, access, given.ssh)


def train_as_rank(given: TrainOptions, environment: Environment) -> int:
    """Train in this process as a rank started by another launcher."""
    from rankless.launch import member

    def read() -> Wanted:
        if given.hosts is not None:
            raise UserError(
                "--hosts: starts ranks itself, but a launcher has started this rank; remove --hosts"
            )
        given.refuse(
            device="not available under a launcher; to use the CPU, set RANKLESS_CPU=1 for all ranks",
            inline="not available under a launcher; remove --inline",
            download="not available under a launcher; run --download first, without the launcher",
            parallel="not available under a launcher; remove --parallel",
        )
        asked = _wanted(given, is_first=environment.rank == 0)
        return replace(asked, run=given.run, resume=given.resume, sinks=given.sinks)

    return member.train(environment, read)


def _wanted(given: TrainOptions, *, is_first: bool) -> Wanted:
    """Return the settings of the run for a rank that another launcher started."""
    from rankless.launch.job import Wanted
    from rankless.runs.directory import RunDirectory

    count, run = device_count(given.devices), given.run
    name, overrides = given.recipe()
    fix_instruction_set(name, overrides, run if given.resume else None)
    if not given.resume or run is None or name is not None:
        chosen, name = load_recipe(name, overrides)
        if name == "fine-tune" and is_first:
            say_fine_tuning(chosen, overrides, is_here=False)
        return Wanted(chosen, Path(name).stem, count)
    from rankless.launch.resume import recipe_of_run
    from rankless.launch.run_lock import refuse_no_run

    directory = RunDirectory(run)
    try:
        refuse_no_run(directory)
        return Wanted(recipe_of_run(directory, overrides), run.name, count)
    except UserError:
        if is_first and (directory.recipe.exists() or directory.steps()):
            raise
        return Wanted(None, run.name, count)  # another machine has the run and its recipe


def fix_instruction_set(name: str | None, overrides: Sequence[str], run: Path | None) -> None:
    """Limit this process to the recipe's CPU instruction set, before anything imports PyTorch.

    If ``name`` is None, the recipe of ``run`` is used, if there is one. Errors in the recipe are reported
    later.
    """
    from rankless.hardware.instruction_set import fix
    from rankless.recipe import load
    from rankless.runs.directory import RunDirectory

    with suppress(UserError):
        if run is not None and name is None:
            fix(load.load(RunDirectory(run).recipe).cpu_isa)
        else:
            fix(load_recipe(name, overrides, check_model=False)[0].cpu_isa)


@app.command(
    sort_key=1,
    usage="Usage: rankless train [RECIPE] [KEY=VALUE ...] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless train digits
  rankless train mydata
  rankless train digits epochs=5 optim.lr=0.02 --run runs/short --devices 2
  rankless train --resume --run runs/short epochs=20
  rankless train my.yaml --hosts a,b:4
  python -m pdb -m rankless train digits --inline
  torchrun --nproc-per-node 8 -m rankless train digits --out runs/digits
""",
)
def train(
    *recipe: Annotated[
        str,
        Parameter(
            name="RECIPE KEY=VALUE",
            help="A shipped recipe, a YAML file or a data folder, followed by changes such as optim.lr=0.02. "
            "Default: with --resume, the run's recipe; with model.pretrained, fine-tune; with data.root, "
            "default values; otherwise digits.",
        ),
    ],
    options: Annotated[TrainOptions, Parameter(name="*")] = TrainOptions(),
) -> int:
    """Train a model. The weights are the same on any number of devices and machines."""
    given = replace(options, words=recipe)
    if given.offline and given.hosts is not None:
        raise UserError("--offline applies only to this machine; set HF_HUB_OFFLINE=1 on the hosts instead")
    go_offline(given.offline)
    if environment := environments.detect():
        return train_as_rank(given, environment)
    if given.hosts is not None:
        return train_over_ssh(given, given.hosts)
    needed = {"--detach": given.detach, "--sync": given.sync, "--python": given.python}
    refuse_without("--hosts", {**needed, "--min-hosts": given.min_hosts != "1"})
    return train_here(given)


@app.command(
    sort_key=2,
    usage="Usage: rankless attach RUN [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless train my.yaml --hosts a,b --run runs/my --detach
  rankless attach runs/my
""",
)
def attach(
    run: Annotated[Path, Parameter(name="RUN", help="The directory of a detached run.")],
    /,
    *,
    stop: Annotated[bool, Parameter(help="Save the run and stop it."), flag] = False,
) -> int:
    """Show the output of a detached run. Ctrl-C leaves it running."""
    from rankless.launch.hosts.detach import attach as follow

    return follow(run, stop=stop)


@app.command(
    sort_key=5,
    usage="Usage: rankless verify [RECIPE] [KEY=VALUE ...] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless verify
  rankless verify my.yaml batch.images=24 --worlds 1,2,3 --steps 5
  rankless verify my.yaml --hosts a,b:4
""",
)
def verify(
    *recipe: RecipeWords,
    device: Device = "auto",
    worlds: Annotated[str, Parameter(help="Numbers of processes to compare.", metavar="N,N")] = "1,2",
    steps: Annotated[
        str, Parameter(help="Number of training steps for each number of processes.", metavar="N")
    ] = "20",
    hosts: Hosts = None,
    sync: Sync = False,
    ssh: Ssh = "ssh",
    python: Python = None,
    as_json: Json = False,
) -> int:
    """Check that the weights are bit-identical for any number of processes or hosts."""
    environments.refuse("verify", "run it once without the launcher")
    if hosts is not None and device != "auto":
        raise UserError("--device: applies only to this machine; remove --device")
    _, step_count, (chosen, _), sizes = check_all(
        lambda: compute_on(device),
        lambda: whole_number("--steps", steps),
        lambda: recipe_of(recipe),
        lambda: whole_numbers("--worlds", worlds),
    )
    from rankless.launch import fork_server
    from rankless.launch.verify import verify as compare

    # With --json, only the report goes to standard output.
    echo = partial(print, file=sys.stderr if as_json else sys.stdout, flush=True)
    if hosts is not None:
        from rankless.launch.hosts.channel import host_access
        from rankless.launch.hosts.names import parse_hosts
        from rankless.launch.verify import verify_on_hosts

        report = verify_on_hosts(
            chosen, parse_hosts(hosts), step_count, host_access(ssh, python, sync=sync), echo
        )
    else:
        fork_server.start(chosen.task)
        report = compare(chosen, sizes, step_count, echo)
    if as_json:
        print_json(report.as_json())
    return 0 if report.ok else 1
