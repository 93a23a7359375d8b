"""Match tensors from other projects to a model by name and shape, and report mismatches."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

import torch
from torch import Tensor

from rankless.errors import UserError, counted, listed, printable

# Prefixes that DataParallel, DistributedDataParallel and torch.compile add to every name, and attributes in
# which trainers such as Lightning's store the model.
WRAPPERS = ("module.", "_orig_mod.")
ATTRIBUTES = ("model.", "net.", "network.", "ema_model.", "online_model.", "student.")
_WITHIN = re.compile(r"(?<=\.)(?:module|_orig_mod)\.")
COUNTER = "num_batches_tracked"
_SHOWN = 20


@dataclass(frozen=True)
class Misfits:
    """Differences between the tensors in a file and in a model.

    Attributes:
        missing: names that are only in the model.
        unexpected: names that are only in the file.
        misshapen: names in both whose shapes differ, or whose values are floating-point only in the model.
        lines: descriptions of the differences by kind, one line each with the name and shapes.
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
            f"{len(self.misshapen)} with a different shape"
        )

    def table(self) -> list[str]:
        """Return one line per difference, at most 20 of each kind."""
        lines = []
        for kind, all_of_kind in self.lines.items():
            lines += all_of_kind[:_SHOWN]
            if len(all_of_kind) > _SHOWN:
                lines.append(f"  … and {len(all_of_kind) - _SHOWN} more {kind}")
        return lines


class Fit(NamedTuple):
    """Tensors matched to a model.

    ``state`` contains a tensor for each name in the model: the matching tensor, or the model's own if none
    matches.
    """

    state: dict[str, Tensor]
    misfits: Misfits
    notes: list[str]


def compare(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> Misfits:
    """Compare the names and shapes of a model's tensors (``ours``) with those in a file (``theirs``)."""
    missing = tuple(name for name in ours if name not in theirs)
    unexpected = tuple(name for name in theirs if name not in ours)
    misshapen = tuple(name for name in ours if name in theirs and not _compatible(ours[name], theirs[name]))
    lines = {
        "missing": [f"  missing     {_shown(name, ours)}" for name in missing],
        "unexpected": [f"  unexpected  {_shown(name, theirs)}" for name in unexpected],
        "shape": [_both(name, theirs[name], ours[name]) for name in misshapen],
    }
    return Misfits(missing, unexpected, misshapen, lines)


class MisfitError(UserError):
    """The weights do not fit the model: ``what`` is wrong, an ``advice``, and lines about the tensors.

    If the advice is ``general``, the caller may know a better one (:meth:`advised`).
    """

    def __init__(self, what: str, advice: str, table: Sequence[str] = (), general: bool = True) -> None:
        super().__init__("\n".join([f"{what}; {advice}", *table]))
        self.what, self.table, self.general = what, table, general

    def advised(self, advice: str) -> MisfitError:
        """Return this error with another advice, if this one is general and the other one is not empty."""
        return MisfitError(self.what, advice, self.table, general=False) if advice and self.general else self


def mismatch(source: str, misfits: Misfits, hint: str = "", general: bool = False) -> MisfitError:
    """Return an error that lists the tensors that do not fit the model."""
    general |= not hint
    if not hint and (misfits.missing or misfits.unexpected):
        hint = "check that the weights belong to this model, and that no prefix was added to their names"
    hint = hint or "check the number of classes and model.width"
    what = f"{source}: the weights do not fit the model ({misfits.counts})"
    return MisfitError(what, hint, misfits.table(), general)


def align(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Remove a prefix that wrappers added to all names or to those of a part, if more names match without.

    A model may itself have a submodule called ``module``, so the prefix whose removal gives the most matches
    is chosen. The second result is a list with a note about what was removed, if any.
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
    notes = [f"the prefix '{best}' was removed from all tensor names"] if best else []
    aligned = {name.removeprefix(best): tensor for name, tensor in theirs.items()}
    inner = {_WITHIN.sub("", name): tensor for name, tensor in aligned.items()}
    if len(inner) == len(aligned) and _score(ours, inner) > _score(ours, aligned):
        notes.append("the names of wrapped parts, 'module.' and '_orig_mod.', were removed from tensor names")
        return inner, notes
    return aligned, notes


def fit(
    model_state: Mapping[str, Tensor],
    theirs: Mapping[str, Tensor],
    partial: bool = False,
    head_names: Sequence[str] = (),
    source: str = "the checkpoint",
) -> Fit:
    """Match the tensors in a file to the tensors of a model.

    Batch counters (``num_batches_tracked``) that the file lacks, for example because it was written before
    PyTorch 0.4.1, are set to zero. An error is raised if no tensor matches, or if some do not match and
    ``partial`` is false. ``head_names`` are names or prefixes of the tensors whose shape depends on the
    number of classes; the hint in the error uses them.
    """
    renamed, notes = align(model_state, theirs)
    counters = {
        name: torch.zeros_like(tensor)
        for name, tensor in model_state.items()
        if name.endswith(COUNTER) and name not in renamed and name.replace(COUNTER, "running_mean") in renamed
    }
    if counters:
        were = counted(len(counters), "missing batch counter was", "missing batch counters were")
        notes.append(f"{were} set to zero (num_batches_tracked)")
        renamed |= counters
    misfits = compare(model_state, renamed)
    left = {*misfits.missing, *misfits.misshapen}
    taken = [name for name in model_state if name not in left]
    floating = [name for name in taken if model_state[name].is_floating_point()]
    if misfits and (not partial or not floating):
        hint, general = _hint(misfits, head_names, partial) if floating else _NOTHING, not floating
        if not partial and misfits.unexpected and agrees_in_order(model_state, theirs, head_names):
            hint = (
                "the names differ, but all shapes match in order; add --by-order and evaluate the result, "
                "because matching shapes do not prove that the networks are the same"
            )
            general = True  # names that match would be better evidence
        elif partial and 2 * len(same := leading(model_state, theirs)) > len(_without_counters(theirs)):
            hint = (
                f"no tensor matches by name, but the first {counted(len(same), 'tensor')} would match by "
                "order; add --by-order --partial to load only these"
            )
            general = False
        raise mismatch(source, misfits, hint, general)
    state = {name: tensor.detach().clone() for name, tensor in model_state.items()}
    state |= {name: renamed[name].to(model_state[name].dtype) for name in taken}
    notes += _partly(misfits, len(taken), len(model_state)) + _infinite(state)
    return Fit(state, misfits, notes)


def by_order(
    ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], source: str, partial: bool = False
) -> dict[str, Tensor]:
    """Match tensors in order, for a network whose tensors have different names.

    Equal shapes do not prove that the networks are equal. For example, concatenating feature maps in a
    different order does not change the shapes. Batch counters are ignored if only the model or the file has
    them. With ``partial``, tensors are matched only up to the first one with a different shape, and the rest
    keep their names.
    """
    names, others = list(ours), list(theirs)
    if len(names) != len(others):
        names, others = _without_counters(ours), _without_counters(theirs)
    if partial:
        same = leading(ours, theirs)
        rest = [name for name in theirs if name not in same.values() and not name.endswith(COUNTER)]
        return {mine: theirs[other] for mine, other in same.items()} | {name: theirs[name] for name in rest}
    if len(names) != len(others):
        raise UserError(
            f"{source}: has {counted(len(others), 'tensor')}, but the model has {len(names):,}, so they "
            "cannot be matched by order; remove --by-order, or use another model"
        )
    return {name: theirs[other] for name, other in zip(names, others, strict=True)}


def leading(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> dict[str, str]:
    """Match names in order, up to the first pair with different shapes. Batch counters are ignored."""
    both = zip(_without_counters(ours), _without_counters(theirs), strict=False)
    return dict(takewhile(lambda pair: _compatible(ours[pair[0]], theirs[pair[1]]), both))


def agrees_in_order(
    ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], head_names: Sequence[str]
) -> bool:
    """Check whether all shapes match in order, except those in the head. Batch counters are ignored."""
    names, others = _without_counters(ours), _without_counters(theirs)
    head = tuple(head_names)
    return len(names) == len(others) and all(
        ours[name].shape == theirs[other].shape or name.startswith(head)
        for name, other in zip(names, others, strict=True)
    )


def _without_counters(state: Mapping[str, Tensor]) -> list[str]:
    return [name for name in state if not name.endswith(COUNTER)]


def _score(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> tuple[int, int]:
    """Count the common names, and how many of them have compatible shapes."""
    both = [name for name in theirs if name in ours]
    return len(both), sum(_compatible(ours[name], theirs[name]) for name in both)


def _compatible(ours: Tensor, theirs: Tensor) -> bool:
    if ours.shape != theirs.shape:
        return False
    # Averaging turns counters into fractions, but integers in place of floats are packed or quantized
    # weights.
    return theirs.is_floating_point() or not (ours.is_floating_point() or theirs.is_complex())


_NOTHING = "no tensor matches; check that the weights belong to this model"


def _hint(misfits: Misfits, head_names: Sequence[str], partial: bool) -> str:
    head = tuple(head_names)
    rest = [name for name in misfits.misshapen + misfits.missing if not name.startswith(head)]
    if head and not (partial or rest or misfits.unexpected):
        return "only the head differs; pass its number of classes, or add --partial to load all other tensors"
    return ""


def _partly(misfits: Misfits, taken: int, whole: int) -> list[str]:
    if not misfits:
        return []
    return [
        f"{taken} of the model's {whole} tensors are loaded ({misfits.counts}); the others keep their "
        "initial values:",
        *misfits.table(),
    ]


def _infinite(state: Mapping[str, Tensor]) -> list[str]:
    wrong = [name for name, one in state.items() if one.is_floating_point() and not one.isfinite().all()]
    if not wrong:
        return []
    return [f"warning: the file contains NaN or infinite values in {listed(wrong)}"]


def _shown(name: str, state: Mapping[str, Tensor]) -> str:
    return f"{printable(name)} {shape_of(state[name])}"


def _both(name: str, theirs: Tensor, ours: Tensor) -> str:
    kinds = ("", "")
    if theirs.is_floating_point() != ours.is_floating_point():
        kinds = (f" ({str(theirs.dtype)[6:]})", f" ({str(ours.dtype)[6:]})")
    shapes = f"{shape_of(theirs)}{kinds[0]} in the file, {shape_of(ours)}{kinds[1]} in the model"
    return f"  shape       {printable(name)}: {shapes}"


def shape_of(tensor: Tensor) -> str:
    """Format a tensor's shape as ``64×3×3×3``, or ``scalar``."""
    return "×".join(str(side) for side in tensor.shape) or "scalar"
