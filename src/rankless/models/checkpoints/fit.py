"""How tensors from elsewhere fit a model: which names and shapes agree, and what to say where they do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rankless.errors import UserError, counted, printable

# What DataParallel, DistributedDataParallel and torch.compile put before every name, and the attributes under
# which trainers such as Lightning's keep the model.
WRAPPERS = ("module.", "_orig_mod.")
ATTRIBUTES = ("model.", "net.", "network.", "ema_model.", "online_model.", "student.")
_COUNTER = "num_batches_tracked"
_SHOWN = 20


@dataclass(frozen=True)
class Misfits:
    """What keeps tensors from going into a model.

    Attributes:
        missing: names of the model that were not found.
        unexpected: names found that the model does not have.
        misshapen: names of both whose shapes differ, or whose values found are of no floating point.
        lines: the same for a reader: name, shapes.
    """

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    misshapen: tuple[str, ...]
    lines: dict[str, list[str]]

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.misshapen)

    @property
    def counts(self) -> str:
        """How many of each kind."""
        return (
            f"{len(self.missing)} missing, {len(self.unexpected)} unexpected, "
            f"{len(self.misshapen)} of another shape"
        )

    def table(self) -> list[str]:
        """A line for each, the first 20 of a kind."""
        lines = []
        for kind, all_of_kind in self.lines.items():
            lines += all_of_kind[:_SHOWN]
            if len(all_of_kind) > _SHOWN:
                lines.append(f"  … and {len(all_of_kind) - _SHOWN} more {kind}")
        return lines


@dataclass(frozen=True)
class Fit:
    """Tensors in their places.

    Attributes:
        state: one tensor for every name of the model; the model's own where nothing fits.
        missing, unexpected, misshapen: see :class:`Misfits`.
        notes: what was done and what was not, a line each.
    """

    state: dict[str, Tensor]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    misshapen: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)


def compare(own: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> Misfits:
    """What differs in names and shapes between a model's state and the one found."""
    missing = tuple(name for name in own if name not in found)
    unexpected = tuple(name for name in found if name not in own)
    misshapen = tuple(name for name in own if name in found and not _alike(own[name], found[name]))
    lines = {
        "missing": [f"  missing     {_shown(name, own)}" for name in missing],
        "unexpected": [f"  unexpected  {_shown(name, found)}" for name in unexpected],
        "shape": [_both(name, found[name], own[name]) for name in misshapen],
    }
    return Misfits(missing, unexpected, misshapen, lines)


def mismatch(source: str, misfits: Misfits, hint: str = "") -> UserError:
    """The error that says what does not fit.

    Args:
        source: where the tensors came from.
        misfits: what differs.
        hint: what may be the reason; guessed if not given.
    """
    if not hint and (misfits.missing or misfits.unexpected):
        hint = "is it the weights of another model, or wrapped under another prefix?"
    hint = hint or "is it of another number of classes, or another model.width?"
    head = f"{source}: the weights do not fit the model ({misfits.counts}); {hint}"
    return UserError("\n".join([head, *misfits.table()]))


def align(own: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Take off the prefixes that wrappers put before every name, as far as that makes the names fit.

    Only what stands before all names is taken off, and only from the beginning. Which of the steps is right
    (a model may have a part called ``module``) is what fits the model's own names best.

    Returns:
        The tensors under their new names, and what was done.
    """
    prefix, rest = "", dict(found)
    best, best_score = prefix, _score(own, rest)
    while True:
        step = next(
            (one for one in WRAPPERS + ATTRIBUTES if all(name.startswith(one) for name in rest)), None
        )
        if step is None or not rest:
            break
        prefix += step
        rest = {name.removeprefix(step): tensor for name, tensor in rest.items()}
        if (score := _score(own, rest)) > best_score:
            best, best_score = prefix, score
    if not best:
        return dict(found), []
    note = f"the prefix '{best}' before every name is taken off"
    return {name.removeprefix(best): tensor for name, tensor in found.items()}, [note]


def fit(
    model_state: Mapping[str, Tensor],
    found: Mapping[str, Tensor],
    partial: bool = False,
    head_names: Sequence[str] = (),
    source: str = "the checkpoint",
) -> Fit:
    """Put tensors from elsewhere in the places of a model's.

    A counter of batches (``num_batches_tracked``) that is missing, as before PyTorch 0.4.1, is zero.

    Args:
        model_state: the model's own.
        found: what the file holds.
        partial: take what fits; else everything must.
        head_names: names, or beginnings of names, of the tensors whose shape depends on the number of
            classes: for the hint.
        source: where the tensors came from, for the message.

    Raises:
        UserError: something does not fit, with a table of it; with ``partial``: nothing fits at all.
    """
    renamed, notes = align(model_state, found)
    counters = {
        name: torch.zeros_like(tensor)
        for name, tensor in model_state.items()
        if name.endswith(_COUNTER) and name not in renamed
    }
    if counters and any(name in renamed for name in model_state):
        notes.append(f"{len(counters)} counters num_batches_tracked are not in the file and begin at zero")
        renamed |= counters
    misfits = compare(model_state, renamed)
    left = {*misfits.missing, *misfits.misshapen}
    taken = [name for name in model_state if name not in left]
    weighty = [name for name in taken if model_state[name].is_floating_point()]
    if misfits and (not partial or not weighty):
        hint = _hint(misfits, head_names, partial, nothing=not weighty)
        if not partial and misfits.unexpected and agrees_in_order(model_state, found, head_names):
            hint = (
                "the names are others, but all shapes agree one after another: --by-order takes them so; "
                "evaluate the result, for equal shapes do not prove equal networks"
            )
        raise mismatch(source, misfits, hint)
    state = {name: tensor.detach().clone() for name, tensor in model_state.items()}
    state |= {name: renamed[name].to(model_state[name].dtype) for name in taken}
    notes += _partly(misfits, len(taken), len(model_state)) + _infinite(state)
    return Fit(state, misfits.missing, misfits.unexpected, misfits.misshapen, notes)


def by_order(own: Mapping[str, Tensor], found: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """The tensors found under the model's names, one after another: for the same network under other names.

    Whether it is the same network the shapes cannot prove: two that join their maps the other way round have
    equal shapes. Counters of batches are left out.

    Raises:
        UserError: unequal numbers of tensors.
    """
    names, others = ([name for name in one if not name.endswith(_COUNTER)] for one in (own, found))
    if len(names) != len(others):
        raise UserError(
            f"{source}: holds {counted(len(others), 'tensor')}, the model {len(names)}: the order says "
            "nothing; leave --by-order out, or give another model"
        )
    return {name: found[other] for name, other in zip(names, others, strict=True)}


def agrees_in_order(
    own: Mapping[str, Tensor], found: Mapping[str, Tensor], head_names: Sequence[str]
) -> bool:
    """Whether all shapes agree one after another, but for those that depend on the classes."""
    names, others = ([name for name in one if not name.endswith(_COUNTER)] for one in (own, found))
    head = tuple(head_names)
    return len(names) == len(others) and all(
        own[name].shape == found[other].shape or name.startswith(head)
        for name, other in zip(names, others, strict=True)
    )


def _score(own: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> tuple[int, int]:
    """How many names agree, and of these how many shapes."""
    both = [name for name in found if name in own]
    return len(both), sum(_alike(own[name], found[name]) for name in both)


def _alike(own: Tensor, found: Tensor) -> bool:
    if own.shape != found.shape:
        return False
    # Averaging turns counters into fractions; the other way round they are packed or quantized weights.
    return found.is_floating_point() or not (own.is_floating_point() or found.is_complex())


def _hint(misfits: Misfits, head_names: Sequence[str], partial: bool, nothing: bool) -> str:
    if nothing:
        return "no tensor fits: is it the weights of another model?"
    head = tuple(head_names)
    rest = [name for name in misfits.misshapen + misfits.missing if not name.startswith(head)]
    if head and not (partial or rest or misfits.unexpected):
        return "only the head differs: give its number of classes, or leave the head out with --partial"
    return ""


def _partly(misfits: Misfits, taken: int, whole: int) -> list[str]:
    if not misfits:
        return []
    done = f"{taken} of the model's {whole} tensors are taken over ({misfits.counts})"
    return [
        f"{done}; what is missing or of another shape stays as the model is initialized:",
        *misfits.table(),
    ]


def _infinite(state: Mapping[str, Tensor]) -> list[str]:
    wrong = [name for name, one in state.items() if one.is_floating_point() and not one.isfinite().all()]
    if not wrong:
        return []
    hold = counted(len(wrong), "tensor holds", "tensors hold")
    return [f"warning: {hold} NaN or infinite values, such as {printable(wrong[0])}"]


def _shown(name: str, state: Mapping[str, Tensor]) -> str:
    return f"{printable(name)} {shape_of(state[name])}"


def _both(name: str, found: Tensor, own: Tensor) -> str:
    kinds = ("", "")
    if found.is_floating_point() != own.is_floating_point():
        kinds = (f" of {str(found.dtype)[6:]}", f" of {str(own.dtype)[6:]}")
    shapes = f"{shape_of(found)}{kinds[0]} in the file, {shape_of(own)}{kinds[1]} in the model"
    return f"  shape       {printable(name)}: {shapes}"


def shape_of(tensor: Tensor) -> str:
    """``64×3×3×3``, or ``scalar``."""
    return "×".join(str(side) for side in tensor.shape) or "scalar"
