"""The process that runs the ranks of one host: ``python -m rankless.launch.hosts.host``.

The host's supervisor starts it. It reads commands (``hosts/messages``) from standard input, writes the
answers to the descriptor EVENTS_FD, and runs the host's ranks round by round. Its standard output is that of
rank 0. It keeps running when the ranks restart, so that new ranks are forked with modules already imported.
"""

from __future__ import annotations

import io
import os
import platform
import queue
import signal
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from contextlib import ExitStack, redirect_stdout, suppress
from dataclasses import asdict
from functools import singledispatchmethod
from pathlib import Path
from typing import IO, Any

import msgspec

from rankless import __version__
from rankless.engine.environment import describe
from rankless.errors import UserError, of_the_system
from rankless.files.writing import remove_tree
from rankless.hardware.compute_device import compute_device
from rankless.hardware.cores import usable_cores
from rankless.hardware.network import interface_of
from rankless.hardware.processes import die_with_parent, name_process
from rankless.launch import fork_server, local, opening
from rankless.launch.devices import LeftOut
from rankless.launch.doctor.here import checks
from rankless.launch.hosts import messages
from rankless.launch.hosts.messages import Answer, Command, Value
from rankless.launch.hosts.reach import Listener, probe
from rankless.launch.opening import record_death
from rankless.launch.ranks import Ranks
from rankless.launch.requests import Requests
from rankless.launch.resume import check_resume, finished_at, recipe_of_run
from rankless.launch.rounds import GRACE
from rankless.launch.run_lock import locked
from rankless.messages import line
from rankless.models.published import prefetch
from rankless.models.weights_files.weights import digest_file
from rankless.recipe.load import from_json, to_json
from rankless.runs import journal
from rankless.runs.directory import RunDirectory, damage
from rankless.tasks import data_digest, open_task, resolve_recipe
from rankless.world import speed
from rankless.world.rendezvous import on_interface, open_store

_SILENCE = 90  # seconds of silence from the supervisor, which ends earlier if the client is silent
_STEPS, _WARM_UP = 5, 2  # timed steps of a recipe, of which the first are excluded


class HostProcess:
    """A process that reads commands of the coordinator from ``source`` and answers them on ``events``."""

    def __init__(self, events: IO[bytes], source: Iterable[str] = ()) -> None:
        self.events, self.source = events, source
        self.commands: queue.SimpleQueue[Command[Any] | None] = queue.SimpleQueue()
        # Keyed by the round's number, because commands may arrive before or after their round.
        self.requests: dict[int, Requests] = {}
        self.abandoned: set[int] = set()
        self.lock = threading.Lock()
        self.opened = ExitStack()  # the run's lock
        self.listener: Any = None
        self.store: Any = None
        self.silent = 0  # seconds since the last message from the supervisor
        self.in_round, self.unwatched = False, 0  # approximate seconds since the ranks were checked

    def serve(self) -> None:
        """Answer commands until the supervisor has exited."""
        for work in (self._read, self._watch_supervisor):
            threading.Thread(target=work, daemon=True).start()
        self._send(messages.Sign(ready=os.getpid()))
        with self.opened:
            while (command := self.commands.get()) is not None:
                self._send(msgspec.structs.replace(self._answer(command), reply_to=command.reply_to))

    def _answer(self, command: Command[Any]) -> Answer:
        try:
            return self.answer(command) or Answer()
        except UserError as error:
            return Answer(problems=list(error.problems))
        except Exception as error:
            known = of_the_system(error)
            if known is None:
                traceback.print_exc()
            return Answer(problems=list(known.problems) if known else [f"{type(error).__name__}: {error}"])

    def _read(self) -> None:
        """Read commands, and immediately handle heartbeats and commands about a running round."""
        for text in self.source:
            self.silent = 0
            try:
                command = messages.COMMANDS.decode(text)
            except msgspec.ValidationError:
                head = msgspec.json.decode(text)
                why = (
                    f"rankless {__version__} does not support the command '{head['do']}'; install the same "
                    "version on all hosts"
                )
                self._send(Answer(reply_to=head["reply_to"], problems=[why]))
                continue
            match command:
                case messages.Beat():
                    self.unwatched = self.unwatched + 1 if self.in_round else 0
                    self._send(messages.Sign(beat=self.unwatched))
                case messages.Request():
                    self._requests_of(command.of).ask(command.number)
                case messages.Abandon():
                    self.abandoned.add(command.of)
                case _:
                    self.commands.put(command)
        self.commands.put(None)

    def _watch_supervisor(self) -> None:
        """Kill this process and its ranks if the supervisor no longer passes on the client's heartbeats."""
        while self.silent < _SILENCE:
            time.sleep(1)
            self.silent += 1
        os.kill(os.getpid(), signal.SIGKILL)

    def _reset_unwatched(self) -> None:
        self.unwatched = 0

    def _requests_of(self, number: int) -> Requests:
        with self.lock:
            return self.requests.setdefault(number, Requests())

    def _send(self, message: messages.Sign | Answer) -> None:
        with suppress(OSError), self.lock:
            self.events.write(line(message))
            self.events.flush()

    @singledispatchmethod
    def answer(self, command: Command[Any]) -> Answer | None:
        """Execute a command and return its answer, or None for an empty answer."""
        raise TypeError(f"unknown command: {command}")

    @answer.register
    def _(self, command: messages.Holds) -> messages.Held:
        run = RunDirectory(Path(command.run))
        steps = run.steps()
        whole = (step for step in reversed(steps) if damage(run.step_directory(step)) is None)
        has_run = run.recipe.exists() or bool(steps)
        return messages.Held(exists=os.path.lexists(run.path), has_run=has_run, step=next(whole, None))

    @answer.register
    def _(self, command: messages.Recipe) -> Value[str]:
        recipe = recipe_of_run(RunDirectory(Path(command.run)), command.overrides)
        return Value(value=to_json(recipe))

    @answer.register
    def _(self, command: messages.Facts) -> Value[dict[str, Any]]:
        return Value(value=facts(command.recipe))

    @answer.register
    def _(self, command: messages.Prepare) -> messages.Prepared:
        run = RunDirectory(Path(command.run))
        recipe, names = opening.checked(from_json(command.recipe), None, command.sinks)
        recipe = resolve_recipe(recipe)
        if command.resume:
            recipe = check_resume(run, recipe)
        else:
            prefetch(recipe.model)
        finished = finished_at(run, recipe) if command.resume else None
        recipe = opening.with_precision(recipe)
        return messages.Prepared(recipe=to_json(recipe), sinks=names, finished=finished)

    @answer.register
    def _(self, command: messages.Begin) -> Value[bool]:
        run = RunDirectory(Path(command.run))
        resume = command.resume and (run.recipe.exists() or bool(run.steps()))
        is_first = self.opened.enter_context(locked(run, resume, command.token))
        if is_first and not command.stays:
            self.opened.callback(remove_tree, run.path)
        if is_first and not resume:
            opening.begin(run, from_json(command.recipe))
        return Value(value=not is_first)

    @answer.register
    def _(self, command: messages.Listen) -> Value[dict[str, int]]:
        self.listener = Listener(echo=command.echo)
        return Value(value=self.listener.ports())

    @answer.register
    def _(self, command: messages.Reach) -> Value[dict[str, dict[str, Any]]]:
        return Value(value=probe(command.targets, large=command.large))

    @answer.register
    def _(self, command: messages.OpenStore) -> Value[int]:
        if self.listener is not None:
            self.listener.close()
            self.listener = None
        self.store = open_store(command.address)
        return Value(value=self.store.port)

    @answer.register
    def _(self, command: messages.Round) -> messages.RoundEnded:
        number, job, place = command.number, command.job, command.place
        self.in_round, self.unwatched, left_out = True, 0, LeftOut(command.left_out)
        for death in command.deaths:
            record_death(RunDirectory(Path(job.run)), death)
        try:
            with (
                on_interface(interface_of(command.own) if place.size > command.ranks else None),
                self._requests_of(number) as requests,
                local.job_file(job, None, place.first) as path,
            ):
                end = Ranks(
                    job,
                    path,
                    command.ranks,
                    requests,
                    local.server_for(job),
                    grace=GRACE,
                    number=number,
                    place=place,
                    abandoned=lambda: number in self.abandoned,
                    watching=self._reset_unwatched,
                    more=left_out.variables(),
                ).run()
                left_out.add([rank - place.first for rank in end.left_out])
                return messages.RoundEnded(end=end, left_out=left_out.numbers)
        finally:
            self.store, self.in_round = None, False

    @answer.register
    def _(self, command: messages.Outcome) -> messages.DryRunOutcome:
        run = RunDirectory(Path(command.run))
        weights = run.step_directory(run.pointed("last") or 0) / "model.safetensors"
        return messages.DryRunOutcome(digest=digest_file(weights), seconds=journal.step_seconds(run.journal))

    @answer.register
    def _(self, _: messages.Withdraw) -> None:
        with suppress(UserError), self.opened:
            raise UserError("the start failed")

    @answer.register
    def _(self, _: messages.Discard) -> None:
        self.opened.close()

    @answer.register
    def _(self, command: messages.Report) -> Value[str]:
        with redirect_stdout(io.StringIO()) as text:
            opening.report_finished(RunDirectory(Path(command.run)))
        return Value(value=text.getvalue())

    @answer.register
    def _(self, command: messages.Doctor) -> Value[list[dict[str, Any]]]:
        found = checks(Path(command.run), command.threads)
        return Value(value=[asdict(check) for check in found])

    @answer.register
    def _(self, _: messages.Clock) -> Value[float]:
        return Value(value=time.time())

    @answer.register
    def _(self, command: messages.Speed) -> messages.Measured:
        interface, parameters = interface_of(command.own), command.parameters
        with speed.connected(command.rank, command.size, command.address, command.port, interface):
            timings = speed.measure()
            exchange = speed.measure_exchange(parameters, command.micro_batches) if parameters else 0.0
        self.store = None
        return messages.Measured(timings=timings, exchange=exchange)

    @answer.register
    def _(self, command: messages.Step) -> Value[float]:
        seconds = local.step_seconds(from_json(command.recipe), command.devices, _STEPS, _WARM_UP)
        return Value(value=statistics.median(seconds))

    @answer.register
    def _(self, command: messages.Parameters) -> Value[float]:
        model = open_task(resolve_recipe(from_json(command.recipe))).model()
        return Value(value=sum(p.numel() for p in model.parameters() if p.requires_grad))


def facts(recipe: str) -> dict[str, Any]:
    """Return the properties of this host that affect training, and the ``problems`` that prevent training.

    ``recipe`` is JSON with the path of the data on this host; if it is empty, no data is read.
    """
    device = compute_device()
    problems: list[str] = []
    digest = None
    if recipe:
        try:
            digest = data_digest(from_json(recipe))
        except UserError as error:
            problems += error.problems
    return {
        "host": platform.node(),
        "machine": _machine(),
        "environment": describe(device),
        "device": device.type,
        "devices": opening.gpu_count(),
        "cores": usable_cores(),
        "data": digest,
        "problems": problems,
    }


def _machine() -> str:
    """Return an ID for this machine and its network namespace that does not depend on host names."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/net').stat().st_ino}"
    return ""


def main() -> int:
    """Answer the commands of one coordinator until the supervisor has exited."""
    die_with_parent()
    name_process("rankless host")
    events = os.fdopen(int(os.environ.pop("EVENTS_FD")), "wb")
    os.set_inheritable(events.fileno(), False)
    source = os.fdopen(os.dup(0), encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # between rounds; during a round, it is a request
    if compute_device().type == "cpu":
        fork_server.allow()
        fork_server.start()
    HostProcess(events, source).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
