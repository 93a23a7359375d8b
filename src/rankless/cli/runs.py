"""The commands evaluate and digest."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rankless.cli.options import (
    Device,
    Devices,
    Json,
    PredictingTarget,
    Target,
    Task,
    class_pairs,
    compute_on,
    devices_here,
    flag,
    part,
    refuse_stray,
)
from rankless.errors import check_all
from rankless.printing import print_json, print_scores, say

app = part()

Others = Annotated[Path, Parameter(help="More runs. Each gets a line.")]


@app.command(
    sort_key=2,
    usage="Usage: rankless evaluate TARGET [KEY=VALUE ...] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless evaluate runs/digits
  rankless evaluate runs/digits evaluate.iou=0.5 --json
""",
)
def evaluate(
    target: PredictingTarget,
    /,
    *overrides: Annotated[str, Parameter(name="KEY=VALUE", help="Changes to the run's recipe.")],
    task: Task = None,
    devices: Devices = "auto",
    device: Device = "auto",
    split: Annotated[
        str | None, Parameter(help="The split to score on. Default: the recipe's data.val.")
    ] = None,
    classes_map: Annotated[
        str | None,
        Parameter(
            help="Pairs of the data's class and the model's class, if their names differ: "
            "'motorbike=motorcycle, cow=' (a class with nothing after = is ignored), or a file with one pair "
            "per line.",
            metavar="PAIRS",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Score a run or a weights file on its evaluation images."""
    from rankless.launch import environments

    environments.refuse("evaluate", "run it once, without the launcher; --devices sets the number of devices")
    from rankless.cli.path_checks import check_target

    _, count, pairs, *_ = check_all(
        lambda: compute_on(device),
        lambda: devices_here(devices),
        lambda: None if classes_map is None else class_pairs(classes_map),
        lambda: refuse_stray(overrides, "evaluate.iou=0.5"),
        lambda: check_target(target),
    )
    if pairs is not None:
        overrides = (*overrides, f"evaluate.classes_map={json.dumps(pairs)}")
    from rankless.launch import fork_server, local

    fork_server.start()
    scores = local.evaluate(target, overrides, task=task, devices=count, split=split)
    if as_json:
        print_json(scores)
    else:
        print_scores(scores)
    return 0


@app.command(
    sort_key=4,
    usage="Usage: rankless digest TARGET... [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless digest runs/one runs/two
  rankless digest runs/one --chain
""",
)
def digest(
    target: Target,
    /,
    *others: Others,
    chain: Annotated[
        bool, Parameter(help="Check a run's chain: checkpoints, journal, recipe and environments."), flag
    ] = False,
    as_json: Json = False,
) -> int:
    """Print the SHA-256 of the weights: equal weights, equal digest."""
    if chain:
        from rankless.cli.auditing import check_chains

        return check_chains([target, *others], as_json=as_json)
    from rankless.models.checkpoints.weights import digest_file
    from rankless.runs.trained_weights import trained_weights_of

    paths = check_all(*(partial(trained_weights_of, one) for one in (target, *others)))
    found = [{"sha256": digest_file(path), "weights": str(path)} for path in paths]
    if as_json:
        print_json(found if others else found[0])
    else:
        for one in found:
            say(f"{one['sha256']}  {one['weights']}")
    return 0
