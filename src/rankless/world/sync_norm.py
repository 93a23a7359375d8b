"""Batch norm over the global batch, whatever the number of ranks and micro-batches.

A rank works its micro-batches through side by side: each has a thread and a replica of the module that
shares the weights. A thread runs until its next batch norm and waits there; when the last one has come, the
norm is computed for all of them at once with sums that are added along the fixed tree, and they go on. One
thread runs at a time. The same happens backwards, inside autograd.

``torch.nn.SyncBatchNorm`` knows neither micro-batches nor CPUs, and adds in the backend's order.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rankless.errors import UserError
from rankless.world.exchange import Exchange
from rankless.world.global_norm import GlobalNorm, widened

Result = TypeVar("Result")
_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_END = -1
"""Instead of a norm's index: the forward pass has ended."""


class SideBySide:
    """Runs one function for every own micro-batch, all of them meeting at each batch norm.

    Args:
        module: holds the model; copied once per own micro-batch, sharing parameters' and buffers' memory. Its
            norms that are in evaluation mode now are left alone: they ask nothing of the other micro-batches.
        exchange: who holds which part of the tree.

    Attributes:
        replicas: one module per own micro-batch, each with its own gradients.

    Raises:
        UserError: the module holds a batch norm that is not one of PyTorch's plain ones.
    """

    def __init__(self, module: nn.Module, exchange: Exchange) -> None:
        foreign = [
            f"{name} ({type(m).__name__})"
            for name, m in module.named_modules()
            if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training and type(m) not in _PLAIN
        ]
        if foreign:
            raise UserError(
                "batch_norm is 'sync', but the model has norms of another kind than nn.BatchNorm1d/2d/3d: "
                f"{', '.join(foreign[:5])}; use batch_norm: micro"
            )
        self.exchange = exchange
        named = [(n, m) for n, m in module.named_modules() if type(m) in _PLAIN and m.training]
        self.names = [name.removeprefix("model.") for name, _ in named]
        self.norms: list[nn.Module] = [norm for _, norm in named]
        # The norms in the order in which the first run called them, which all ranks compared.
        self.order: list[int] = []
        self.dtypes: list[torch.dtype] = []  # of the sums at each of them
        self.is_agreed = self.is_running = False
        self.replicas = [_sharing_copy(module) for _ in exchange.own]
        self.device = next(module.parameters()).device
        self.turn = threading.Condition()
        for number, replica in enumerate(self.replicas):
            meeting = [m for m in replica.modules() if type(m) in _PLAIN and m.training]
            for index, norm in enumerate(meeting):
                norm.forward = _Meeting(self, number, index, norm)

    def run(self, work: Callable[[int], Result]) -> tuple[list[Result], Tensor]:
        """``work(i)`` for the i-th own micro-batch.

        Args:
            work: the forward pass of one micro-batch; seeds torch's generators if it draws from them.

        Returns:
            The results, and a token whose gradient (zero) must flow into the backward pass beside the losses:
            it keeps the norms' exchanges in one order on all ranks.

        Raises:
            UserError: on every rank, where not every micro-batch, on every rank and in every run, calls the
                same norms in one order: some would wait for ever for the others.
        """
        count = len(self.replicas)
        self.met = [0] * count  # how many norms each replica has called
        self.calls = [0] * len(self.norms)
        self.is_running = True
        self.arrived: list[Tensor | None] = [None] * count
        self.answers: list[Tensor | None] = [None] * count
        self.running, self.token = 0, torch.zeros((), requires_grad=True)
        self.random: list[dict[str, Tensor]] = [{}] * count
        self.failure: BaseException | None = None
        results: list[Any] = [None] * count

        def body(number: int) -> None:
            try:
                self._wait_for_turn(number)
                if self.device.type == "cuda":
                    torch.cuda.set_device(self.device)  # a new thread begins on card 0
                results[number] = work(number)
                self._follow(number, _END)
            except BaseException as error:
                self.failure = self.failure or error
            with self.turn:
                self.running = count if self.failure else number + 1
                self.turn.notify_all()

        threads = [threading.Thread(target=body, args=(number,), daemon=True) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.is_running = False
        if self.failure is not None:
            raise self.failure
        self._agree(_END)
        self.is_agreed = True
        return results, self.token

    @property
    def called(self) -> list[nn.Module]:
        """The norms of the module itself that the last run called."""
        return [norm for norm, calls in zip(self.norms, self.calls, strict=True) if calls]

    def _follow(self, number: int, index: int) -> None:
        """Replica ``number`` comes to a norm, or to its end; the first replica of the first run leads."""
        at = self.met[number]
        if number == 0 and not self.is_agreed and index != _END:
            self.order.append(index)
        expected = self.order[at] if at < len(self.order) else _END
        if index != expected:
            if self.is_agreed and expected != _END:
                self._poison(at)
            self._compare(expected, index)
        self.met[number] += 1

    def _agree(self, index: int) -> None:
        """See that all ranks have come to the same norm, in the first run; to the end, in every run."""
        if self.is_agreed and index != _END:
            return
        self._compare(index, index)

    def _poison(self, at: int) -> None:
        """Let the other ranks, which add up their sums for a norm that this one does not call, know of it."""
        norm: Any = self.norms[self.order[at]]
        sums = torch.full((norm.num_features + 1,), torch.nan, dtype=self.dtypes[at], device=self.device)
        self.exchange.total([sums.clone() for _ in self.replicas])

    def check(self, index: int, number: Tensor) -> None:
        """Check that all ranks are at the norm ``index``: others make the number of values, a scalar, NaN.

        Raises:
            UserError: on every rank; not all are.
        """
        if self.exchange.size > 1 and number.isnan():
            self._compare(index, index)

    def _compare(self, expected: int, index: int) -> None:
        """Raise on every rank, with the same message, unless all are where they are to be.

        Args:
            expected: what was to come.
            index: what this rank has come to.
        """
        reached = self.exchange.gather(index)
        known = self.is_agreed or len(set(reached)) == 1  # what was to come, by every rank
        if others := list(dict.fromkeys([expected, *reached] if known else reached))[1:]:
            raise UserError(self._parted(expected if known else reached[0], others[0]))

    def _parted(self, one: int, other: int) -> str:
        here, there = (
            "has called its last norm" if index == _END else f"calls '{self.names[index]}'"
            for index in (one, other)
        )
        return (
            "batch_norm is 'sync', but not every micro-batch calls the same batch norms in the same order: "
            f"where one {here}, another {there}; call all of them in every forward pass, or use "
            "batch_norm: micro"
        )

    def meet(self, number: int, norm: Any, index: int, values: Tensor) -> Tensor:
        """Normalize ``values`` (B, C, ...) of replica ``number`` together with those of the others."""
        if not self.is_running or not torch.is_grad_enabled():
            when = "without gradients" if self.is_running else "again in the backward pass"
            raise UserError(
                f"batch_norm is 'sync', but '{self.names[index]}' is called {when}, as activation "
                "checkpointing does: keep batch norms out of what is checkpointed, or use batch_norm: micro"
            )
        self._follow(number, index)
        if number == 0 and not self.is_agreed:
            self.dtypes.append(widened(values[:0]).dtype)
        self.arrived[number] = values
        norms = [self._norm(i, index) for i in range(len(self.replicas))]
        self.random[number] = self._random_state(values.device)
        if number == len(self.replicas) - 1:
            self._agree(index)
            self.calls[index] += 1
            # The running statistics hold the mean over a norm's calls.
            momentum = float(norm.momentum or 0) / self.calls[index]
            channels = values.new_zeros(values.shape[1], dtype=widened(values[:0]).dtype)
            weights = [channels + 1 if n.weight is None else n.weight for n in norms]
            biases = [channels if n.bias is None else n.bias for n in norms]
            *answers, self.token = GlobalNorm.apply(
                self, norms[0], index, momentum, len(norms), self.token, *self.arrived, *weights, *biases
            )
            self.answers = list(answers)
            following = 0
        else:
            following = number + 1
        with self.turn:
            self.running = following
            self.turn.notify_all()
        if following != number:
            self._wait_for_turn(number)
        self._set_random_state(self.random[number], values.device)
        answer = self.answers[number]
        if answer is None:
            raise RuntimeError("the replicas of one model met at different batch norms")
        return answer

    def _random_state(self, device: torch.device) -> dict[str, Tensor]:
        """Return the states of the generators that this rank's replicas share, by kind of device."""
        # Where other ranks are threads, every forward pass has a separate generator on the CPU.
        states = {} if self.exchange.transport.in_process else {"cpu": torch.get_rng_state()}
        return {**states, "cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else states

    def _set_random_state(self, states: dict[str, Tensor], device: torch.device) -> None:
        for kind, state in states.items():
            if kind == "cpu":
                torch.set_rng_state(state)
            else:
                torch.cuda.set_rng_state(state, device)

    def _norm(self, number: int, index: int) -> nn.Module:
        meetings = [m.forward for m in self.replicas[number].modules() if isinstance(m.forward, _Meeting)]
        return meetings[index].norm

    def _wait_for_turn(self, number: int) -> None:
        with self.turn:
            self.turn.wait_for(lambda: self.running == number or self.failure is not None)
        if self.failure is not None:
            raise RuntimeError("another micro-batch failed") from self.failure


class _Meeting:
    """Stands in for a norm's ``forward`` in a replica."""

    def __init__(self, side: SideBySide, number: int, index: int, norm: nn.Module) -> None:
        self.side, self.number, self.index, self.norm = side, number, index, norm

    def __call__(self, values: Tensor) -> Tensor:
        return self.side.meet(self.number, self.norm, self.index, values)


def _sharing_copy(module: nn.Module) -> nn.Module:
    """A copy whose parameters and buffers are the same memory, with its own gradients."""
    memo: dict[int, Any] = {
        id(p): nn.Parameter(p.detach(), requires_grad=p.requires_grad) for p in module.parameters()
    }
    memo.update({id(b): b for b in module.buffers()})
    return copy.deepcopy(module, memo)
