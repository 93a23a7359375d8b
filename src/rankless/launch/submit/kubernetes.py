"""Kubernetes manifests: a Kubeflow TrainJob, or an Indexed Job with a headless Service."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rankless.launch.submit.request import Request, pass_on, refuse_unlike

_SIZE = r"[0-9]+(\.[0-9]+)?([KMGTP]i?|m)?"
_LABEL = r"[a-z]([a-z0-9-]{0,51}[a-z0-9])?"  # a pod's host name, with its number, has 63 characters at most
_NAME = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
_RECIPES = "/etc/rankless"


@dataclass(frozen=True)
class Settings:
    """Settings of Kubernetes.

    Attributes:
        image: the container image with rankless and its dependencies.
        claim: the PersistentVolumeClaim of the working directory, with the data and the runs.
        namespace: the namespace; None uses kubectl's default.
        gpu: the resource name of a device; "none" trains on CPUs.
        memory: memory per machine; None sets no limit.
        runtime: the runtime of the TrainJob.
        python: the interpreter in the image.
    """

    image: str
    claim: str
    namespace: str | None = None
    gpu: str = "nvidia.com/gpu"
    memory: str | None = None
    runtime: str = "torch-distributed"
    python: str = "python"


def check(name: str | None, settings: Settings) -> None:
    """Raise for settings, or a name of the job, that the cluster would refuse."""
    dns = "lower-case letters, digits and dashes"
    refuse_unlike(
        {
            "--name": (name, _LABEL, f"at most 53 {dns}, a letter first"),
            "--namespace": (settings.namespace, _LABEL, dns),
            "--claim": (settings.claim, _NAME, "a PersistentVolumeClaim that kubectl get pvc lists"),
            "--runtime": (settings.runtime, _NAME, "a runtime, such as torch-distributed"),
            "--gpu": (settings.gpu, r"none|[a-z0-9./-]{1,253}", "a resource, such as nvidia.com/gpu"),
            "--memory": (settings.memory, _SIZE, "a machine's memory, such as 64Gi"),
            "--image": (settings.image, r"[^\s]{1,500}", "an image, such as registry.example/rankless:1"),
        }
    )


def manifests(request: Request, settings: Settings, *, plain: bool) -> list[dict[str, Any]]:
    """Return the manifests in the order to apply them; with ``plain``, Kubeflow Trainer is not needed.

    The values are put into the parsed template, so nothing in them is read as YAML.
    """
    name, words, recipe = request.name, request.words(), None
    if request.recipe_text is not None:
        file = re.sub(r"[^A-Za-z0-9._-]", "-", request.recipe.rpartition("/")[2])[-200:]
        words[2], recipe = f"{_RECIPES}/{file}", {file: request.recipe_text}
    if request.run is None:
        words += ["--out", f"runs/{name}"]
    limits = {
        settings.gpu: None if settings.gpu == "none" else request.devices,
        "cpu": str(request.cpus * request.devices) if request.cpus else None,
        "memory": settings.memory,
    }
    limits = {resource: limit for resource, limit in limits.items() if limit is not None}
    values: dict[str, Any] = {
        "$name": name,
        "$namespace": settings.namespace,
        "$claim": settings.claim,
        "$image": settings.image,
        "$runtime": settings.runtime,
        "$address": f"{name}-0.{name}" if plain else f"{name}-node-0-0.{name}",
        "$ranks": str(request.ranks),
        "$devices": str(request.devices),
        "$devices_each": request.devices,
        "$local_ranks": " ".join(map(str, range(request.devices))),
        "$nodes": request.nodes,
        "$retries": 3 * request.nodes,
        # The script's name and the command of a rank.
        "$arguments": ["node", *(word.replace("$", "$$") for word in (settings.python, "-m", *words))],
        "$resources": {"limits": limits} if limits else {},
        "$recipe": recipe,
        "$recipe_volume": {"name": "recipe", "configMap": {"name": name}} if recipe else None,
        "$recipe_mount": {"name": "recipe", "mountPath": _RECIPES} if recipe else None,
    }
    template = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    kinds = [*(["ConfigMap"] if recipe else []), *(["Service", "Job"] if plain else ["TrainJob"])]
    return [_filled(template[kind], values) for kind in kinds]


def _filled(node: Any, values: Mapping[str, Any]) -> Any:
    """Return a part of the template with its words replaced; entries whose value is None are left out."""
    if isinstance(node, dict):
        every = {key: _filled(value, values) for key, value in node.items()}
        return {key: value for key, value in every.items() if value is not None}
    if isinstance(node, list):
        return [value for value in (_filled(one, values) for one in node) if value is not None]
    return values.get(node, node)


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
