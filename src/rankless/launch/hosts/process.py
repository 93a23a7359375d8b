"""The process of one host: ``python -m rankless.launch.hosts.process``, started by the supervisor there.

It takes commands as lines of JSON on its standard input, answers each on the descriptor EVENTS_FD, and runs
the ranks of this host round by round. The standard output is what rank 0 prints. It lives through restarts,
so that ranks are forked from what it has imported.
"""

from __future__ import annotations

import io
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout, suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from rankless import __version__
from rankless.errors import UserError, of_the_system
from rankless.hardware.processes import die_with_parent, name_process
from rankless.launch import fork_server
from rankless.launch.hosts.doctor_commands import DoctorCommands
from rankless.launch.requests import Requests

_SILENCE = 90  # seconds without a word from the supervisor, which ends before where it misses the client


class HostProcess(DoctorCommands):
    """What the coordinator may ask for; every ``do_…`` is a command, and returns its answer.

    Args:
        events: where answers go.
    """

    def __init__(self, events: IO[str]) -> None:
        self.events = events
        self.commands: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        # Of rounds, by their numbers: what is asked may come before its round, or after it.
        self.requests: dict[int, Requests] = {}
        self.abandoned: set[int] = set()
        self.lock = threading.Lock()
        self.opened = ExitStack()  # the run's lock
        self.listener: Any = None
        self.store: Any = None
        self.silent = 0  # seconds without a word from the supervisor
        self.in_round, self.unwatched = False, 0  # about the seconds in which nobody looked at its ranks

    def serve(self) -> None:
        """Answer commands until the supervisor has gone."""
        for work in (self._read, self._leave_a_hung_supervisor):
            threading.Thread(target=work, daemon=True).start()
        self._send({"ready": os.getpid()})
        with self.opened:
            while (command := self.commands.get()) is not None:
                order = command.pop("reply_to")
                self._send({**self._answered(command.pop("do"), command), "reply_to": order})

    def _answered(self, do: str, command: dict[str, Any]) -> dict[str, Any]:
        work: Callable[..., dict[str, Any]] | None = getattr(self, f"do_{do}", None)
        if work is None:
            return {
                "problems": [
                    f"rankless {__version__} there does not know '{do}'; install the same everywhere"
                ]
            }
        try:
            return work(**command)
        except UserError as error:
            return {"problems": list(error.problems)}
        except Exception as error:
            known = of_the_system(error)
            if known is None:
                traceback.print_exc()
            return {"problems": list(known.problems) if known else [f"{type(error).__name__}: {error}"]}

    def _read(self) -> None:
        """Take commands; what concerns a round that is running is done here."""
        for line in sys.stdin:
            command = json.loads(line)
            self.silent = 0
            if command["do"] == "beat":
                self.unwatched = self.unwatched + 1 if self.in_round else 0
                self._send({"beat": self.unwatched})
            elif command["do"] == "request":
                self._requests_of(command["of"]).ask(command["number"])
            elif command["do"] == "abandon":
                self.abandoned.add(command["of"])
            else:
                self.commands.put(command)
        self.commands.put(None)

    def _leave_a_hung_supervisor(self) -> None:
        """End with the ranks where the supervisor, which passes on the client's beats, has stopped to."""
        while self.silent < _SILENCE:
            time.sleep(1)
            self.silent += 1
        os.kill(os.getpid(), signal.SIGKILL)

    def _is_watching(self) -> None:
        self.unwatched = 0

    def _requests_of(self, number: int) -> Requests:
        with self.lock:
            return self.requests.setdefault(number, Requests())

    def _send(self, event: dict[str, Any]) -> None:
        with suppress(OSError), self.lock:
            self.events.write(json.dumps(event) + "\n")
            self.events.flush()

    def do_holds(self, run: str) -> dict[str, Any]:
        """What this host has of a run."""
        from rankless.launch.hosts.facts import holds

        return holds(Path(run))

    def do_recipe(self, run: str, overrides: list[str]) -> dict[str, Any]:
        """The recipe of a run that this host has."""
        from rankless.launch.resume import recipe_of_run
        from rankless.recipe.load import to_json
        from rankless.runs.directory import RunDirectory

        return {"recipe": to_json(recipe_of_run(RunDirectory(Path(run)), overrides))}

    def do_facts(self, recipe: str, run: str) -> dict[str, Any]:
        """What this host is and has, for a recipe."""
        from rankless.launch.hosts.facts import facts

        return {"facts": facts(recipe, Path(run))}

    def do_prepare(self, recipe: str, run: str, resume: bool, sinks: list[str]) -> dict[str, Any]:
        """The recipe, with what depends on data and devices resolved, and checked against the run so far.

        Returns:
            Also the step at which the run is ``finished`` that was to be resumed, if it is.
        """
        from rankless.launch import opening
        from rankless.launch.resume import check_resume, finished_at
        from rankless.recipe.load import from_json, to_json
        from rankless.runs.directory import RunDirectory
        from rankless.tasks import resolve_recipe

        directory = RunDirectory(Path(run))
        wanted, names = opening.checked(from_json(recipe), None, sinks)
        wanted = resolve_recipe(wanted)
        if resume:
            wanted = check_resume(directory, wanted)
        return {
            "recipe": to_json(opening.with_precision(wanted)),
            "sinks": names,
            "finished": finished_at(directory, wanted) if resume else None,
        }

    def do_begin(self, recipe: str, run: str, resume: bool, token: str, stays: bool) -> dict[str, Any]:
        """Lock the run directory, together with the hosts that share it.

        Args:
            token: of this training.
            stays: whether the run is there when this process has ended.
        """
        from rankless.files.writing import remove_tree
        from rankless.launch import opening
        from rankless.launch.run_lock import locked
        from rankless.recipe.load import from_json
        from rankless.runs.directory import RunDirectory

        directory = RunDirectory(Path(run))
        resume = resume and (directory.recipe.exists() or bool(directory.steps()))
        is_first = self.opened.enter_context(locked(directory, resume, token))
        if is_first and not stays:
            self.opened.callback(remove_tree, directory.path)
        if is_first and not resume:
            opening.begin(directory, from_json(recipe))
        return {"shared": not is_first}

    def do_listen(self) -> dict[str, Any]:
        """Listen everywhere, to be tried by the other hosts."""
        from rankless.launch.hosts.reach import Listener

        self.listener = Listener()
        return {"ports": self.listener.ports()}

    def do_reach(self, of: dict[str, dict[str, int]]) -> dict[str, Any]:
        """Try to reach other hosts, all at once."""
        from rankless.launch.hosts.reach import reachable

        return {"sources": reachable(of)}

    def do_open_store(self, address: str) -> dict[str, Any]:
        """Open the store at which the ranks of the next round meet."""
        from rankless.world.rendezvous import open_store

        if self.listener is not None:
            self.listener.close()
            self.listener = None
        self.store = open_store(address)
        return {"port": self.store.port}

    def do_round(
        self,
        number: int,
        job: dict[str, Any],
        ranks: int,
        place: dict[str, Any],
        own: str,
        deaths: list[dict[str, Any]],
    ) -> dict[str, Any]:
        """Run this host's ranks until all have ended.

        Args:
            number: of the round.
            job: the fields of a :class:`rankless.launch.job.Job`.
            ranks: how many run here.
            place: of the ranks among those of the other hosts.
            own: the address of this host that the others use.
            deaths: what ended the round before, for the journal.
        """
        from rankless.hardware.network import interface_of
        from rankless.launch import local
        from rankless.launch.job import Job
        from rankless.launch.ranks import Place, Ranks
        from rankless.launch.record import record_death
        from rankless.launch.supervisor import GRACE, Death
        from rankless.runs.directory import RunDirectory
        from rankless.world.rendezvous import on_interface

        at, task = Place(**place), Job(**job)
        self.in_round, self.unwatched = True, 0
        for death in deaths:
            record_death(RunDirectory(Path(task.run)), Death(**death))
        try:
            with (
                on_interface(interface_of(own) if at.size > ranks else None),
                self._requests_of(number) as requests,
                local.job_written(task, None, at.first) as path,
            ):
                end = Ranks(
                    task,
                    path,
                    ranks,
                    requests,
                    local.server_for(task),
                    grace=GRACE,
                    number=number,
                    place=at,
                    abandoned=lambda: number in self.abandoned,
                    watching=self._is_watching,
                ).run()
                return dict(msgspec.to_builtins(end, str_keys=True))
        finally:
            self.store, self.in_round = None, False

    def do_outcome(self, run: str) -> dict[str, Any]:
        """The digest of the last checkpoint's weights, and the seconds of every step."""
        from rankless.models.checkpoints.weights import digest_file
        from rankless.runs import journal
        from rankless.runs.directory import RunDirectory

        directory = RunDirectory(Path(run))
        weights = directory.step_directory(directory.pointed("last") or 0) / "model.safetensors"
        return {"digest": digest_file(weights), "seconds": journal.step_seconds(directory.journal)}

    def do_withdraw(self) -> dict[str, Any]:
        """Let go of the run directory; of a start that trained nothing nothing stays."""
        with suppress(UserError), self.opened:
            raise UserError("the start failed")
        return {}

    def do_discard(self) -> dict[str, Any]:
        """Remove a run that this process has begun and that is not to stay."""
        self.opened.close()
        return {}

    def do_report(self, run: str) -> dict[str, Any]:
        """How a finished training went, as lines to be printed."""
        from rankless.launch import opening
        from rankless.runs.directory import RunDirectory

        with redirect_stdout(io.StringIO()) as text:
            opening.report_finished(RunDirectory(Path(run)))
        return {"text": text.getvalue()}


def main() -> int:
    """Serve one coordinator."""
    die_with_parent()
    name_process("rankless host")
    # Torch warns of every connection from an address that has no name.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    events = os.fdopen(int(os.environ.pop("EVENTS_FD")), "w", encoding="utf-8")
    os.set_inheritable(events.fileno(), False)
    sys.stdin = os.fdopen(os.dup(0), encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # between rounds; in one it is a request
    from rankless.launch import opening

    if opening.device().type == "cpu":
        fork_server.allow()
        fork_server.start()
    HostProcess(events).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
