"""What came of a round: read from the replies of all hosts."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankless.launch.agent import culprit
from rankless.launch.hosts.gang import Member
from rankless.launch.job import LOST_PEER
from rankless.launch.rank_job import error_in


def is_failed(reply: Mapping[str, Any]) -> bool:
    """Whether the ranks of a host did not end as they should."""
    return bool(reply.get("codes") or reply.get("problems"))


@dataclass(frozen=True)
class RoundEnd:
    """How a round ended.

    Attributes:
        replies: of the hosts, by their indices.
        lost: hosts that were lost in it.
        regrouping: whether it was asked to end so that a host may join.
    """

    replies: Mapping[int, Mapping[str, Any]]
    lost: Sequence[Member]
    regrouping: bool

    @property
    def notes(self) -> list[dict[str, Any]]:
        """What the ranks left."""
        return [note for reply in self.replies.values() for note in reply.get("notes", ())]

    @property
    def is_finished(self) -> bool:
        """Whether all steps are done."""
        return any(note.get("finished") for note in self.notes)

    @property
    def is_failed(self) -> bool:
        """Whether a rank or a host was lost."""
        return bool(self.lost) or any(map(is_failed, self.replies.values()))

    @property
    def step(self) -> int:
        """The newest step that is saved anywhere."""
        return max([reply.get("step", 0) for reply in self.replies.values()], default=0)

    @property
    def stopped_by(self) -> signal.Signals | None:
        """The signal that somebody sent to a host or to a rank."""
        names = [reply["signal"] for reply in self.replies.values() if reply.get("signal")]
        numbers = [note["signal"] for note in self.notes if note.get("signal")]
        if self.regrouping:
            return None  # that was ours
        return signal.Signals[names[0]] if names else signal.Signals(numbers[0]) if numbers else None

    @property
    def why(self) -> str:
        """The reason, as a clause."""
        if self.lost:
            return f"without {', '.join(member.name for member in self.lost)}"
        return str(self._of_ranks("causes").get(self.blamed, "the ranks ended"))

    @property
    def blamed(self) -> str:
        """The number of the rank that is the cause; empty without one."""
        codes = {int(rank): code for rank, code in self._of_ranks("codes").items()}
        return str(culprit(codes)) if codes else ""

    @property
    def traceback(self) -> list[str]:
        """What that rank's log ends with."""
        return list(self._of_ranks("tracebacks").get(self.blamed, ()))

    @property
    def deaths(self) -> list[dict[str, Any]]:
        """Of ranks, with the arguments of :func:`rankless.launch.record.record_death`."""
        causes = self._of_ranks("causes")
        codes = self._of_ranks("codes").items()
        return [
            {"rank": int(rank), "code": code, "text": causes[rank]}
            for rank, code in codes
            if code != LOST_PEER
        ]

    def raise_problems(self) -> None:
        """Raise what ranks reported as the user's to fix.

        Raises:
            UserError: there is some.
        """
        if error := error_in(self.notes):
            raise error

    def _of_ranks(self, what: str) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for reply in self.replies.values():
            merged |= reply.get(what, {})
        return merged
