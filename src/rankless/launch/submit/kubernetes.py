"""Kubernetes manifests: a Kubeflow TrainJob, or an Indexed Job with a headless Service."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from rankless.errors import STOPPED
from rankless.launch.job import LOST_PEER
from rankless.launch.submit.request import Problems, Request, pass_on

_GRACE = 90  # seconds to save after SIGTERM
_PORT = 29500
_CLAIM = "/workspace"  # mount point of the claim and working directory of the ranks
_RECIPES = "/etc/rankless"
_SIZE = r"[0-9]+(\.[0-9]+)?([KMGTP]i?|m)?"
_LABEL = r"[a-z]([a-z0-9-]{0,51}[a-z0-9])?"  # a pod's host name, with its number, has 63 characters at most
_NAME = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"

# Kubernetes expands $( and $$ anywhere, so the script has neither.
_POD = """\
# Start the ranks of one machine, a process for each device. The script's arguments are their command.
# At a preemption they save and exit with {stopped}.
trap 'again=1 stop=1; [ -z "$ranks" ] || kill -TERM $ranks' TERM
stop="" ranks=""
cd {claim} || exit 2
if [ "$NODE" = 0 ]; then
  MASTER_ADDR=$POD_IP
else
  until [ -n "$stop" ] || getent hosts "$MASTER_ADDR" > /dev/null; do sleep 1; done
fi
export MASTER_ADDR RANK LOCAL_RANK
for LOCAL_RANK in $DEVICES; do
  let "RANK = NODE * LOCAL_WORLD_SIZE + LOCAL_RANK"
  "$@" &
  ranks="$ranks $!"
done
[ -z "$stop" ] || kill -TERM $ranks
code=0
for rank in $ranks; do
  again=1
  while [ $again = 1 ]; do  # a signal interrupts wait
    again=0
    wait $rank
    ended=$?
  done
  # {lost} means that another rank was lost; the exit code of that rank counts.
  case $code in 0 | {lost}) [ $ended = 0 ] || code=$ended ;; esac
done
exit $code
"""


@dataclass(frozen=True)
class Settings:
    """Settings of Kubernetes.

    Attributes:
        image: the container image with rankless and its dependencies.
        claim: the PersistentVolumeClaim of the working directory, with the data and the runs.
        namespace: the namespace; None uses kubectl's default.
        gpu: the resource name of a device; "none" trains on CPUs.
        cpus: number of CPUs per rank; None sets no limit.
        memory: memory per machine; None sets no limit.
        runtime: the runtime of the TrainJob.
        python: the interpreter in the image.
        recipe_text: content of the recipe file, stored in a ConfigMap; None for a shipped recipe.
    """

    image: str
    claim: str
    namespace: str | None = None
    gpu: str = "nvidia.com/gpu"
    cpus: int | None = None
    memory: str | None = None
    runtime: str = "torch-distributed"
    python: str = "python"
    recipe_text: str | None = None


def check(problems: Problems, request: Request, settings: Settings) -> None:
    """Collect settings that the cluster would refuse."""
    dns = "lower-case letters, digits and dashes"
    problems.match(
        {
            "--name": (request.name, _LABEL, f"at most 53 {dns}, a letter first"),
            "--namespace": (settings.namespace, _LABEL, dns),
            "--claim": (settings.claim, _NAME, "a PersistentVolumeClaim that kubectl get pvc lists"),
            "--runtime": (settings.runtime, _NAME, "a runtime, such as torch-distributed"),
            "--gpu": (settings.gpu, r"none|[a-z0-9./-]{1,253}", "a resource, such as nvidia.com/gpu"),
            "--memory": (settings.memory, _SIZE, "a machine's memory, such as 64Gi"),
            "--image": (settings.image, r"[^\s]{1,500}", "an image, such as registry.example/rankless:1"),
        }
    )


def manifests(request: Request, settings: Settings, *, plain: bool) -> list[dict[str, Any]]:
    """Return the manifests in the order to apply them; with ``plain``, Kubeflow Trainer is not needed."""
    found = []
    if settings.recipe_text is not None:
        found.append(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": _metadata(request, settings),
                "data": {_file(request): settings.recipe_text},
            }
        )
    found += (
        [_service(request, settings), _job(request, settings)] if plain else [_train_job(request, settings)]
    )
    return found


def text(documents: Sequence[Mapping[str, Any]]) -> str:
    """Return the manifests as YAML."""
    return yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, explicit_start=True, allow_unicode=True, width=110
    )


def apply(text: str) -> str:
    """Pass the manifests to kubectl, and return its output."""
    return pass_on(
        text,
        ("kubectl", "apply", "-f", "-"),
        instead="expected a machine that uses the cluster: log in to one, or leave out --apply and pass on "
        "what is printed",
        remedy=lambda _: "expected what this cluster takes: correct that",
    )


def _job(request: Request, settings: Settings) -> dict[str, Any]:
    """Return an Indexed Job with a pod for each machine."""
    container = {
        "name": "node",
        "image": settings.image,
        "command": ["bash", "-c", _script()],
        "args": _arguments(request, settings),
        "env": _variables(request, f"{request.name}-0.{request.name}"),
        "ports": [{"containerPort": _PORT}],
        "resources": _resources(request, settings),
        "volumeMounts": _mounts(settings),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(request, settings),
        "spec": {
            "completionMode": "Indexed",
            "completions": request.nodes,
            "parallelism": request.nodes,
            "backoffLimit": 3 * request.nodes,
            "podFailurePolicy": {
                "rules": [
                    {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2]}},
                    {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [LOST_PEER, STOPPED]}},
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                ]
            },
            "template": {
                "metadata": {"labels": _labels(request)},
                "spec": {
                    "restartPolicy": "Never",
                    "subdomain": request.name,
                    "terminationGracePeriodSeconds": _GRACE,
                    "containers": [container],
                    "volumes": _volumes(request, settings),
                },
            },
        },
    }


def _service(request: Request, settings: Settings) -> dict[str, Any]:
    """Return a headless Service that lets pods resolve each other's names, even before they are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(request, settings),
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": _labels(request)},
    }


def _train_job(request: Request, settings: Settings) -> dict[str, Any]:
    """Return a TrainJob for Kubeflow Trainer 2.2 or later; the runtime decides about restarts."""
    pod = {
        "containers": [{"name": "node", "volumeMounts": _mounts(settings)}],
        "volumes": _volumes(request, settings),
    }
    job = {"name": "node", "template": {"spec": {"template": {"spec": pod}}}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": _metadata(request, settings),
        "spec": {
            "runtimeRef": {"name": settings.runtime},
            "trainer": {
                "image": settings.image,
                "command": ["bash", "-c", _script()],
                "args": _arguments(request, settings),
                "env": _variables(request, f"{request.name}-node-0-0.{request.name}"),
                "numNodes": request.nodes,
                "numProcPerNode": request.devices,
                "resourcesPerNode": _resources(request, settings),
            },
            "runtimePatches": [
                {
                    "manager": "rankless.submit/volumes",
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}},
                }
            ],
        },
    }


def _script() -> str:
    return _POD.format(stopped=STOPPED, lost=LOST_PEER, claim=_CLAIM)


def _arguments(request: Request, settings: Settings) -> list[str]:
    """Return the arguments of the script: its name and the command of a rank."""
    words = request.words()
    if settings.recipe_text is not None:
        words[2] = f"{_RECIPES}/{_file(request)}"
    if request.run is None:
        words += ["--out", f"runs/{request.name}"]
    return ["node", *(word.replace("$", "$$") for word in (settings.python, "-m", *words))]


def _file(request: Request) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", request.recipe.rpartition("/")[2])[-200:]


def _variables(request: Request, address: str) -> list[dict[str, Any]]:
    fixed = {
        "RANKLESS_JOB_ID": request.name,  # a job that is applied again continues its run
        "MASTER_ADDR": address,
        "MASTER_PORT": str(_PORT),
        "WORLD_SIZE": str(request.ranks),
        "LOCAL_WORLD_SIZE": str(request.devices),
        "DEVICES": " ".join(map(str, range(request.devices))),
    }
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    return [
        *({"name": name, "value": value} for name, value in fixed.items()),
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": index}}},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]


def _resources(request: Request, settings: Settings) -> dict[str, Any]:
    limits: dict[str, Any] = {} if settings.gpu == "none" else {settings.gpu: request.devices}
    if settings.cpus:
        limits["cpu"] = str(settings.cpus * request.devices)
    if settings.memory:
        limits["memory"] = settings.memory
    return {"limits": limits} if limits else {}


def _mounts(settings: Settings) -> list[dict[str, Any]]:
    recipe = [{"name": "recipe", "mountPath": _RECIPES}] if settings.recipe_text is not None else []
    return [
        {"name": "workspace", "mountPath": _CLAIM},
        {"name": "memory", "mountPath": "/dev/shm"},
        *recipe,
    ]


def _volumes(request: Request, settings: Settings) -> list[dict[str, Any]]:
    recipe = (
        [{"name": "recipe", "configMap": {"name": request.name}}] if settings.recipe_text is not None else []
    )
    return [
        {"name": "workspace", "persistentVolumeClaim": {"claimName": settings.claim}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        *recipe,
    ]


def _metadata(request: Request, settings: Settings) -> dict[str, Any]:
    where = {} if settings.namespace is None else {"namespace": settings.namespace}
    return {"name": request.name, **where, "labels": _labels(request)}


def _labels(request: Request) -> dict[str, str]:
    return {"app.kubernetes.io/name": "rankless", "app.kubernetes.io/instance": request.name}


class _Dumper(yaml.SafeDumper):
    """A YAML dumper that writes scripts as blocks and does not use aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _string(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    # kubectl parses some words as numbers that PyYAML leaves unquoted, such as 1e3.
    plain = re.match(r"[A-Za-z/]{2}|--[a-z]", value)
    style = "|" if "\n" in value else None if plain else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _string)
