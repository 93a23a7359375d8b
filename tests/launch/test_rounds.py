"""Rounds of ranks: which failures are worth another start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rankless.errors import LOST_PEER
from rankless.launch.rounds import Failure, Progress, RoundEnd, supervise


class Machine:
    """Hosts whose rounds fail with the given exceptions and steps."""

    def __init__(self, rounds: list[tuple[str, int]], code: int) -> None:
        self.progress = Progress(0)
        self.ends = [
            RoundEnd(failed={1: Failure(code, f"rank 1 ended: {text}", ["its traceback"], text)}, step=step)
            for text, step in rounds
        ]
        self.begun = 0

    def rounds(self) -> Iterator[RoundEnd]:
        for end in self.ends:
            self.begun += 1
            yield end

    def record(self, end: RoundEnd) -> None:
        self.progress.count(end.step)

    def resumes(self, end: RoundEnd) -> str:
        return f"step {end.step}"


@pytest.mark.parametrize(
    ("rounds", "code", "begun"),
    [
        ([("ValueError: 3 (a.py:1)", 0)] * 9, 1, 2),
        ([("ValueError: 3 (a.py:1)", step) for step in (1, 2, 3, 3, 3)], 1, 4),  # while steps are saved
        ([(f"ValueError: {number}", 0) for number in range(9)], 1, 4),
        ([("", 0)] * 9, -9, 4),  # killed
        ([("", 0)] * 9, LOST_PEER, 4),
    ],
)
def test_the_same_exception_is_raised_once_again_and_then_shown(rounds, code, begun, capsys):
    machine, said = Machine(rounds, code), []
    end = supervise(machine, said.append)
    assert machine.begun == begun
    assert end is machine.ends[begun - 1]
    assert said[-1].startswith(f"rank 1 ended: {rounds[begun - 1][0]}; giving up")
    assert capsys.readouterr().err == "its traceback\n"
