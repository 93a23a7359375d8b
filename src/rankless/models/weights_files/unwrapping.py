"""Find the weights in the contents of a checkpoint.

Trainers save the weights under various names, together with the optimizer, the epoch and averaged weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankless.errors import counted, printable
from rankless.models.weights_files.pickle_inspection import RefusedFileError

# Averaged weights are preferred, because they are usually the ones that were evaluated.
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
_NEVER = ("optim", "sched", "scaler", "amp", "loss", "criterion")  # prefixes of entries without a model
_TRAINING = {
    "the optimizer's state": ("optimizer", "optimizer_state_dict", "optimizer_states", "optim", "opt"),
    "the epoch": ("epoch", "epochs", "last_epoch"),
}
_DEEPEST = 5
# Tensors may share memory, so together they may be larger than the file, up to this factor.
_REPEATED = 8


@dataclass(frozen=True)
class Checkpoint:
    """The weights in a checkpoint.

    Attributes:
        state: tensors by their names in the file, on the CPU; floating-point tensors are float32.
        facts: messages about the file.
        seen: number of images the weights were trained on; 0 if unknown.
    """

    state: dict[str, Tensor]
    facts: list[str]
    seen: int = 0


def unwrap(content: Any, key: str | None, size: int) -> Checkpoint:
    """Find the weights in the contents of a checkpoint.

    Args:
        content: nested dicts that contain tensors.
        key: name of the entry with the weights, dotted if nested. If it is None, the entry is found
            automatically, and averaged weights are preferred.
        size: size of the file in bytes, which limits the total size of the tensors.
    """
    if isinstance(content, Tensor) or not isinstance(content, Mapping):
        raise RefusedFileError(
            f"contains a value of type {type(content).__name__}; expected a state_dict (tensors by name)"
        )
    facts = _makers(content)
    node, trail = content, list[str]()
    if key is not None:
        node = _descend(content, key)
        trail = [key]
        if not _holds_weights(node):
            raise RefusedFileError(f"contains no tensors under --key {printable(key)}{_others(content)}")
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
        return [f"a checkpoint from PyTorch Lightning {printable(version)}"]
    if "amp" in content and "optimizer" in content:
        return ["a checkpoint from training with Apex or automatic mixed precision"]
    return []


def _of_training(content: Mapping[Any, Any]) -> list[str]:
    """Describe the training state in a checkpoint, which is not imported."""
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
    past = f" ({counted(epoch, 'is', 'are')} done)" if epoch and not isinstance(epoch, bool) else ""
    return [
        f"{' and '.join(left)} {'is' if len(left) == 1 else 'are'} not imported, so training from these "
        "weights starts at epoch 0 with a new optimizer; to continue the training, set epochs to the number "
        f"of remaining epochs{past}, add schedule.warmup=0, and set optim.lr to the last learning rate"
    ]


def _descend(content: Mapping[Any, Any], key: str) -> Any:
    """Return the entry with the given key, or None. A dot may separate levels or be part of a name."""
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
    """Return the name of the entry that contains the weights, or None if ``node`` itself does."""
    dicts = [name for name in _with_weights(node) if isinstance(name, str)]
    chosen = next((name for name in _AVERAGED + _PLAIN if name in dicts), None)
    if chosen is not None:
        before = f"{trail}." if trail else ""
        others = [name for name in _AVERAGED + _PLAIN if name in dicts and name != chosen]
        if others:
            names = " and ".join(f"'{before}{name}'" for name in others)
            facts.append(f"the file also contains weights under {names}; use --key to select them")
        return chosen
    if any(isinstance(value, Tensor) for value in node.values()):
        return None
    likely = [name for name in dicts if not name.lower().startswith(_NEVER)]
    if len(likely) == 1:
        return likely[0]
    if likely:
        raise RefusedFileError(f"contains several sets of tensors; choose one with --key{_others(node)}")
    return None


def _with_weights(node: Mapping[Any, Any]) -> list[Any]:
    known: dict[int, bool] = {}
    return [name for name, value in node.items() if _holds_weights(value, known)]


def _holds_weights(value: Any, known: dict[int, bool] | None = None, depth: int = _DEEPEST) -> bool:
    """Check whether a dict contains tensors, directly or under an entry for weights. ``known`` is a cache."""
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
        raise RefusedFileError(f"contains no named tensors; expected a state_dict{_others(node)}")
    if left := [printable(str(name), 30) for name in node if name not in tensors]:
        more = ", …" if len(left) > 5 else ""
        entries = counted(len(left), "entry that is not a tensor is", "entries that are not tensors are")
        facts.append(f"{entries} skipped: {', '.join(left[:5])}{more}")
    # torch.optim.swa_utils.AveragedModel stores a counter of its updates with the model.
    if tensors.pop("n_averaged", None) is not None:
        facts.append("'n_averaged', the counter of an averaged model, is skipped")
    for name, one in tensors.items():
        if one.layout is not torch.strided or one.is_quantized or one.device.type != "cpu":
            raise RefusedFileError(
                f"contains the tensor {printable(name)}, which is sparse, quantized or without values; "
                "convert it to an ordinary dense tensor"
            )
    claimed = sum(one.numel() * one.element_size() for one in tensors.values())
    if claimed > _REPEATED * size:
        raise RefusedFileError(
            f"is damaged or malicious: its tensors have {claimed:,} bytes, but the file has only {size:,}"
        )
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
    except RuntimeError as error:  # PyTorch cannot convert every dtype
        raise RefusedFileError(f"contains tensors that cannot be converted to float32: {error}") from None
