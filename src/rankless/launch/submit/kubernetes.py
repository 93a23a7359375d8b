"""Kubernetes manifests: a Kubeflow TrainJob, or an Indexed Job with a headless Service."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rankless.launch.submit.request import Request, pass_on

_SIZE = r"[0-9]+(\.[0-9]+)?([KMGTP]i?|m)?"
_LABEL = r"[a-z]([a-z0-9-]{0,51}[a-z0-9])?"  # a pod's host name, with its number, has 63 characters at most
_NAME = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
_DNS = "lower-case letters, digits and dashes"
EXPECTED = {
    "--name": (_LABEL, f"at most 53 {_DNS}, starting with a letter"),
    "--namespace": (_LABEL, _DNS),
    "--claim": (_NAME, "a PersistentVolumeClaim listed by kubectl get pvc"),
    "--runtime": (_NAME, "a runtime, such as torch-distributed"),
    "--gpu": (r"none|[a-z0-9./-]{1,253}", "a resource, such as nvidia.com/gpu"),
    "--memory": (_SIZE, "a machine's memory, such as 64Gi"),
    "--image": (r"[^\s]{1,500}", "an image, such as registry.example/rankless:1"),
}  # option: its pattern, and a description of valid values
_RECIPES = "/etc/rankless"


def manifests(
    request: Request, python: str, options: Mapping[str, str | None], *, plain: bool
) -> list[dict[str, Any]]:
    """Return the manifests in the order in which to apply them.

    ``plain`` selects an Indexed Job, which does not need Kubeflow Trainer. Values are inserted into the
    parsed template, so they are never parsed as YAML.
    """
    name, words, recipe = request.name, request.words(), None
    if request.recipe_text is not None:
        file = re.sub(r"[^A-Za-z0-9._-]", "-", request.recipe.rpartition("/")[2])[-200:]
        words[2], recipe = f"{_RECIPES}/{file}", {file: request.recipe_text}
    if request.run is None:
        words += ["--out", f"runs/{name}"]
    gpu = options["--gpu"]
    limits = {
        gpu: None if gpu == "none" else request.devices,
        "cpu": str(request.cpus * request.devices) if request.cpus else None,
        "memory": options.get("--memory"),
    }
    limits = {resource: limit for resource, limit in limits.items() if limit is not None}
    values: dict[str, Any] = {
        "$name": name,
        "$namespace": options.get("--namespace"),
        "$claim": options.get("--claim"),
        "$image": options.get("--image"),
        "$runtime": options.get("--runtime"),
        "$address": f"{name}-0.{name}" if plain else f"{name}-node-0-0.{name}",
        "$ranks": str(request.ranks),
        "$devices": str(request.devices),
        "$devices_each": request.devices,
        "$local_ranks": " ".join(map(str, range(request.devices))),
        "$nodes": request.nodes,
        "$retries": 3 * request.nodes,
        # The script's name and the command of a rank.
        "$arguments": ["node", *(word.replace("$", "$$") for word in (python, "-m", *words))],
        "$resources": {"limits": limits} if limits else {},
        "$recipe": recipe,
        "$recipe_volume": {"name": "recipe", "configMap": {"name": name}} if recipe else None,
        "$recipe_mount": {"name": "recipe", "mountPath": _RECIPES} if recipe else None,
    }
    template = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    kinds = [*(["ConfigMap"] if recipe else []), *(["Service", "Job"] if plain else ["TrainJob"])]
    return [_filled(template[kind], values) for kind in kinds]


def _filled(node: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(node, dict):
        every = {key: _filled(value, values) for key, value in node.items()}
        return {key: value for key, value in every.items() if value is not None}
    if isinstance(node, list):
        return [value for value in (_filled(one, values) for one in node) if value is not None]
    return values.get(node, node)


def text(documents: Sequence[Mapping[str, Any]]) -> str:
    return yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, explicit_start=True, allow_unicode=True, width=110
    )


def apply(text: str) -> str:
    return pass_on(
        text,
        ("kubectl", "apply", "-f", "-"),
        instead="expected a machine with access to the cluster; log in to one, or remove --apply and apply "
        "the output there",
        remedy=lambda _: "expected values that this cluster accepts; correct the options",
    )


class _Dumper(yaml.SafeDumper):
    """A YAML dumper that writes scripts as blocks and does not use aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _string(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    # PyYAML leaves some words unquoted that kubectl parses as numbers, such as 1e3.
    plain = re.match(r"[A-Za-z/]{2}|--[a-z]", value)
    style = "|" if "\n" in value else None if plain else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _string)
