"""Match other projects' tensors to a model by names and shapes, and report mismatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import torch
from torch import Tensor

from rankless.errors import UserError, counted, printable

# Prefixes of every name: added by DataParallel, DistributedDataParallel and torch.compile, or the attributes
# in which trainers such as Lightning's store the model.
WRAPPERS = ("module.", "_orig_mod.")
ATTRIBUTES = ("model.", "net.", "network.", "ema_model.", "online_model.", "student.")
COUNTER = "num_batches_tracked"
_SHOWN = 20


@dataclass(frozen=True)
class Misfits:
    """Differences between a file's tensors and a model's.

    Attributes:
        missing: names in the model that the file does not have.
        unexpected: names in the file that the model does not have.
        misshapen: names in both with different shapes, or with floating-point values only in the model.
        lines: the same differences as text, by kind, with names and shapes.
    """

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    misshapen: tuple[str, ...]
    lines: dict[str, list[str]]

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.misshapen)

    @property
    def counts(self) -> str:
        """The number of differences of each kind, as text."""
        return (
            f"{len(self.missing)} missing, {len(self.unexpected)} unexpected, "
            f"{len(self.misshapen)} with another shape"
        )

    def table(self) -> list[str]:
        """Return a line for each difference, at most 20 of each kind."""
        lines = []
        for kind, all_of_kind in self.lines.items():
            lines += all_of_kind[:_SHOWN]
            if len(all_of_kind) > _SHOWN:
                lines.append(f"  … and {len(all_of_kind) - _SHOWN} more {kind}")
        return lines


@dataclass(frozen=True)
class Fit:
    """Tensors matched to a model.

    Attributes:
        state: one tensor for every name of the model; the model's own tensor if nothing matches.
        missing, unexpected, misshapen: see :class:`Misfits`.
        notes: messages about what was loaded and what was not.
    """

    state: dict[str, Tensor]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    misshapen: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)


def compare(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> Misfits:
    """Compare the names and shapes of the tensors in a model and in a file."""
    missing = tuple(name for name in ours if name not in theirs)
    unexpected = tuple(name for name in theirs if name not in ours)
    misshapen = tuple(name for name in ours if name in theirs and not _compatible(ours[name], theirs[name]))
    lines = {
        "missing": [f"  missing     {_shown(name, ours)}" for name in missing],
        "unexpected": [f"  unexpected  {_shown(name, theirs)}" for name in unexpected],
        "shape": [_both(name, theirs[name], ours[name]) for name in misshapen],
    }
    return Misfits(missing, unexpected, misshapen, lines)


def mismatch(source: str, misfits: Misfits, hint: str = "") -> UserError:
    """Return the error for tensors that do not fit the model."""
    if not hint and (misfits.missing or misfits.unexpected):
        hint = "do the weights belong to another model, or do their names have another prefix?"
    hint = hint or "do they have another number of classes, or another model.width?"
    head = f"{source}: the weights do not fit the model ({misfits.counts}); {hint}"
    return UserError("\n".join([head, *misfits.table()]))


def align(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Remove prefixes that wrappers have added to every name, if the names then match.

    Only prefixes common to all names are removed. Because a model may have a submodule called ``module``, the
    removal with the best match is chosen.

    Returns:
        The tensors by their new names, and a note about what was removed.
    """
    prefix, rest = "", dict(theirs)
    best, best_score = prefix, _score(ours, rest)
    while True:
        step = next(
            (one for one in WRAPPERS + ATTRIBUTES if all(name.startswith(one) for name in rest)), None
        )
        if step is None or not rest:
            break
        prefix += step
        rest = {name.removeprefix(step): tensor for name, tensor in rest.items()}
        if (score := _score(ours, rest)) > best_score:
            best, best_score = prefix, score
    if not best:
        return dict(theirs), []
    note = f"the prefix '{best}' of every name is removed"
    return {name.removeprefix(best): tensor for name, tensor in theirs.items()}, [note]


def fit(
    model_state: Mapping[str, Tensor],
    theirs: Mapping[str, Tensor],
    partial: bool = False,
    head_names: Sequence[str] = (),
    source: str = "the checkpoint",
) -> Fit:
    """Match another project's tensors to the tensors of a model.

    Missing batch counters (``num_batches_tracked``), as in files from before PyTorch 0.4.1, are set to zero.

    Args:
        model_state: the model's tensors.
        theirs: the file's tensors, of any shape.
        partial: load only the tensors that match; otherwise, all tensors must match.
        head_names: names, or prefixes of names, of the tensors whose shape depends on the number of classes,
            for the hint in the error.
        source: the tensors' source, for messages.
    """
    renamed, notes = align(model_state, theirs)
    counters = {
        name: torch.zeros_like(tensor)
        for name, tensor in model_state.items()
        if name.endswith(COUNTER) and name not in renamed and name.replace(COUNTER, "running_mean") in renamed
    }
    if counters:
        notes.append(f"{len(counters)} counters num_batches_tracked are not in the file and start at zero")
        renamed |= counters
    misfits = compare(model_state, renamed)
    left = {*misfits.missing, *misfits.misshapen}
    taken = [name for name in model_state if name not in left]
    floating = [name for name in taken if model_state[name].is_floating_point()]
    if misfits and (not partial or not floating):
        hint = _hint(misfits, head_names, partial, nothing=not floating)
        if not partial and misfits.unexpected and agrees_in_order(model_state, theirs, head_names):
            hint = (
                "the names differ, but all shapes agree in order: match them with --by-order; "
                "evaluate the result, since equal shapes do not prove equal networks"
            )
        elif partial and 2 * len(alike := leading(model_state, theirs)) > len(_without_counters(theirs)):
            hint = (
                f"no tensor fits by its name, but the first {len(alike)} shapes do: "
                "load them with --by-order --partial"
            )
        raise mismatch(source, misfits, hint)
    state = {name: tensor.detach().clone() for name, tensor in model_state.items()}
    state |= {name: renamed[name].to(model_state[name].dtype) for name in taken}
    notes += _partly(misfits, len(taken), len(model_state)) + _infinite(state)
    return Fit(state, misfits.missing, misfits.unexpected, misfits.misshapen, notes)


def by_order(
    ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], source: str, partial: bool = False
) -> dict[str, Tensor]:
    """Match tensors by their order, for the same network with different names.

    Equal shapes do not prove that the networks are the same: concatenating maps in another order does not
    change shapes. Batch counters are left out if only one side has them.

    Args:
        ours, theirs: the tensors of the model and of the file.
        source: the tensors' source, for messages.
        partial: match tensors up to the first one with a different shape, as for a backbone; the rest keep
            their names.
    """
    names, others = list(ours), list(theirs)
    if len(names) != len(others):
        names, others = _without_counters(ours), _without_counters(theirs)
    if partial:
        alike = leading(ours, theirs)
        rest = [name for name in theirs if name not in alike.values() and not name.endswith(COUNTER)]
        return {mine: theirs[other] for mine, other in alike.items()} | {name: theirs[name] for name in rest}
    if len(names) != len(others):
        raise UserError(
            f"{source}: has {counted(len(others), 'tensor')}, but the model has {len(names)}, so they "
            "cannot be matched by order; leave --by-order out, or give another model"
        )
    return {name: theirs[other] for name, other in zip(names, others, strict=True)}


def leading(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> dict[str, str]:
    """Match names by order, without batch counters, up to the first pair with different shapes."""
    both = zip(_without_counters(ours), _without_counters(theirs), strict=False)
    return dict(takewhile(lambda pair: _compatible(ours[pair[0]], theirs[pair[1]]), both))


def agrees_in_order(
    ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], head_names: Sequence[str]
) -> bool:
    """Check whether all shapes agree in order, except shapes that depend on the classes."""
    names, others = _without_counters(ours), _without_counters(theirs)
    head = tuple(head_names)
    return len(names) == len(others) and all(
        ours[name].shape == theirs[other].shape or name.startswith(head)
        for name, other in zip(names, others, strict=True)
    )


def _without_counters(state: Mapping[str, Tensor]) -> list[str]:
    return [name for name in state if not name.endswith(COUNTER)]


def _score(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> tuple[int, int]:
    """Count the names that agree and, among these, the shapes that agree."""
    both = [name for name in theirs if name in ours]
    return len(both), sum(_compatible(ours[name], theirs[name]) for name in both)


def _compatible(ours: Tensor, theirs: Tensor) -> bool:
    if ours.shape != theirs.shape:
        return False
    # Averaging turns counters into fractions; integers instead of floats are packed or quantized weights.
    return theirs.is_floating_point() or not (ours.is_floating_point() or theirs.is_complex())


def _hint(misfits: Misfits, head_names: Sequence[str], partial: bool, nothing: bool) -> str:
    if nothing:
        return "no tensor fits: do the weights belong to another model?"
    head = tuple(head_names)
    rest = [name for name in misfits.misshapen + misfits.missing if not name.startswith(head)]
    if head and not (partial or rest or misfits.unexpected):
        return "only the head differs: give its number of classes, or leave the head out with --partial"
    return ""


def _partly(misfits: Misfits, taken: int, whole: int) -> list[str]:
    if not misfits:
        return []
    done = f"{taken} of the model's {whole} tensors are loaded ({misfits.counts})"
    return [
        f"{done}; missing and misshapen tensors keep their initial values:",
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


def _both(name: str, theirs: Tensor, ours: Tensor) -> str:
    kinds = ("", "")
    if theirs.is_floating_point() != ours.is_floating_point():
        kinds = (f" of {str(theirs.dtype)[6:]}", f" of {str(ours.dtype)[6:]}")
    shapes = f"{shape_of(theirs)}{kinds[0]} in the file, {shape_of(ours)}{kinds[1]} in the model"
    return f"  shape       {printable(name)}: {shapes}"


def shape_of(tensor: Tensor) -> str:
    """Format a tensor's shape as ``64×3×3×3``, or ``scalar``."""
    return "×".join(str(side) for side in tensor.shape) or "scalar"
