"""What the coordinator of several hosts does about what they answer, and about what they do not."""

from __future__ import annotations

import base64
import io
import itertools
import json
import os
import signal
import time
from typing import Any

import msgspec
import pytest

from rankless.cli import main
from rankless.errors import LOST_PEER, UserError
from rankless.launch.hosts import messages
from rankless.launch.hosts.host import HostProcess
from rankless.launch.hosts.host_pool import HostPool
from rankless.launch.hosts.names import parse_hosts
from rankless.launch.job import LEFT_OUT
from support.hosts import DONE, FAILED, STOPPED, Cluster, Machine, cluster, interrupt, reached


def connected(*machines: Machine) -> HostPool:
    """Connect to some machines, and return them as hosts."""
    pool = cluster(*machines).coordinator.pool
    pool.connect(pool.members)
    pool.wait_ready()
    return pool


def problems(found: Cluster) -> tuple[str, ...]:
    with pytest.raises(UserError) as error:
        found.coordinator.train()
    return error.value.problems


def test_a_run_to_its_end(capsys):
    assert cluster(Machine("h1"), Machine("h2")).coordinator.train() == 0
    assert capsys.readouterr() == ("connecting to h1, h2\nthe report\nthe run directory is on h1, h2\n", "")


def test_a_host_that_could_not_save_the_end_is_named(capsys):
    hosts = [Machine("h1"), Machine("h2"), Machine("h3")]
    for host, step in zip(hosts, (240, 40, 240), strict=True):
        # A run that is new at the start, and there at the end.
        host.answers["holds"] = lambda _, step=step: {
            "exists": False, "has_run": False, "step": step if hosts[0].joined else None
        }  # fmt: skip
    assert cluster(*hosts).coordinator.train() == 0
    out, err = capsys.readouterr()
    assert "the run directory is on h1, h3\n" in out
    assert err == "warning: h2 has only the first 40 of 240 steps; copy the run directory from another host\n"


def test_a_start_that_fails_on_one_host_leaves_nothing_on_the_others():
    one, two = Machine("h1"), Machine("h2", answers={"begin": {"problems": ["runs/x: not a run directory"]}})
    assert problems(cluster(one, two)) == ("h2: runs/x: not a run directory",)
    assert "withdraw" in one.heard and not one.joined


def test_hosts_that_no_other_reaches():
    silent = Machine("h2", answers={"listen": {"value": {}}})
    (problem,) = problems(cluster(Machine("h1"), silent))
    assert "h2: cannot be reached by h1 at any of its addresses (it has none)" in problem


def test_a_host_that_is_lost_and_comes_back(capsys):
    one, two = Machine("h1", [None, None, DONE]), Machine("h2", [None, DONE])
    found = cluster(one, two)
    found.when(lambda: one.pending and two.pending, lambda: found.off("h2"))
    found.when(lambda: one.heard.count("round") == 2, lambda: setattr(two, "up", True))
    assert found.coordinator.train() == 0
    error = capsys.readouterr().err
    assert "lost h2 (no route)" in error and "h2 is back" in error
    assert "lost h2; restarting from the newest checkpoint on h1\n" in error
    assert one.heard.count("abandon") == 1
    assert one.heard.count("request") == 1  # so that it may join


@pytest.mark.slow
@pytest.mark.parametrize(
    "bad",
    [
        {"facts": {"problems": ["its data is damaged"]}},
        {"begin": {"problems": ["another process trains there"]}},
        {"facts": None},  # an answer that never comes
    ],
)
def test_a_host_that_comes_back_and_cannot_join_ends_no_round(bad, capsys):
    one, two, pumps = Machine("h1", [None, None]), Machine("h2", [None]), itertools.count()
    found = cluster(one, two)
    found.when(lambda: one.pending and two.pending, lambda: found.off("h2"))
    found.when(lambda: one.heard.count("round") == 2, lambda: vars(two).update(up=True, answers=bad))
    found.when(
        lambda: one.heard.count("round") == 2 and next(pumps) == 300,
        lambda: one.channel and one.channel.end(DONE),
    )
    assert found.coordinator.train() == 0
    assert (one.heard.count("request"), one.heard.count("round")) == (0, 2)
    assert capsys.readouterr().err.count("h2 cannot join") == int(None not in bad.values())


def test_ctrl_c_while_a_host_joins_lets_the_ranks_save():
    one, two = Machine("h1", [None]), Machine("h2", [None])
    found = cluster(one, two)
    found.when(lambda: one.pending and two.pending, lambda: found.off("h2"))
    found.when(lambda: one.heard.count("round") == 2, lambda: setattr(two, "up", True))
    tell = found.coordinator._send_to_round

    def sent(members: Any, command: Any) -> None:
        interrupt(found)  # at the same moment
        tell(members, command)

    found.when(
        lambda: one.heard.count("round") == 2, lambda: setattr(found.coordinator, "_send_to_round", sent)
    )
    assert found.coordinator.train() == 130
    assert one.heard.count("request") == 1  # a second one would end them at once


def test_ctrl_c_before_the_start_takes_back_what_was_made(capsys):
    one, two = Machine("h1"), Machine("h2", answers={"begin": None})
    found = cluster(one, two)
    found.when(lambda: "begin" in two.heard, lambda: interrupt(found))
    assert found.coordinator.train() == 130
    assert "stopped by SIGINT before the training began" in capsys.readouterr().err
    assert "withdraw" in one.heard


@pytest.mark.parametrize("dry_run_steps", [0, 2])
def test_ctrl_c_in_a_round(dry_run_steps, capsys):
    one, two = Machine("h1", [None]), Machine("h2", [None])
    found = cluster(one, two, least=2, dry_run_steps=dry_run_steps)
    found.when(lambda: one.pending and two.pending, lambda: interrupt(found))
    assert found.coordinator.train() == 130
    again = "rankless train --resume --run runs/x --hosts h1,h2 --min-hosts 2"
    said = f"stopped by SIGINT; saved after step 4; continue with: {again}"
    assert (said in capsys.readouterr().err) == (not dry_run_steps)
    assert ["discard" in machine.heard for machine in (one, two)] == [bool(dry_run_steps)] * 2


@pytest.mark.parametrize("stubborn", ["asked", "abandoned"])
def test_ranks_that_do_not_end_are_not_waited_for_without_end(stubborn):
    first = None if stubborn == "asked" else FAILED
    one, two = Machine("h1", [None, DONE], unresponsive=True), Machine("h2", [first, DONE], unresponsive=True)
    found = cluster(one, two)
    found.coordinator.grace = 0.2
    if stubborn == "asked":
        found.when(lambda: one.pending, lambda: interrupt(found))
    assert found.coordinator.train() == (130 if stubborn == "asked" else 0)


def test_a_host_that_cannot_run_its_ranks_is_left_out(capsys):
    full = {"problems": ["runs/x/.job: No space left on device"]}
    one, two = Machine("h1", [FAILED, DONE]), Machine("h2", [full])
    found = cluster(one, two)
    found.when(lambda: "round" in two.heard, lambda: two.answers.update(begin=full))
    assert found.coordinator.train() == 0
    assert "lost h2 (runs/x/.job: No space left on device)" in capsys.readouterr().err
    assert two.heard.count("round") == 1


def test_devices_that_computed_wrongly_are_not_used_again(capsys):
    """One of three on one host, and the only one of another, which is not asked to come back."""
    wrong = {"code": LEFT_OUT, "cause": "rank 1 on h1 (CPU) is excluded after a silent error in step 6"}
    asked: dict[str, list[tuple[int, list[int]]]] = {"h1": [], "h2": []}

    def round_of(name: str, failed: dict[str, Any], left_out: list[int]) -> Any:
        def answer(request: dict[str, Any]) -> dict[str, Any]:
            asked[name].append((request["ranks"], request.get("left_out", [])))
            is_first = len(asked[name]) == 1
            return {"end": {"failed": failed, "step": 4}, "left_out": left_out} if is_first else {"end": DONE}

        return answer

    one, two = Machine("h1"), Machine("h2")
    one.answers["round"] = round_of("h1", {"1": wrong, "0": {"code": LOST_PEER, "cause": "lost"}}, [1])
    two.answers["round"] = round_of("h2", {"3": {**wrong, "cause": "rank 3"}}, [0])
    found = cluster(one, two)
    for member, host in zip(found.coordinator.pool.members, parse_hosts("h1:3,h2:1"), strict=True):
        member.host = host
    assert found.coordinator.train() == 0
    assert asked == {"h1": [(3, []), (2, [1])], "h2": [(1, [])]}
    assert "lost h2; restarting from the newest checkpoint on h1" in capsys.readouterr().err


def test_too_few_that_can_run_their_ranks_is_an_error():
    one, two = Machine("h1", [None]), Machine("h2", [{"problems": ["no space left"]}])
    assert problems(cluster(one, two, least=2)) == ("h2: no space left",)


def test_a_host_that_the_others_do_not_reach_any_more_is_left_out(capsys):
    machines = [Machine(f"h{number}", [FAILED, DONE]) for number in (1, 2, 3)]
    found = cluster(*machines)

    def reached_but(targets: dict[str, Any], cut: set[str]) -> dict[str, Any]:
        return {"value": {i: reached(() if i in cut else one["ports"]) for i, one in targets.items()}}

    def apart() -> None:
        for number, machine in enumerate(machines):
            cut = {"1"} if number != 1 else {"0", "2"}
            machine.answers["reach"] = lambda request, cut=cut: reached_but(request["targets"], cut)

    found.when(lambda: "round" in machines[2].heard, apart)
    assert found.coordinator.train() == 0
    assert "lost h2 (the other hosts cannot reach it)" in capsys.readouterr().err
    assert [machine.heard.count("round") for machine in machines] == [2, 1, 2]


def test_no_progress_three_times_ends_it(capsys):
    one = Machine("h1", [FAILED])
    assert cluster(one, Machine("h2", [FAILED])).coordinator.train() == 1
    error = capsys.readouterr().err
    assert "rank 0 was killed by SIGKILL; giving up after 3 restarts without a new checkpoint" in error
    assert one.heard.count("round") == 5  # the first one got to step 4


def test_what_hosts_have_saved_that_are_all_lost_is_not_guessed(capsys):
    """All lose their connection in the first round, and come back."""
    machines = [Machine(name, [None, DONE]) for name in ("h1", "h2")]
    found = cluster(*machines)
    found.when(
        lambda: all(one.pending for one in machines), lambda: [found.off(one.name) for one in machines]
    )
    lost = found.coordinator._report_losses

    def back() -> None:
        lost()
        if all(member.lost for member in found.coordinator.pool.members):
            for machine in machines:
                machine.up = True

    found.coordinator._report_losses = back  # type: ignore[method-assign]
    assert found.coordinator.train() == 0
    error = capsys.readouterr().err
    assert "nothing was saved" not in error
    again = "restarting from the newest checkpoint (if any) on the hosts that come back"
    assert f"lost h1, h2; {again}\n" in error


@pytest.mark.parametrize("saves", [True, False])
def test_losing_all_hosts_repeatedly_only_ends_the_run_without_progress(saves, capsys):
    """How far they came they can only say when they are back."""
    one = Machine("h1", [*[None] * 6, DONE])

    def holds(_: object) -> dict[str, Any]:
        rounds = one.heard.count("round")
        return {"exists": rounds > 0, "has_run": rounds > 0, "step": 10 * rounds if saves else None}

    one.answers["holds"] = holds
    found = cluster(one)
    pump = found.coordinator.pool.pump

    def pumped(seconds: float) -> None:
        pump(min(seconds, 0.001))
        one.up = True
        if one.pending:
            found.off("h1")

    found.coordinator.pool.pump = pumped  # type: ignore[method-assign]
    assert found.coordinator.train() == (0 if saves else 1)
    assert ("giving up" in capsys.readouterr().err) is not saves


def test_a_stop_without_an_answer_does_not_claim_that_nothing_was_saved(capsys):
    one = Machine("h1", [None], unresponsive=True)
    found = cluster(one)
    found.when(lambda: one.pending, lambda: (interrupt(found), found.off("h1")))
    assert found.coordinator.train() == 130
    assert (
        "stopped by SIGINT; the newest checkpoint, if any, is on the lost hosts; " in capsys.readouterr().err
    )


@pytest.mark.parametrize("missing", [True, False])
def test_a_silent_host_is_lost_soon_only_where_ranks_miss_it(missing):
    """The client's own cable may be out: then nothing is wrong between the hosts."""
    two = Machine("h2")
    pool = connected(Machine("h1"), two)
    pool.missing, two.up = missing, False
    for seconds, is_lost in ((12, missing), (20, True)):
        two.channel.since -= seconds
        pool.pump(0)
        assert [bool(member.lost) for member in pool.members] == [False, is_lost]


def test_a_host_whose_process_hangs_is_lost(monkeypatch):
    """Its supervisor lives and answers; the process says for how long nobody has looked at its ranks."""
    monkeypatch.setenv("RANKLESS_PATIENCE", "70")
    machines = [Machine("h1"), Machine("h2"), Machine("h3")]
    pool = connected(*machines)
    pool.members[0].answered -= 75
    for machine, seconds in zip(machines[1:], (60, 75), strict=True):
        machine.channel.answer({"beat": seconds})
    pool.pump(0.1)
    said = "its process did not respond for 70 s"
    assert [member.lost for member in pool.members] == [said, "", said]


def test_a_process_says_for_how_long_nobody_has_looked_at_its_ranks():
    process = HostProcess(io.BytesIO())

    def beats(count: int) -> list[int]:
        events = process.events = io.BytesIO()
        process.source = ['{"do": "beat"}\n'] * count
        process._read()
        return [json.loads(line)["beat"] for line in events.getvalue().splitlines()]

    assert beats(2) == [0, 0], "between rounds there are none"
    process.in_round = True
    assert beats(3) == [1, 2, 3]
    process._reset_unwatched()
    assert beats(1) == [1]


def test_a_process_whose_supervisor_is_stopped_ends(monkeypatch):
    """It holds the run's lock, and the host could not come back."""
    process, slept, killed = HostProcess(io.BytesIO()), list[float](), list[int]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 50:
            process.silent = 0  # a word

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(number))
    process._watch_supervisor()
    assert killed == [signal.SIGKILL] and 120 < len(slept) < 160


def test_a_client_that_was_asleep_itself_loses_no_host():
    one = Machine("h1")
    pool = connected(one)
    one.up = False
    pool._checked -= 100
    pool.members[0].answered = one.channel.since = one.channel.since - 100
    pool.pump(0)
    assert not pool.members[0].lost


def test_an_old_reply_is_not_taken_for_a_new_one():
    late = Machine("h1", answers={"clock": None})
    pool = connected(late)
    pool.order(pool.members[0], messages.Clock())
    late.channel.answer({"reply_to": 1, "time": 0})
    assert pool.ask(pool.members, messages.Discard(), 5) == {0: messages.Answer(reply_to=2)}


def test_two_names_of_one_machine():
    found = cluster(Machine("h1"), Machine("h2"))
    for machine in found.machines.values():
        facts = machine.reply("facts", {"recipe": "", "run": ""})
        machine.answers["facts"] = {"value": {**facts["value"], "machine": "same"}}
    assert problems(found) == ("h1, h2: these are the same machine; list it once, such as h1:2",)


def test_how_a_host_was_lost_that_had_much_to_say(capsys):
    pool = connected(Machine("h1"))
    noise = {"err": base64.b64encode("größe \x1b[2J\n".encode()).decode()}
    for event in (noise, {"ended": -9}):
        pool._take(pool.members[0], msgspec.convert(event, messages.Event))
    assert pool.members[0].lost == "its process was killed by SIGKILL"
    assert capsys.readouterr().err == "[h1] größe \\x1b[2J\n"


def test_a_line_without_end_is_shown_in_parts(capsys):
    pool = connected(Machine("h1"))
    for _ in range(3):
        pool._take(pool.members[0], messages.Event(err=b"x" * 60_000))
    assert len(pool.members[0].lines["err"].rest) < 100_000
    assert "[h1] " in capsys.readouterr().err


def test_a_host_that_prints_without_end_keeps_nobody_from_ctrl_c():
    pool, taken = connected(Machine("h1")), list[object]()

    def take(member: object, event: object) -> None:
        taken.append(event)
        pool._events.put((pool.members[0].channel, {}))

    pool._take = take  # type: ignore[method-assign]
    take(None, None)
    pool.pump(0.1)
    assert 1 < len(taken) < 100_000


def test_a_host_that_cannot_be_used_names_the_line_to_run():
    """All the reasons are in ``test_doctor_hosts.py``."""
    said = "me@h1: Permission denied (publickey)."
    (problem,) = problems(cluster(Machine("h1", up=False, why=said)))
    assert problem.startswith(f"h1: cannot be used ({said}); run ssh-copy-id h1")


def test_stopped_by_one_host_stops_all():
    assert cluster(Machine("h1", [STOPPED]), Machine("h2", [STOPPED])).coordinator.train() == 85


@pytest.mark.processes
def test_ctrl_c_in_a_comparison_is_an_interrupt_and_no_error(tmp_path, capsys):
    (tmp_path / "ssh").write_text("#!/bin/sh\nkill -INT $PPID\nexec sleep 0.5\n")
    (tmp_path / "ssh").chmod(0o755)
    assert main(["verify", "digits", "--hosts", "h1", "--ssh", str(tmp_path / "ssh")]) == 130
    assert capsys.readouterr().err == "stopped by SIGINT before the training began\ninterrupted\n"
