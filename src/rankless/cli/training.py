"""The commands that train: train, attach, verify."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rankless.cli import starting
from rankless.cli.options import (
    Devices,
    Hosts,
    Json,
    Python,
    RecipeWords,
    Ssh,
    Sync,
    flag,
    part,
    recipe_of,
    whole_number,
)
from rankless.errors import UserError
from rankless.printing import print_json

app = part()


@app.command(
    sort_key=1,
    usage="Usage: rankless train [RECIPE] [KEY=VALUE ...] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless train digits
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
            help="A shipped recipe or a YAML file (if not given: a resumed run's; fine-tune with "
            "model.pretrained; digits, or the defaults for other data), and changes: optim.lr=0.02.",
        ),
    ],
    run: Annotated[
        Path | None,
        Parameter(
            name=("--run", "--out"),
            help="The run directory; if not given, runs/RECIPE, RECIPE-2 …",
        ),
    ] = None,
    devices: Devices = "auto",
    resume: Annotated[bool, Parameter(help="Go on from the last checkpoint in --run."), flag] = False,
    sink: Annotated[
        tuple[str, ...],
        Parameter(
            help="Write the numbers to csv, tensorboard, mlflow or wandb, too, or to an observer of your "
            "own, package.module:Class or file.py:Class, whose code is run. Repeatable; not remembered: "
            "give it again with --resume.",
            negative="",
            metavar="SINK",
            show_default=False,
        ),
    ] = (),
    inline: Annotated[
        bool,
        Parameter(help="Train in this very process: for debuggers, profilers."),
        flag,
    ] = False,
    parallel: Annotated[
        str,
        Parameter(help="Ranks are processes, or threads.", metavar="KIND"),
    ] = "processes",
    download: Annotated[
        bool,
        Parameter(help="Get data.root=torchvision/NAME first."),
        flag,
    ] = False,
    hosts: Hosts = None,
    min_hosts: Annotated[str, Parameter(help="Go on with so many when others are lost.", metavar="N")] = "1",
    sync: Sync = False,
    detach: Annotated[
        bool, Parameter(help="Leave it to the first of --hosts; see rankless attach RUN."), flag
    ] = False,
    ssh: Ssh = "ssh",
    python: Python = None,
) -> int:
    """Train a recipe; the weights are the same on any number of devices and machines."""
    from rankless.launch import environments

    given = starting.TrainOptions(recipe, run, devices, resume, sink, inline, download, parallel)
    if environment := environments.detect():
        return starting.as_a_rank(given, environment, hosts)
    if hosts is not None:
        return starting.on_hosts(given, hosts, min_hosts, ssh, python, sync=sync, detach=detach)
    of_hosts = {"--detach": detach, "--sync": sync, "--python": python, "--min-hosts": min_hosts != "1"}
    if alone := [option for option, is_given in of_hosts.items() if is_given]:
        raise UserError(
            f"{option}: without --hosts it has no effect; add --hosts, or leave it out" for option in alone
        )
    return starting.here(given)


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
    run: Annotated[Path, Parameter(name="RUN", help="The run directory of a detached training.")],
    /,
    *,
    stop: Annotated[bool, Parameter(help="Have it save and end."), flag] = False,
) -> int:
    """Show what a detached training prints; Ctrl-C leaves it running."""
    from rankless.launch.hosts.detaching import attach as follow

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
    worlds: Annotated[str, Parameter(help="Numbers of processes to compare.", metavar="N,N")] = "1,2",
    steps: Annotated[str, Parameter(help="Steps to train with each.", metavar="N")] = "20",
    hosts: Hosts = None,
    sync: Sync = False,
    ssh: Ssh = "ssh",
    python: Python = None,
    as_json: Json = False,
) -> int:
    """Prove that the number of processes, or of --hosts, changes no bit of the weights."""
    from rankless.launch import environments

    environments.refuse("verify", "run it without the launcher, once")
    sizes = [whole_number("--worlds", size, ", as in 1,2,3") for size in worlds.split(",")]
    step_count = whole_number("--steps", steps)
    chosen, _ = recipe_of(recipe)
    from rankless.launch import fork_server
    from rankless.launch.verify import verify as compare

    # With --json the standard output is the report's alone.
    log = sys.stderr if as_json else sys.stdout

    def echo(line: str) -> None:
        print(line, file=log, flush=True)

    if hosts is not None:
        from rankless.launch.hosts.names import parse_hosts
        from rankless.launch.hosts.verifying import verify_on_hosts
        from rankless.launch.hosts.way import way_over

        report = verify_on_hosts(
            chosen, parse_hosts(hosts), step_count, way_over(ssh, python, sync=sync), echo
        )
    else:
        fork_server.start(chosen.task)
        report = compare(chosen, sizes, step_count, echo)
    if as_json:
        print_json(report.as_json())
    return 0 if report.ok else 1
