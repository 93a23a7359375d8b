"""Buffers and frozen parameters that forward passes change, independent of the number of ranks.

Examples are the vectors of spectral norm, a counter of steps, the running statistics of an instance norm, and
a teacher that follows the trained weights. Every micro-batch of a step starts from their values at the
beginning of the step. After the step, they contain the mean over all micro-batches, as the running statistics
of batch norms do. The mean of equal float32 values is exactly this value, so a state that does not depend on
the images changes as if there were only one micro-batch.

Changes are found by the version of each tensor, or, in a process's first micro-batch, by its bits.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rankless.engine.divergence import several
from rankless.engine.soundness import checksums
from rankless.errors import UserError
from rankless.world.exchange import Exchange
from rankless.world.process_group import World
from rankless.world.tree import Fold, Node

_Sums = tuple[int, dict[str, Tensor]]
"""A number of micro-batches, and the sums of the values that differ from those of the step's beginning."""


@dataclass(eq=False)
class _Slot:
    """A place in the model for a tensor that is not trained.

    Attributes:
        is_saved: whether checkpoints contain it.
        tensor, version: the tensor when it was last looked at, and its version.
        before: a copy from the beginning of the step, or None if there is no copy.
        changes: whether forward passes change it, which all ranks know.
    """

    name: str
    module: nn.Module
    key: str
    is_buffer: bool
    is_saved: bool
    tensor: Tensor | None = None
    version: int = -1
    before: Tensor | None = None
    changes: bool = False

    def __post_init__(self) -> None:
        self.held: Any = self.module._buffers if self.is_buffer else self.module._parameters

    @property
    def value(self) -> Tensor | None:
        value: Tensor | None = self.held[self.key]
        return value

    def look(self) -> None:
        self.tensor = self.value
        self.version = -1 if self.tensor is None else self.tensor._version

    @property
    def is_touched(self) -> bool:
        """Whether the tensor has changed since it was last looked at."""
        return self.value is not self.tensor or (
            self.tensor is not None and self.tensor._version != self.version
        )

    def copy(self) -> None:
        if self.tensor is None:
            return
        # The copy of a frozen network may be large, and is only needed in the first step.
        is_kept = self.is_buffer or self.changes
        self.before = self.tensor.detach().to(None if is_kept else "cpu", copy=True)

    @torch.no_grad()
    def restore(self) -> None:
        if self.value is not self.tensor:
            setattr(self.module, self.key, self.tensor)
        if self.tensor is not None and self.before is not None:
            self.tensor.copy_(self.before)
            self.version = self.tensor._version

    def wide(self, value: Tensor) -> Tensor:
        """Return a value as a vector of float64 numbers. Integers are differences to the step's beginning."""
        like = self._like
        value = value.detach().to(like.device)
        if not (like.is_floating_point() or like.is_complex()):
            value = value.long() - like.long()
        return (torch.view_as_real(value) if value.is_complex() else value).double().flatten()

    @torch.no_grad()
    def set(self, mean: Tensor) -> bool:
        """Set the value to the mean of :meth:`wide`. Return False if a tensor of integers cannot have it."""
        like = self._like
        if like.is_complex():
            mean = torch.view_as_complex(mean.view(-1, 2))
        elif not like.is_floating_point():
            if bool((mean != mean.round()).any()):
                return False
            mean = mean.long() + like.long().flatten()
        if self.tensor is not None:
            self.tensor.copy_(mean.view(like.shape))
        return True

    @property
    def _like(self) -> Tensor:
        """The value from the beginning of the step, on the tensor's device."""
        if self.tensor is None or self.before is None:
            raise RuntimeError(f"there is no copy of '{self.name}'")
        return self.before.to(self.tensor.device)

    def problem(self) -> str:
        """Return why a change by the forward pass cannot be handled, or "" if it can."""
        value, before = self.value, self.before
        what = (
            f"the forward pass changes the {'buffer' if self.is_buffer else 'frozen parameter'} '{self.name}'"
        )
        if not self.is_saved:
            return ""
        if (
            value is None
            or self.tensor is None
            or (value.shape, value.dtype) != (self.tensor.shape, self.tensor.dtype)
        ):
            return (
                f"{what} from {_described(self.tensor)} to {_described(value)}; expected the same shape and "
                "type, so that the mean over the micro-batches can be kept; create it with its final shape, "
                "or register it with persistent=False if every forward pass computes it again"
            )
        if before is None:
            return (
                f"{what} for the first time after the first step of this start, so its value from the "
                "beginning of the step is not known; change it in the first step, too, or make it a buffer"
            )
        return ""


class ForwardState:
    """The untrained tensors of a model that forward passes may change.

    Args:
        model: the model, on its device. If its parameters' ``requires_grad`` changes, create a new object.
        norms: batch norms, whose running statistics are handled in :mod:`rankless.engine.running_statistics`.
        world: the ranks.
        micro_batches: number of micro-batches per step.
    """

    def __init__(
        self, model: nn.Module, norms: Iterable[nn.Module], world: World, micro_batches: int
    ) -> None:
        self.world = world
        self.exchange = Exchange(micro_batches, world.rank, world.size, world.transport)
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.slots = {slot.name: slot for slot in _slots(model, {id(norm) for norm in norms})}
        self.found: dict[str, _Slot] = {}  # changed on this rank, which the others do not know yet
        self.sums: dict[str, int] = {}  # bit sums from before the first step
        self.is_first, self.is_seen = True, False
        self.versions: list[int] = []

    @property
    def changing(self) -> list[str]:
        """Names of the tensors that forward passes have changed on any rank."""
        return [name for name, slot in self.slots.items() if slot.changes]

    def expect(self, names: Iterable[str]) -> None:
        """Expect changes of these tensors, which all ranks know. Unknown names are ignored."""
        for name in names:
            if name in self.slots:
                self.slots[name].changes = True

    def begin(self) -> None:
        """Remember the values. Call this before the step's first forward pass."""
        for slot in self.slots.values() if self.is_first else (*self._touched(), *self._changed()):
            slot.look()
            if self.is_first or slot.changes or slot.is_buffer:
                slot.copy()
        self.versions = [p._version for p in self.trained.values()]
        if self.is_first and not self.sums:
            self.sums = self._bit_sums()
        self.fold: Fold[_Sums] = Fold(self.exchange.micro_batches, self._add)

    def begin_micro_batch(self) -> None:
        """Restore the values. Call this before the forward pass of each micro-batch."""
        self._refuse_later_changes()
        for slot in self._changed():
            slot.restore()

    def keep(self, leaf: int | None) -> list[str]:
        """Keep the values that a micro-batch's forward pass has left, and return the names of new changes.

        Call this before the backward pass. ``leaf`` is None for another rank's micro-batch.
        """
        bits: set[str] = set()
        if not self.is_seen:
            bits = {name for name, value in self._bit_sums().items() if value != self.sums.get(name)}
            self.is_seen = True
        pairs = zip(self.trained.items(), self.versions, strict=True)
        if names := [name for (name, p), version in pairs if p._version != version or name in bits]:
            raise UserError(_of_trained(names))
        of_bits = [slot for name, slot in self.slots.items() if name in bits and not slot.changes]
        self.found |= {slot.name: slot for slot in (*of_bits, *self._touched())}
        if problems := [problem for slot in self._changed() if (problem := slot.problem())]:
            raise UserError(problems)
        if leaf is not None:
            values = {s.name: s.wide(s.value) for s in self._changed() if s.is_saved and s.value is not None}
            self.fold.push(Node(0, leaf), (1, values))
        return list(self.found)

    def end(self, *, is_applied: bool, has_new: bool) -> None:
        """Set the values to their means over all micro-batches, or restore them if the step is not applied.

        ``has_new`` tells whether :meth:`keep` has returned any names on any rank in this step.
        """
        self._refuse_later_changes()
        if has_new:
            self.expect(name for names in self.world.all_gather(list(self.found)) for name in names)
            self.found = {}
        self.undo()
        averaged = [slot for slot in self._changed() if slot.is_saved]
        if is_applied and averaged:
            self._set_means(averaged)
        if self.is_first:
            self.is_first = False
            for slot in self.slots.values():
                if not slot.is_buffer and not slot.changes:
                    slot.before = None

    def undo(self) -> None:
        """Restore the values from before the step."""
        for slot in self._changed():
            slot.restore()

    def unnoticed_change(self, step: int) -> str | None:
        """Return an error message on every rank if a tensor changed without being noticed, otherwise None.

        Some changes do not increase a tensor's version (``tensor.data``, ``F.batch_norm``).
        """
        if self.is_first or not self.slots:
            return None
        saved = {name for name, slot in self.slots.items() if slot.is_saved and not slot.changes}
        mine = [name for name, value in self._bit_sums(saved).items() if value != self.sums.get(name)]
        names = sorted({name for names in self.world.all_gather(mine) for name in names})
        if not names:
            return None
        return (
            f"after step {step}, {several(names)} had other values than before the first step, but no "
            "forward pass was seen to change them; expected changes only in the forward passes of training; "
            "make them under torch.no_grad() and in place, because changes through tensor.data or "
            "F.batch_norm are only seen in the first micro-batch"
        )

    def sentence(self) -> str:
        """Return a sentence about the tensors that change."""
        means = [name for name in self.changing if self.slots[name].is_saved]
        dropped = [name for name in self.changing if not self.slots[name].is_saved]
        parts = []
        if means:
            parts.append(
                f"forward passes change {several(means)}: every micro-batch starts from the values at the "
                "beginning of the step, and the mean over the micro-batches is kept"
            )
        if dropped:
            parts.append(
                f"forward passes change {several(dropped)}, which checkpoints do not contain, so the values "
                "are restored after every micro-batch; register a buffer with persistent=True to keep its "
                "changes"
            )
        return "; ".join(parts)

    def _changed(self) -> list[_Slot]:
        return [slot for name, slot in self.slots.items() if slot.changes or name in self.found]

    def _bit_sums(self, names: Container[str] | None = None) -> dict[str, int]:
        tensors = {name: slot.value for name, slot in self.slots.items() if names is None or name in names}
        tensors |= self.trained if names is None else {}
        present = {name: value for name, value in tensors.items() if value is not None}
        return dict(zip(present, checksums(present), strict=True))

    def _touched(self) -> list[_Slot]:
        """Return the tensors that have changed since they were looked at, without those known to change."""
        # This runs twice for every micro-batch, so it has no calls.
        return [
            slot
            for slot in self.slots.values()
            if (
                slot.held[slot.key] is not slot.tensor
                or (slot.tensor is not None and slot.tensor._version != slot.version)
            )
            and not slot.changes
            and slot.name not in self.found
        ]

    def _refuse_later_changes(self) -> None:
        if late := [slot.name for slot in self._touched()]:
            raise UserError(
                f"the backward pass changes {several(late)}; expected changes only in the forward pass, "
                "because the values of a micro-batch are kept before its backward pass"
            )

    def _add(self, left: _Sums, right: _Sums) -> _Sums:
        (count, one), (more, other) = left, right
        sums = {name: self._sum(name, left).add_(self._sum(name, right)) for name in {**one, **other}}
        return count + more, sums

    def _sum(self, name: str, sums: _Sums) -> Tensor:
        """Return the sum of a tensor's values over the micro-batches, even if none of them changed it."""
        count, values = sums
        slot = self.slots[name]
        return values[name] if name in values else slot.wide(slot._like) * count

    def _set_means(self, slots: Sequence[_Slot]) -> None:
        sums = [torch.cat([self._sum(slot.name, value) for slot in slots]) for _, value in self.fold.stack]
        pending = self.exchange.start(sums, torch.empty_like(sums[0]))
        pending.combine()
        pending.finish()
        lengths = [slot.wide(slot._like).numel() for slot in slots]
        means = (pending.result / self.exchange.micro_batches).split(lengths)
        wrong = [slot.name for slot, mean in zip(slots, means, strict=True) if not slot.set(mean)]
        if wrong:
            raise UserError(
                f"the micro-batches of a step leave different integers in {several(wrong)}, whose mean is "
                "not an integer; expected the same change in every forward pass, such as + 1; use a buffer "
                "of floating-point numbers"
            )


class EvaluationState:
    """The buffers of a model from before an evaluation: every pass starts with them, and they stay.

    Each rank evaluates other images, so what a pass changes would depend on the number of ranks.
    """

    def __init__(self, model: nn.Module) -> None:
        self.slots = list(_slots(model, ()))
        self.trained = [(name, p, p._version) for name, p in model.named_parameters() if p.requires_grad]
        for slot in self.slots:
            slot.look()
            if slot.is_buffer:
                slot.copy()

    def restore(self) -> None:
        """Restore the buffers after a pass. Raise an error if the pass has changed a parameter."""
        names = [name for name, p, version in self.trained if p._version != version]
        for slot in self.slots:
            if slot.is_touched:
                if slot.is_buffer:
                    slot.restore()
                else:
                    names.append(slot.name)
        if names:
            raise UserError(
                f"the forward pass of an evaluation changes the parameter {several(names)}; expected that an "
                "evaluation changes no weights; change it only if self.training is true"
            )


def _slots(model: nn.Module, apart: Container[int]) -> Iterator[_Slot]:
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        if id(module) in apart:
            continue
        buffers = [(key, value, True) for key, value in module._buffers.items()]
        frozen = [(key, p, False) for key, p in module._parameters.items() if p is not None]
        for key, value, is_buffer in (*buffers, *frozen):
            is_known = value is not None and (
                id(value) in seen or value.requires_grad or value.is_inference()
            )
            if not is_known:
                seen.add(id(value))
                name = f"{prefix}.{key}" if prefix else key
                is_saved = not is_buffer or key not in module._non_persistent_buffers_set
                yield _Slot(name, module, key, is_buffer, is_saved)


def _described(tensor: Tensor | None) -> str:
    return "None" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _of_trained(names: Sequence[str]) -> str:
    return (
        f"the forward pass changes the trained parameter {several(names)}; expected that only the optimizer "
        "changes it, because micro-batches would otherwise compute with different weights; compute the "
        "changed value without storing it (for nn.Embedding, remove max_norm)"
    )
