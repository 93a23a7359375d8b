"""Batch norm over the global batch, for any number of ranks and micro-batches.

A rank runs its micro-batches side by side, each in a thread with a replica of the module that shares the
weights. Only one thread runs at a time, until it reaches its next batch norm and waits there. When all
threads have arrived, the norm is computed for all of them at once, with sums along the fixed tree, and the
threads continue. The backward pass works in the same way, because every replica has a separate graph, which
autograd runs in the replica's thread. Gradients are therefore added in the same order as for a single
micro-batch.

``torch.nn.SyncBatchNorm`` supports neither micro-batches nor CPUs, and its sums depend on the backend.
"""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rankless.errors import UserError
from rankless.hardware.cpu_threads import set_threads
from rankless.world.exchange import Exchange
from rankless.world.global_norm import GlobalNorm, batch_statistics, is_recomputed, widened

_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_END = -1  # the index that represents the end of the forward pass


def norms_over_batch(module: nn.Module) -> list[tuple[str, _BatchNorm]]:
    """Return the names and modules of the batch norms that use the statistics of their input."""
    return [
        (name, norm)
        for name, norm in module.named_modules()
        if isinstance(norm, _BatchNorm) and (norm.training or norm.running_mean is None)
    ]


class SideBySide:
    """Runs this rank's micro-batches side by side, and synchronizes them at each batch norm.

    Each micro-batch has a copy of ``module``, in ``replicas``, which shares the memory of parameters and
    buffers but has separate gradients. Norms that use running statistics remain unchanged.
    """

    def __init__(self, module: nn.Module, exchange: Exchange) -> None:
        named = norms_over_batch(module)
        foreign = [f"{name} ({type(norm).__name__})" for name, norm in named if type(norm) not in _PLAIN]
        if foreign:
            raise UserError(
                "batch_norm is 'sync', but the model has norms other than nn.BatchNorm1d/2d/3d: "
                f"{', '.join(foreign[:5])}; use batch_norm: micro"
            )
        if outside := _outside_variables(module):
            raise UserError(
                "batch_norm is 'sync', but hooks of layers use modules, dicts, lists or sets as variables: "
                f"{', '.join(outside[:5])}; micro-batches that run side by side would share them; use "
                "methods of modules as hooks, as in layer.register_forward_hook(self.keep), or batch_norm: "
                "micro"
            )
        self.exchange = exchange
        self.names = [name for name, _ in named]
        self.norms = [norm for _, norm in named]
        # The norms in the order of their calls, which all ranks compare in the first run.
        self.order: list[int] = []
        self.dtypes: list[torch.dtype] = []  # dtype of each norm's sums, in order
        self.is_agreed = self.is_forward = False
        self.replicas = [_sharing_copy(module) for _ in exchange.own]
        self.device = next(module.parameters()).device
        for number, replica in enumerate(self.replicas):
            for index, (_, norm) in enumerate(norms_over_batch(replica)):
                vars(norm)["forward"] = partial(self.normalize, number, norm, index)

    def run(self, forward: Callable[[int], Tensor]) -> None:
        """Run the forward and backward pass of each of this rank's micro-batches.

        ``forward`` runs the forward pass of this rank's i-th micro-batch and returns its loss, a scalar. It
        must seed PyTorch's generators if it uses random numbers.
        """
        count = len(self.replicas)
        self.met = [0] * count  # number of norms that each replica has called
        self.calls = [0] * len(self.norms)
        self.inputs: list[Any] = [None] * count
        self.results: list[Any] = [None] * count
        self.tokens = [torch.zeros((), requires_grad=True) for _ in self.replicas]
        self.turns: list[SimpleQueue[None]] = [SimpleQueue() for _ in self.replicas]
        self.failure: BaseException | None = None
        cores = torch.get_num_threads()

        def body(number: int) -> None:
            try:
                set_threads(cores)
                if self.device.type == "cuda":
                    torch.cuda.set_device(self.device)  # new threads use GPU 0
                self._wait_for_turn(number)
                loss = forward(number)
                self._follow(number, _END)
                self.meet(number, _END, None, self._end_forward)
                # Stay in this thread, because the replicas would deadlock in autograd's thread for the
                # device. The token has a zero gradient and makes the backward pass visit all norms.
                with torch.autograd.set_multithreading_enabled(False):
                    torch.autograd.backward([loss, self.tokens[number] * 0])
                self._pass_turn((number + 1) % count)
            except BaseException as error:
                self.failure = self.failure or error
                for other in range(count):
                    self._pass_turn(other)

        threads = [threading.Thread(target=body, args=(number,), daemon=True) for number in range(count)]
        self.is_forward = True
        self._pass_turn(0)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.is_forward = False
        if self.failure is not None:
            raise self.failure

    @property
    def called(self) -> list[nn.Module]:
        """The norms of the original module that were called in the last run."""
        return [norm for norm, calls in zip(self.norms, self.calls, strict=True) if calls]

    def _follow(self, number: int, index: int) -> None:
        """Check that a replica calls its next norm, or ends its pass, as replica 0 did in the first run."""
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
        """Check that all ranks are at the same norm. After the first run, compare only the end."""
        if self.is_agreed and index != _END:
            return
        self._compare(index, index)

    def _poison(self, at: int) -> None:
        """Send NaN to the other ranks, because they are computing a norm that this rank did not call."""
        norm = self.norms[self.order[at]]
        sums = torch.full((norm.num_features + 1,), torch.nan, dtype=self.dtypes[at], device=self.device)
        self.exchange.total([sums.clone() for _ in self.replicas])

    def check(self, index: int, number: Tensor) -> None:
        """Raise an error if ``number``, a scalar, is NaN, because a rank has not called this norm."""
        if self.exchange.size > 1 and number.isnan():
            self._compare(index, index)

    def _compare(self, expected: int, index: int) -> None:
        """Raise the same error on every rank unless all ranks have reached the expected norm."""
        reached = self.exchange.gather(index)
        known = self.is_agreed or len(set(reached)) == 1  # all ranks know the expected norm
        if others := list(dict.fromkeys([expected, *reached] if known else reached))[1:]:
            raise UserError(self._difference(expected if known else reached[0], others[0]))

    def _difference(self, one: int, other: int) -> str:
        here, there = (
            "has called its last norm" if index == _END else f"calls '{self.names[index]}'"
            for index in (one, other)
        )
        return (
            "batch_norm is 'sync', but micro-batches call different batch norms, or call them in a different "
            f"order: one {here}, another {there}; call all of them in the same order in every forward pass, "
            "or use batch_norm: micro"
        )

    def normalize(self, number: int, norm: Any, index: int, values: Tensor) -> Tensor:
        """Normalize ``values`` (B, C, …) of replica ``number`` together with the other replicas' values."""
        if is_recomputed():
            token = torch.zeros((), requires_grad=True)  # to save the same tensors as the first time
            again: Tensor = GlobalNorm.apply(self, number, index, token, values, norm.weight, norm.bias)[0]
            return again
        if not self.is_forward or not torch.is_grad_enabled():
            when = "without gradients" if self.is_forward else "again in the backward pass"
            raise UserError(
                f"batch_norm is 'sync', but '{self.names[index]}' is called {when}, probably because the "
                "model's own code uses activation checkpointing; use model.checkpointing=true instead, or "
                "batch_norm: micro"
            )
        self._follow(number, index)
        if number == 0 and not self.is_agreed:
            self.dtypes.append(widened(values[:0]).dtype)
        output, self.tokens[number] = GlobalNorm.apply(
            self, number, index, self.tokens[number], values, norm.weight, norm.bias
        )
        return output  # type: ignore[no-any-return]

    def meet(
        self, number: int, index: int, inputs: Any, compute: Callable[[Sequence[Any]], Sequence[Any]]
    ) -> Any:
        """Wait at norm ``index`` for the other replicas, and return the result for replica ``number``.

        ``compute`` receives the values of all replicas and returns one result per replica.
        """
        self.inputs[number] = index, inputs
        if number == len(self.replicas) - 1:
            indices, everything = zip(*self.inputs, strict=True)
            if len(set(indices)) > 1:
                raise RuntimeError("the replicas of the model are waiting at different batch norms")
            self.inputs = [None] * len(self.replicas)
            self.results = list(compute(everything))
            del everything
        if len(self.replicas) > 1:
            random = self._random_state()
            self._pass_turn((number + 1) % len(self.replicas))
            self._wait_for_turn(number)
            self._set_random_state(random)
        result, self.results[number] = self.results[number], None
        return result

    def statistics(self, index: int, wide: Sequence[Tensor]) -> Sequence[Any]:
        """Compute the statistics of norm ``index`` over the values (B, C, …) of all micro-batches."""
        self._agree(index)
        self.calls[index] += 1
        norm = self.norms[index]
        # Average the statistics of all calls if a norm is called several times.
        momentum = float(norm.momentum or 0) / self.calls[index]
        check = partial(self.check, index)
        return batch_statistics(norm, momentum, self.exchange.total, check, wide)

    def _end_forward(self, ended: Sequence[None]) -> Sequence[None]:
        self._agree(_END)
        self.is_agreed, self.is_forward = True, False
        return ended

    def _random_state(self) -> dict[str, Tensor]:
        # If ranks are threads, every forward pass has its own CPU generator.
        states = {} if self.exchange.transport.in_process else {"cpu": torch.get_rng_state()}
        is_cuda = self.device.type == "cuda"
        return {**states, "cuda": torch.cuda.get_rng_state(self.device)} if is_cuda else states

    def _set_random_state(self, states: dict[str, Tensor]) -> None:
        for kind, state in states.items():
            if kind == "cpu":
                torch.set_rng_state(state)
            else:
                torch.cuda.set_rng_state(state, self.device)

    def _pass_turn(self, number: int) -> None:
        self.turns[number].put(None)

    def _wait_for_turn(self, number: int) -> None:
        if self.failure is None:
            self.turns[number].get()
        if self.failure is not None:
            raise RuntimeError("another micro-batch failed") from self.failure


def _sharing_copy(module: nn.Module) -> nn.Module:
    """Return a copy of a module that shares the memory of parameters and buffers, but not the gradients.

    Hooks see the gradients of the copy's parameters.
    """
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        memo[id(parameter)] = copied = nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
        if parameter._backward_hooks:
            copied.register_hook(partial(_hooked, parameter))
        if parameter._post_accumulate_grad_hooks:
            copied.register_post_accumulate_grad_hook(partial(_run_hooks, parameter))
    memo.update({id(b): b for b in module.buffers()})
    return copy.deepcopy(module, memo)


def _hooked(parameter: Any, gradient: Tensor) -> Tensor:
    """Return the gradient after the parameter's hooks. They may have changed since it was copied."""
    for hook in list(parameter._backward_hooks.values()):
        changed = hook(gradient)
        gradient = gradient if changed is None else changed
    return gradient


def _run_hooks(parameter: Any, copied: Tensor) -> None:
    """Run the parameter's hooks for a finished gradient on the gradient of its copy."""
    before, parameter.grad = parameter.grad, copied.grad
    for hook in list(parameter._post_accumulate_grad_hooks.values()):
        hook(parameter)
    copied.grad, parameter.grad = parameter.grad, before


def _outside_variables(module: nn.Module) -> list[str]:
    """Return layers whose hooks have variables that :func:`_sharing_copy` cannot replace with copies."""
    found = []
    for name, layer in module.named_modules():
        kinds = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
        for hook in [hook for kind in kinds for hook in getattr(layer, kind).values()]:
            variables = inspect.getclosurevars(hook).nonlocals if inspect.isfunction(hook) else {}
            shared = [n for n, value in variables.items() if isinstance(value, nn.Module | dict | list | set)]
            if shared:
                found.append(f"'{name}' ({', '.join(sorted(shared))})")
    return found
