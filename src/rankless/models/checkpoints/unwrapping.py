"""Find the weights in the contents of a checkpoint.

Trainers save the weights under various names, alongside the optimizer, the epoch and an average of the
weights. The search works the same way for every file format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankless.errors import counted, printable
from rankless.models.checkpoints.pickle_values import RefusedFileError

# In order of preference: usually, the averaged weights were evaluated.
_AVERAGED = (
    "ema",
    "model_ema",
    "ema_model",
    "ema_state_dict",
    "state_dict_ema",
    "ema_model_state_dict",
    "model_ema_state_dict",
    "params_ema",
    "averaged_model",
)
_PLAIN = (
    "model",
    "state_dict",
    "model_state_dict",
    "model_state",
    "net",
    "network",
    "module",
    "weights",
    "params",
)
_NEVER = ("optim", "sched", "scaler", "amp", "loss", "criterion")  # prefixes of entries that are not models
_TRAINING = {
    "the optimizer's state": ("optimizer", "optimizer_state_dict", "optimizer_states", "optim", "opt"),
    "the epoch": ("epoch", "epochs", "last_epoch"),
}
_DEEPEST = 5
# Tensors that share or repeat memory are stored once but would be saved several times.
_REPEATED = 8


@dataclass(frozen=True)
class Checkpoint:
    """The weights in a file.

    Attributes:
        state: tensors by the file's names, on the CPU; floating-point tensors are float32.
        facts: sentences about the file.
        seen: number of images the weights were trained on; 0 if unknown.
    """

    state: dict[str, Tensor]
    facts: list[str]
    seen: int = 0


def unwrap(content: Any, key: str | None, size: int) -> Checkpoint:
    """Find the weights in the content of a file.

    Args:
        content: nested dicts that contain tensors.
        key: the entry that holds the weights, dotted if nested; None prefers averaged weights.
        size: size of the file in bytes, which limits the size of its tensors.
    """
    if isinstance(content, Tensor) or not isinstance(content, Mapping):
        raise RefusedFileError(
            f"contains a {type(content).__name__}; expected a state_dict, a dict of tensors by name"
        )
    facts = _makers(content)
    node, trail = content, list[str]()
    if key is not None:
        node = _descend(content, key)
        trail = [key]
        if not _holds_weights(node):
            raise RefusedFileError(f"has no tensors under --key {printable(key)}{_others(content)}")
    while len(trail) <= _DEEPEST and (name := _next(node, facts, ".".join(trail))) is not None:
        node = node[name]
        trail.append(name)
    if trail:
        average = " (averaged weights)" if key is None and trail[0] in _AVERAGED else ""
        facts.append(f"the weights are under '{'.'.join(map(printable, trail))}'{average}")
        facts += _of_training(content)
    return Checkpoint(_tensors(node, facts, size), facts)


def _makers(content: Mapping[Any, Any]) -> list[str]:
    version = content.get("pytorch-lightning_version")
    if isinstance(version, str):
        return [f"a checkpoint of PyTorch Lightning {printable(version)}"]
    if "amp" in content and "optimizer" in content:
        return ["a checkpoint of a training run with Apex or automatic mixed precision"]
    return []


def _of_training(content: Mapping[Any, Any]) -> list[str]:
    """Describe the parts of a checkpoint that are not imported, such as optimizer state and epoch."""
    left = [
        f"{what} under '{name}'"
        for name in map(str, content)
        for what, kind in (("the optimizer's state", Mapping | list), ("the epoch", int | float))
        if name in _TRAINING[what] and isinstance(content[name], kind) and content[name]
    ]
    if not left:
        return []
    epoch = next(
        (content[name] for name in _TRAINING["the epoch"] if isinstance(content.get(name), int)), None
    )
    past = f" minus the {counted(epoch, 'epoch')} it has had" if epoch and not isinstance(epoch, bool) else ""
    return [
        f"{' and '.join(left)} {'is' if len(left) == 1 else 'are'} left out: training from these weights "
        f"begins at epoch 0 with a new optimizer; set epochs to the remaining number (epochs{past}), "
        "schedule.warmup=0, and optim.lr to the learning rate it had reached"
    ]


def _descend(content: Mapping[Any, Any], key: str) -> Any:
    """Return the entry called ``key``, or None; dots in the key separate levels or are part of a name."""
    if key in content:
        return content[key]
    parts = key.split(".")
    for count in range(1, len(parts)):
        inner = content.get(".".join(parts[:count]))
        if isinstance(inner, Mapping):
            return _descend(inner, ".".join(parts[count:]))
    return None


def _others(content: Mapping[Any, Any]) -> str:
    names = [printable(str(name)) for name in _with_weights(content)]
    more = ", …" if len(names) > 10 else ""
    return f"; entries with tensors: {', '.join(names[:10]) or 'none'}{more}"


def _next(node: Mapping[Any, Any], facts: list[str], trail: str) -> str | None:
    """Return the entry of ``node`` that holds the weights, or None if the node itself holds them."""
    dicts = [name for name in _with_weights(node) if isinstance(name, str)]
    chosen = next((name for name in _AVERAGED + _PLAIN if name in dicts), None)
    if chosen is not None:
        before = f"{trail}." if trail else ""
        others = [name for name in _AVERAGED + _PLAIN if name in dicts and name != chosen]
        if others:
            names = " and ".join(f"'{before}{name}'" for name in others)
            facts.append(f"the file also holds weights under {names}: --key selects those")
        return chosen
    if any(isinstance(value, Tensor) for value in node.values()):
        return None
    likely = [name for name in dicts if not name.lower().startswith(_NEVER)]
    if len(likely) == 1:
        return likely[0]
    if likely:
        raise RefusedFileError(f"holds several sets of tensors: choose one with --key{_others(node)}")
    return None


def _with_weights(node: Mapping[Any, Any]) -> list[Any]:
    """List the entries of ``node`` that hold weights."""
    known: dict[int, bool] = {}
    return [name for name, value in node.items() if _holds_weights(value, known)]


def _holds_weights(value: Any, known: dict[int, bool] | None = None, depth: int = _DEEPEST) -> bool:
    """Check whether a dict contains tensors, directly or under an entry for weights.

    Args:
        value: any value.
        known: results by identity, because dicts can occur several times or contain themselves.
        depth: number of levels to search.
    """
    known = {} if known is None else known
    if not isinstance(value, Mapping) or not depth:
        return False
    if id(value) not in known:
        known[id(value)] = False  # in case the dict contains itself
        known[id(value)] = any(
            isinstance(one, Tensor) and isinstance(name, str) for name, one in value.items()
        ) or any(_holds_weights(value.get(name), known, depth - 1) for name in _AVERAGED + _PLAIN)
    return known[id(value)]


def _tensors(node: Mapping[Any, Any], facts: list[str], size: int) -> dict[str, Tensor]:
    tensors = {name: one for name, one in node.items() if isinstance(one, Tensor) and isinstance(name, str)}
    if not tensors:
        raise RefusedFileError(f"holds no tensors by name; expected a state_dict{_others(node)}")
    if left := [printable(str(name), 30) for name in node if name not in tensors]:
        more = ", …" if len(left) > 5 else ""
        entries = counted(len(left), "entry is not a tensor and is", "entries are not tensors and are")
        facts.append(f"{entries} left out: {', '.join(left[:5])}{more}")
    # torch.optim.swa_utils.AveragedModel counts its updates beside the model.
    if tensors.pop("n_averaged", None) is not None:
        facts.append("'n_averaged', the counter of an averaged model, is left out")
    for name, one in tensors.items():
        if one.layout is not torch.strided or one.is_quantized or one.device.type != "cpu":
            raise RefusedFileError(
                f"has a tensor {printable(name)} that is sparse, quantized or without values; "
                "expected plain, dense tensors: convert it first"
            )
    claimed = sum(one.numel() * one.element_size() for one in tensors.values())
    if claimed > _REPEATED * size:
        raise RefusedFileError(f"is damaged or malicious: {claimed} bytes of tensors in a file of {size}")
    return _as_float32(tensors, facts)


def _as_float32(tensors: dict[str, Tensor], facts: list[str]) -> dict[str, Tensor]:
    others = [one.dtype for one in tensors.values() if one.is_floating_point() and one.dtype != torch.float32]
    for dtype in dict.fromkeys(others):
        name = str(dtype).removeprefix("torch.")
        facts.append(
            f"{counted(others.count(dtype), 'tensor is', 'tensors are')} converted from {name} to float32"
        )
    try:
        return {
            name: (one.float() if one.is_floating_point() else one).detach().contiguous()
            for name, one in tensors.items()
        }
    except RuntimeError as error:  # PyTorch has dtypes that it cannot convert
        raise RefusedFileError(f"has tensors that cannot be converted to float32: {error}") from None
