"""What the coordinator of several hosts does about what they answer, and about what they do not."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from harness_for_hosts import ACCESS, DONE, FAILED, STOPPED, Cluster, Machine, cluster, interrupt, reached

from rankless.cli import main
from rankless.errors import INTERRUPTED, LOST_PEER, UserError
from rankless.launch.hosts import coordinator, host_pool, messages
from rankless.launch.hosts.host import HostProcess
from rankless.launch.hosts.host_pool import HostPool
from rankless.launch.hosts.names import Host, parse_hosts
from rankless.launch.job import LEFT_OUT


def test_a_run_to_its_end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with cluster(monkeypatch, Machine("h1"), Machine("h2")) as found:
        assert found.coordinator.train() == 0
    out, err = capsys.readouterr()
    assert out == "connecting to h1, h2\nthe report\nthe run directory is on h1, h2\n"
    assert err == ""


def test_a_host_that_could_not_save_the_end_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = {"h1": 240, "h2": 40, "h3": 240}
    hosts = [Machine(name) for name in steps]
    with cluster(monkeypatch, *hosts) as found:

        def held(step: int) -> Any:
            """A run that is new at the start, and there at the end."""
            return lambda _: {"exists": False, "has_run": False, "step": step if hosts[0].joined else None}

        for host in hosts:
            host.answers["holds"] = held(steps[host.name])
        assert found.coordinator.train() == 0
    out, err = capsys.readouterr()
    assert "the run directory is on h1, h3\n" in out
    assert err == "warning: h2 has the run only up to step 40 of 240; copy it from another host\n"


def test_a_start_that_fails_on_one_host_leaves_nothing_on_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    second = Machine("h2", answers={"begin": {"problems": ["runs/x: not a run directory"]}})
    with cluster(monkeypatch, Machine("h1"), second) as found:
        with pytest.raises(UserError) as error:
            found.coordinator.train()
        assert error.value.problems == ("h2: runs/x: not a run directory",)
        assert "withdraw" in found.machines["h1"].heard
        assert not found.machines["h1"].joined


def test_hosts_that_no_other_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = Machine("h2", answers={"listen": {"value": {}}})
    with cluster(monkeypatch, Machine("h1"), deaf) as found, pytest.raises(UserError) as error:
        found.coordinator.train()
    assert "h2: cannot be reached by h1 at any of its addresses (it has none)" in str(error.value)


def test_a_host_that_is_lost_and_comes_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = Machine("h1", [None, None, DONE]), Machine("h2", [None, DONE])
    with cluster(monkeypatch, one, two) as found:
        found.when(lambda: one.pending and two.pending, lambda: found.off("h2"))
        pump, rounds = found.coordinator.pool.pump, []

        def pumped(seconds: float) -> None:
            pump(seconds)
            rounds.append(one.heard.count("round"))
            if one.heard.count("round") == 2:
                two.up = True

        found.coordinator.pool.pump = pumped  # type: ignore[method-assign]
        assert found.coordinator.train() == 0
    error = capsys.readouterr().err
    assert "lost h2 (no route)" in error
    assert "without h2; restarting from the newest checkpoint on h1\n" in error
    assert "h2 is back" in error
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
def test_a_host_that_comes_back_and_cannot_join_ends_no_round(
    bad: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = Machine("h1", [None, None]), Machine("h2", [None])
    with cluster(monkeypatch, one, two) as found:
        found.when(lambda: one.pending and two.pending, lambda: found.off("h2"))
        pump, seen = found.coordinator.pool.pump, []

        def pumped(seconds: float) -> None:
            pump(seconds)
            if one.heard.count("round") == 2:
                two.up, two.answers = True, bad
                seen.append(1)
                if len(seen) == 300 and one.channel is not None:
                    one.channel.end(DONE)

        found.coordinator.pool.pump = pumped  # type: ignore[method-assign]
        assert found.coordinator.train() == 0
    assert one.heard.count("request") == 0
    assert one.heard.count("round") == 2
    assert capsys.readouterr().err.count("h2 cannot join") == int(None not in bad.values())


def test_ctrl_c_while_a_host_joins_lets_the_ranks_save(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = Machine("h1", [None]), Machine("h2", [None])
    with cluster(monkeypatch, one, two) as found:
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


def test_ctrl_c_before_the_start_takes_back_what_was_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = Machine("h1")
    with cluster(monkeypatch, one, Machine("h2", answers={"begin": None})) as found:
        found.when(lambda: "begin" in found.machines["h2"].heard, lambda: interrupt(found))
        assert found.coordinator.train() == 130
    assert "stopped by SIGINT before the training began" in capsys.readouterr().err
    assert "withdraw" in one.heard


def test_ctrl_c_in_a_round(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = Machine("h1", [None]), Machine("h2", [None])
    with cluster(monkeypatch, one, two, least=2) as found:
        found.when(lambda: one.pending and two.pending, lambda: interrupt(found))
        assert found.coordinator.train() == 130
    again = "rankless train --resume --run runs/x --hosts h1,h2 --min-hosts 2"
    assert f"stopped by SIGINT; saved after step 4; continue with: {again}" in capsys.readouterr().err


@pytest.mark.parametrize("stubborn", ["asked", "abandoned"])
def test_ranks_that_do_not_end_are_not_waited_for_without_end(
    stubborn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "GRACE", 0.2)
    one, two = Machine("h1", [None, DONE]), Machine("h2", [None if stubborn == "asked" else FAILED, DONE])
    with cluster(monkeypatch, one, two) as found:
        channel_end = host_pool.Channel.end  # type: ignore[attr-defined]
        monkeypatch.setattr(host_pool.Channel, "end", lambda *_: None)  # never
        if stubborn == "asked":
            found.when(lambda: one.pending, lambda: interrupt(found))
            assert found.coordinator.train() == 130
        else:
            assert found.coordinator.train() == 0
    assert channel_end


def test_a_host_that_cannot_run_its_ranks_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = {"problems": ["runs/x/.job: No space left on device"]}
    one, two = Machine("h1", [FAILED, DONE]), Machine("h2", [full])
    with cluster(monkeypatch, one, two) as found:
        found.when(lambda: "round" in two.heard, lambda: two.answers.update(begin=full))
        assert found.coordinator.train() == 0
    assert "lost h2 (runs/x/.job: No space left on device)" in capsys.readouterr().err
    assert two.heard.count("round") == 1


def test_devices_that_computed_wrongly_are_not_used_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of three on one host, and the only one of another, which is not asked to come back."""
    wrong = {"code": LEFT_OUT, "cause": "rank 1 on h1 (CPU) is left out after a silent error in step 6"}
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
    with cluster(monkeypatch, one, two) as found:
        hosts = parse_hosts("h1:3,h2:1")
        for member, host in zip(found.coordinator.pool.members, hosts, strict=True):
            member.host = host
        assert found.coordinator.train() == 0
    assert asked == {"h1": [(3, []), (2, [1])], "h2": [(1, [])]}
    assert "without h2; restarting from the newest checkpoint on h1" in capsys.readouterr().err


def test_too_few_that_can_run_their_ranks_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = Machine("h1", [None]), Machine("h2", [{"problems": ["no space left"]}])
    with cluster(monkeypatch, one, two, least=2) as found, pytest.raises(UserError) as error:
        found.coordinator.train()
    assert error.value.problems == ("h2: no space left",)


def reached_but(targets: dict[str, Any], cut: set[str]) -> dict[str, Any]:
    return {"value": {i: reached(() if i in cut else one["ports"]) for i, one in targets.items()}}


def test_a_host_that_the_others_do_not_reach_any_more_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machines = [Machine(f"h{number}", [FAILED, DONE]) for number in (1, 2, 3)]
    with cluster(monkeypatch, *machines) as found:

        def apart() -> None:
            for number, machine in enumerate(machines):
                cut = {"1"} if number != 1 else {"0", "2"}
                machine.answers["reach"] = lambda request, cut=cut: reached_but(request["targets"], cut)

        found.when(lambda: "round" in machines[2].heard, apart)
        assert found.coordinator.train() == 0
    assert "lost h2 (the other hosts cannot reach it)" in capsys.readouterr().err
    assert [machine.heard.count("round") for machine in machines] == [2, 1, 2]


def test_no_progress_three_times_ends_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = Machine("h1", [FAILED])
    with cluster(monkeypatch, one, Machine("h2", [FAILED])) as found:
        assert found.coordinator.train() == 1
    error = capsys.readouterr().err
    assert "rank 0 was killed by SIGKILL; 3 restarts saved no new checkpoint; giving up" in error
    assert one.heard.count("round") == 5  # the first one got to step 4


def lose_all(found: Cluster, *machines: Machine) -> None:
    """Let all lose their connection in the first round, and come back."""

    def off() -> None:
        for machine in machines:
            found.off(machine.name)

    found.when(lambda: all(machine.pending for machine in machines), off)
    lost = found.coordinator._report_losses

    def back() -> None:
        lost()
        if all(member.lost for member in found.coordinator.pool.members):
            for machine in machines:
                machine.up = True

    found.coordinator._report_losses = back  # type: ignore[method-assign]


def test_what_hosts_have_saved_that_are_all_lost_is_not_guessed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = Machine("h1", [None, DONE]), Machine("h2", [None, DONE])
    with cluster(monkeypatch, one, two) as found:
        lose_all(found, one, two)
        assert found.coordinator.train() == 0
    error = capsys.readouterr().err
    assert "nothing was saved" not in error
    again = "restarting from the newest checkpoint, if there is one, on the hosts that come back"
    assert f"without h1, h2; {again}\n" in error


@pytest.mark.parametrize("saves", [True, False])
def test_losing_all_hosts_again_and_again_is_hopeless_only_without_progress(
    saves: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """How far they came they can only say when they are back."""
    one = Machine("h1", [*[None] * 6, DONE])

    def holds(_: object) -> dict[str, Any]:
        rounds = one.heard.count("round")
        return {"exists": rounds > 0, "has_run": rounds > 0, "step": 10 * rounds if saves else None}

    one.answers["holds"] = holds
    with cluster(monkeypatch, one) as found:
        pump = found.coordinator.pool.pump

        def pumped(seconds: float) -> None:
            pump(min(seconds, 0.001))
            one.up = True
            if one.pending:
                found.off("h1")

        found.coordinator.pool.pump = pumped  # type: ignore[method-assign]
        assert found.coordinator.train() == (0 if saves else 1)
    assert ("giving up" in capsys.readouterr().err) is not saves


def test_a_stop_that_no_host_has_answered_does_not_say_that_nothing_was_saved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = Machine("h1", [None])
    with cluster(monkeypatch, one) as found:
        monkeypatch.setattr(host_pool.Channel, "end", lambda *_: None)
        found.when(lambda: one.pending, lambda: (interrupt(found), found.off("h1")))
        assert found.coordinator.train() == 130
    assert "stopped by SIGINT; the newest checkpoint, if any, is on the lost hosts; " in capsys.readouterr().err


@pytest.mark.parametrize("missing", [True, False])
def test_a_silent_host_is_lost_soon_only_where_ranks_miss_it(
    missing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's own cable may be out: then nothing is wrong between the hosts."""
    with cluster(monkeypatch, Machine("h1"), Machine("h2")) as found:
        everyone = found.coordinator.pool
        everyone.connect(everyone.members)
        everyone.wait_ready()
        everyone.missing = missing
        found.machines["h2"].up = False
        channel = found.machines["h2"].channel
        assert channel is not None
        channel.since -= 12
        everyone.pump(0)
        assert [bool(member.lost) for member in everyone.members] == [False, missing]
        channel.since -= 20
        everyone.pump(0)
        assert [bool(member.lost) for member in everyone.members] == [False, True]


def test_a_host_whose_process_hangs_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its supervisor lives and answers; the process says for how long nobody has looked at its ranks."""
    monkeypatch.setenv("RANKLESS_PATIENCE", "70")
    with cluster(monkeypatch, Machine("h1"), Machine("h2"), Machine("h3")) as found:
        everyone = found.coordinator.pool
        everyone.connect(everyone.members)
        everyone.wait_ready()
        everyone.members[0].answered -= 75
        for name, seconds in (("h2", 60), ("h3", 75)):
            channel = found.machines[name].channel
            assert channel is not None
            channel.answer({"beat": seconds})
        everyone.pump(0.1)
        said = "its process has hung for 70 s"
        assert [member.lost for member in everyone.members] == [said, "", said]


def test_a_process_says_for_how_long_nobody_has_looked_at_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    events = io.BytesIO()
    process = HostProcess(events)

    def beats(count: int) -> list[int]:
        events.seek(0)
        events.truncate()
        monkeypatch.setattr(sys, "stdin", io.StringIO('{"do": "beat"}\n' * count))
        process._read()
        return [json.loads(line)["beat"] for line in events.getvalue().splitlines()]

    assert beats(2) == [0, 0], "between rounds there are none"
    process.in_round = True
    assert beats(3) == [1, 2, 3]
    process._reset_unwatched()
    assert beats(1) == [1]


def test_a_process_whose_supervisor_is_stopped_ends(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_client_that_was_asleep_itself_loses_no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(monkeypatch, Machine("h1")) as found:
        everyone = found.coordinator.pool
        everyone.connect(everyone.members)
        everyone.wait_ready()
        channel = found.machines["h1"].channel
        assert channel is not None
        found.machines["h1"].up = False
        everyone._checked -= 100
        everyone.members[0].answered = channel.since = channel.since - 100
        everyone.pump(0)
        assert not everyone.members[0].lost


def test_a_dry_run_leaves_nothing_whatever_comes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = Machine("h1", [None]), Machine("h2", [None])
    with cluster(monkeypatch, one, two, dry_run_steps=2) as found:
        found.when(lambda: one.pending and two.pending, lambda: interrupt(found))
        assert found.coordinator.train() == 130
    assert "discard" in one.heard
    assert "discard" in two.heard


def test_an_old_reply_is_not_taken_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Machine("h1", answers={"clock": None})
    with cluster(monkeypatch, late) as found:
        everyone = found.coordinator.pool
        everyone.connect(everyone.members)
        everyone.wait_ready()
        everyone.order(everyone.members[0], messages.Clock())
        assert late.channel is not None
        late.channel.answer({"reply_to": 1, "time": 0})
        assert everyone.ask(everyone.members, messages.Discard(), 5) == {0: messages.Answer(reply_to=2)}


@pytest.mark.parametrize("text", ["::1", "fe80::1", "2001:db8::1"])
def test_an_ipv6_address_without_brackets(text: str) -> None:
    with pytest.raises(UserError, match=rf"needs brackets; expected \[{text}\]"):
        parse_hosts(text)


def test_two_names_of_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(monkeypatch, Machine("h1"), Machine("h2")) as found:
        for machine in found.machines.values():
            facts = machine.reply("facts", {"recipe": "", "run": ""})
            assert facts is not None
            machine.answers["facts"] = {"value": {**facts["value"], "machine": "same"}}
        with pytest.raises(UserError, match="h1, h2: are the same machine; use it only once, as in h1:2"):
            found.coordinator.train()


def printed(monkeypatch: pytest.MonkeyPatch, *events: dict[str, Any]) -> HostPool:
    with cluster(monkeypatch, Machine("h1")) as found:
        everyone = found.coordinator.pool
        everyone.connect(everyone.members)
        everyone.wait_ready()
        for event in events:
            everyone._take(everyone.members[0], msgspec.convert(event, messages.Event))
        return everyone


def test_how_a_host_was_lost_that_had_much_to_say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = {"err": base64.b64encode("größe \x1b[2J\n".encode()).decode()}
    everyone = printed(monkeypatch, noise, {"ended": -9})
    assert everyone.members[0].lost == "its process was killed by SIGKILL"
    assert capsys.readouterr().err == "[h1] größe \\x1b[2J\n"


def test_a_line_without_end_is_shown_in_parts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    part = {"err": base64.b64encode(b"x" * 60_000).decode()}
    everyone = printed(monkeypatch, part, part, part)
    assert len(everyone.members[0].lines["err"].rest) < 100_000
    assert "[h1] " in capsys.readouterr().err


def test_a_host_that_prints_without_end_keeps_nobody_from_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(monkeypatch, Machine("h1")) as found:
        everyone = found.coordinator.pool
        everyone.connect(everyone.members)
        everyone.wait_ready()
        taken: list[object] = []

        def take(member: object, event: object) -> None:
            taken.append(event)
            everyone._events.put((everyone.members[0].channel, {}))  # type: ignore[arg-type]

        monkeypatch.setattr(everyone, "_take", take)
        take(None, None)
        everyone.pump(0.1)
        assert 1 < len(taken) < 100_000


@pytest.mark.parametrize(
    ("said", "does"),
    [
        ("me@h1: Permission denied (publickey).", "ssh-copy-id h1"),
        ("Host key verification failed.", "ssh h1 once by hand"),
        ("/opt/python: No module named rankless", "--sync, or install rankless "),
        ("bash: line 1: python3: command not found", "--python PATH"),
    ],
)
def test_a_host_that_cannot_be_used_names_the_line_to_run(
    said: str, does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(monkeypatch, Machine("h1", up=False)) as found:
        monkeypatch.setattr(
            host_pool.Channel,
            "start",
            lambda self, *_: self.put({"lost": said}),  # type: ignore[attr-defined]
        )
        with pytest.raises(UserError) as error:
            found.coordinator.train()
    assert error.value.problems[0].startswith(f"h1: cannot be used ({said}); ")
    assert does in error.value.problems[0]


def test_stopped_by_one_host_stops_all(monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(monkeypatch, Machine("h1", [STOPPED]), Machine("h2", [STOPPED])) as found:
        assert isinstance(found, Cluster)
        assert found.coordinator.train() == 85


def test_hosts_are_written_as_they_were_given() -> None:
    assert [str(host) for host in parse_hosts("a,b:4,c::/x,[::1]:2")] == ["a", "b:4", "c::/x", "[::1]:2"]
    assert Host("[fe80::1]").address == "fe80::1"
    assert ACCESS.options == ()


def test_ctrl_c_in_a_comparison_is_an_interrupt_and_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(coordinator.Coordinator, "train", lambda _: INTERRUPTED)
    assert main(["verify", "digits", "--hosts", "h1,h2"]) == 130
    assert capsys.readouterr().err == "interrupted\n"
