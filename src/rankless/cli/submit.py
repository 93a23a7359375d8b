"""The commands ``rankless submit slurm``, ``kubernetes`` and ``ray``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rankless.cli.options import flag, group, not_given, recipe_of, repeatable, whole_number
from rankless.errors import UserError, check_all
from rankless.printing import say

if TYPE_CHECKING:
    from rankless.launch.submit.request import Request

submit = group(
    name="submit",
    help="Submit a training run to a cluster, which starts the ranks and restarts them after a failure.",
    help_epilogue="Start with:\n  rankless submit slurm digits --nodes 2 --devices 2 --dry-run",
    usage="Usage: rankless submit CLUSTER RECIPE [KEY=VALUE ...] [OPTIONS]",
    sort_key=5.5,
)

Words = Annotated[
    str, Parameter(name="RECIPE KEY=VALUE", help="A shipped recipe or a YAML file, followed by changes.")
]
Nodes = Annotated[str, Parameter(help="Number of machines.", metavar="N")]
Devices = Annotated[
    str, Parameter(help="Number of GPUs per machine or, if the job uses no GPUs, of processes.", metavar="N")
]


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """Options common to all kinds of clusters."""

    out: Annotated[
        str | None,
        Parameter(
            name=("--out", "--run"), help="The run directory. Default: runs/RECIPE-JOB.", metavar="PATH"
        ),
    ] = None
    name: Annotated[str | None, Parameter(help="Job name. Default: the recipe's name.", metavar="NAME")] = (
        None
    )
    cpus: Annotated[str | None, Parameter(help="Number of CPU cores per rank.", metavar="N")] = None
    sinks: Annotated[
        tuple[str, ...],
        Parameter(
            name="--sink",
            help="Also log metrics to this sink; see rankless train. Repeatable.",
            metavar="SINK",
        ),
        repeatable,
    ] = ()
    dry_run: Annotated[bool, Parameter(help="Print the job without submitting it."), flag] = False


Options = Annotated[JobOptions, Parameter(name="*")]


def _request(
    words: Sequence[str], nodes: str, devices: str, options: JobOptions, *, sends_recipe: bool = False
) -> Request:
    """Return the training run to submit. With ``sends_recipe``, it includes the text of the recipe file."""
    from rankless.files.reading import MIB, read_text
    from rankless.launch.sharing import refuse_idle
    from rankless.launch.submit.request import Request, job_name
    from rankless.recipe.installed import shipped

    recipe = next((word for word in words if "=" not in word), "")

    def read() -> str | None:
        if not recipe:
            raise UserError("no recipe given: expected the name of a shipped recipe or a YAML file")
        chosen, _ = recipe_of(words)

        def refuse_placeholders() -> None:  # other paths may exist on the cluster
            if missing := not_given(chosen):
                raise UserError(missing.values())

        ranks = whole_number("--nodes", nodes) * whole_number("--devices", devices)
        check_all(lambda: refuse_idle("{} devices", [ranks], chosen), refuse_placeholders)
        return read_text(Path(recipe), MIB) if sends_recipe and recipe not in shipped() else None

    machines, each, cores, text = check_all(
        lambda: whole_number("--nodes", nodes),
        lambda: whole_number("--devices", devices),
        lambda: None if options.cpus is None else whole_number("--cpus", options.cpus),
        read,
    )
    overrides = tuple(word for word in words if word != recipe)
    name = options.name or job_name(recipe)
    return Request(recipe, overrides, machines, each, options.out, options.sinks, name, cores, text)


@submit.command(
    sort_key=1,
    usage="Usage: rankless submit slurm RECIPE [KEY=VALUE ...] [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless submit slurm yolov4 data.root=mydata --nodes 2 --time 4:00:00
  rankless submit slurm my.yaml epochs=9 --gres gpu:a100:1 --dry-run
""",
)
def slurm(
    *recipe: Words,
    nodes: Nodes = "1",
    devices: Devices = "1",
    options: Options = JobOptions(),
    partition: Annotated[
        str | None, Parameter(help="Passed to sbatch as --partition.", metavar="NAME")
    ] = None,
    time: Annotated[
        str | None,
        Parameter(
            help="Passed to sbatch as --time. A job that reaches this limit is requeued and continues.",
            metavar="TIME",
        ),
    ] = None,
    account: Annotated[str | None, Parameter(help="Passed to sbatch as --account.", metavar="NAME")] = None,
    qos: Annotated[str | None, Parameter(help="Passed to sbatch as --qos.", metavar="NAME")] = None,
    gres: Annotated[
        str | None,
        Parameter(
            help="Passed to sbatch as --gres. 'none' requests no GPU. Default: gpu:DEVICES.", metavar="GRES"
        ),
    ] = None,
    memory: Annotated[
        str | None, Parameter(help="Memory per machine, passed to sbatch as --mem.", metavar="SIZE")
    ] = None,
    python: Annotated[
        str,
        Parameter(
            help="Python interpreter on the machines. Default: the current one.",
            metavar="PATH",
            show_default=False,
        ),
    ] = sys.executable,
) -> int:
    """Submit a batch script to Slurm. The job is requeued after preemption and at its time limit."""
    from rankless.launch.submit import slurm as cluster
    from rankless.launch.submit.request import refuse_unlike

    given = {"--name": options.name, "--partition": partition, "--time": time, "--account": account}
    given |= {"--qos": qos, "--gres": gres, "--memory": memory}
    request, _ = check_all(
        lambda: _request(recipe, nodes, devices, options), lambda: refuse_unlike(given, cluster.EXPECTED)
    )
    text = cluster.script(request, str(Path.cwd()), python, given)
    if options.dry_run:
        print(text, end="")
        return 0
    number = cluster.submit(text)
    print(text)
    say(f"submitted job {number} (log: {request.name}-{number}.log); to save and stop it: scancel {number}")
    return 0


@submit.command(
    sort_key=2,
    usage="Usage: rankless submit kubernetes RECIPE [KEY=VALUE ...] --image IMAGE --claim CLAIM [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless submit kubernetes my.yaml --image me/img:1 --claim work --apply
  rankless submit kubernetes digits --image me/img:1 --claim work | kubectl apply -f -
""",
)
def kubernetes(
    *recipe: Words,
    image: Annotated[str, Parameter(help="A container image with Rankless installed.", metavar="IMAGE")],
    claim: Annotated[
        str,
        Parameter(
            help="A PersistentVolumeClaim for data and runs, used as the working directory. Several machines "
            "need access mode ReadWriteMany.",
            metavar="CLAIM",
        ),
    ],
    nodes: Nodes = "1",
    devices: Devices = "1",
    options: Options = JobOptions(),
    namespace: Annotated[
        str | None, Parameter(help="Kubernetes namespace. Default: kubectl's.", metavar="NAME")
    ] = None,
    plain: Annotated[bool, Parameter(help="Use an Indexed Job instead of Kubeflow Trainer."), flag] = False,
    gpu: Annotated[
        str,
        Parameter(
            help="Kubernetes resource name of the devices. 'none' runs processes on CPUs.", metavar="RESOURCE"
        ),
    ] = "nvidia.com/gpu",
    memory: Annotated[str | None, Parameter(help="Memory per machine, as in 64Gi.", metavar="SIZE")] = None,
    runtime: Annotated[
        str, Parameter(help="Kubeflow Trainer runtime.", metavar="NAME")
    ] = "torch-distributed",
    python: Annotated[str, Parameter(help="Python interpreter in the image.", metavar="PATH")] = "python",
    apply: Annotated[bool, Parameter(help="Also submit the job with kubectl."), flag] = False,
) -> int:
    """Print the manifests of a Kubernetes job and, with --apply, submit them."""
    from rankless.launch.submit import kubernetes as cluster
    from rankless.launch.submit.request import refuse_unlike

    def refuse_both() -> None:
        if apply and options.dry_run:
            raise UserError("--apply submits the job, but --dry-run only prints it; remove one of them")

    given = {"--name": options.name, "--image": image, "--claim": claim, "--namespace": namespace}
    given |= {"--gpu": gpu, "--memory": memory, "--runtime": runtime}
    request, *_ = check_all(
        lambda: _request(recipe, nodes, devices, options, sends_recipe=True),
        lambda: refuse_unlike(given, cluster.EXPECTED),
        refuse_both,
    )
    text = cluster.text(cluster.manifests(request, python, given, plain=plain))
    print(text, end="")
    if apply:
        sys.stdout.flush()
        say(cluster.apply(text).strip(), file=sys.stderr)
    return 0


@submit.command(
    sort_key=3,
    usage="Usage: rankless submit ray RECIPE [KEY=VALUE ...] --address ADDRESS [OPTIONS]",
    help_epilogue="""\
Examples:
  rankless submit ray my.yaml --address auto --devices 8
  rankless submit ray digits --address 10.0.0.1:6379 --out /data/runs/digits
""",
)
def ray(
    *recipe: Words,
    address: Annotated[
        str,
        Parameter(
            help="The cluster address: HOST:PORT, or auto on a machine of the cluster.", metavar="ADDRESS"
        ),
    ],
    devices: Annotated[
        str, Parameter(help="Total number of GPUs or, if the job uses no GPUs, of processes.", metavar="N")
    ] = "1",
    options: Options = JobOptions(),
    restarts: Annotated[
        str, Parameter(help="Maximum number of restarts after a rank is lost.", metavar="N")
    ] = "10",
) -> int:
    """Train on a Ray cluster with Ray Train, and wait for the run to finish."""
    import uuid

    from rankless.launch.submit import ray as cluster

    request, count = check_all(
        lambda: _request(recipe, "1", devices, options, sends_recipe=True),
        lambda: whole_number("--restarts", restarts),
    )
    job = f"{request.name}-{uuid.uuid4().hex[:8]}"
    settings = cluster.Settings(address, str(Path.cwd()), job, count)
    # Workers have their own folders, so the run directory is an absolute path, the same on all machines.
    request = replace(request, run=str(Path(options.out or f"runs/{job}").absolute()))
    print(cluster.described(request, settings), end="", flush=True)
    return 0 if options.dry_run else cluster.run(request, settings)
