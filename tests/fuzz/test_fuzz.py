"""Whatever comes: it works, or it is a sentence. A small part of what ``make fuzz`` runs, equal each time."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from support.fuzz import seeds
from support.fuzz.case import Case, Entry, Link
from support.fuzz.judge import Judge, Verdict
from support.fuzz.run import KINDS
from support.thorough import THOROUGH

# A process: the first import of Matplotlib asks the system for its fonts.
pytestmark = [pytest.mark.slow, pytest.mark.processes]
EACH = 100 if THOROUGH else 5
"""Cases of a kind."""
KEPT = Path(__file__).parents[2] / "build" / "fuzz"
"""Where a case that went wrong is kept, to be run again: ``make fuzz FUZZ="--again FILE"``."""


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    made = Judge()
    yield made
    made.close()


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@pytest.mark.parametrize("kind", KINDS)
def test_it_works_or_is_a_sentence(judge: Judge, kind: str) -> None:
    wrong: list[tuple[Case, Verdict]] = []

    @settings(
        max_examples=EACH, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(KINDS[kind]())
    def one(case: Case) -> None:
        verdict = judge(case)
        if not verdict.fine:
            wrong.append((case, verdict))

    one()
    if wrong:
        KEPT.mkdir(parents=True, exist_ok=True)
        for number, (case, _) in enumerate(wrong):
            (KEPT / f"test-{number}.pickle").write_bytes(pickle.dumps(case))
        reported = "\n".join(
            f"{verdict.outcome}: {case.words!r:.300}\n{verdict.detail}" for case, verdict in wrong
        )
        pytest.fail(f"{len(wrong)} of {EACH}, kept in {KEPT}:\n{reported}", pytrace=False)


# --- that what is damaged is sound before ------------------------------------------------------------------

_WEIGHTS: dict[str, Entry] = {"w": seeds.weights(), "a.png": seeds.encoded_image(), **seeds.darknet()}
_CFG: dict[str, Entry] = {"n.cfg": seeds.CFG.encode()}
_IMPORT = ("model.cfg=n.cfg", "--out", "out")
SOUND = {
    **{f"check {kind}": Case(("data", "check", "data"), make()) for kind, make in seeds.DATA.items()},
    "cfg": Case(
        ("import", "w", "--cfg", "n.cfg", "--out", "out"), {"w": seeds.darknet_weights(), **_CFG}, ("out",)
    ),
    "zip": Case(("import", "w.pt", *_IMPORT), {"w.pt": seeds.checkpoint(True), **_CFG}, ("out",)),
    "legacy": Case(("import", "w.pt", *_IMPORT), {"w.pt": seeds.checkpoint(False), **_CFG}, ("out",)),
    "digest": Case(("digest", "w"), _WEIGHTS),
    "predict": Case(("predict", "w", "a.png", "--out", "out"), _WEIGHTS, ("out",)),
    "evaluate": Case(("evaluate", "w", "--devices", "1"), _WEIGHTS),
    "export": Case(("export", "w", "--format", "darknet", "--out", "out"), _WEIGHTS, ("out",)),
    "recipe": Case(
        ("train", "r.yaml", "--devices", "1", "--run", "out"),
        {"r.yaml": seeds.RECIPE.encode(), "small.cfg": seeds.CFG.encode(), **seeds.darknet()},
        ("out",),
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_what_is_damaged_was_sound(judge: Judge, name: str) -> None:
    verdict = judge(SOUND[name])
    assert verdict.outcome == "accepted", verdict.detail


def test_a_run_goes_on(judge: Judge) -> None:
    files: dict[str, Entry] = {**seeds.run_files(), **seeds.darknet()}
    changes = tuple(name for name in files if name.startswith("run/"))
    words = ("train", "--resume", "--run", "run", "--devices", "1", "epochs=3")
    verdict = judge(Case(words, files, ("run/",), changes))
    assert verdict.outcome == "accepted" and "step 3/3" in verdict.detail, verdict.detail


# --- that the judge sees ----------------------------------------------------------------------------------


def bad(judge: Judge, misdeed: str, *, anywhere: bool = False) -> str:
    """The verdict on a command that does what the Python code ``misdeed`` does."""

    def main(_: list[str]) -> int:
        names: dict[str, object] = {}
        exec(misdeed, names)
        code = names.get("code", 0)
        assert isinstance(code, int)
        return code

    files: dict[str, Entry] = {"in/a": b"a", "link": Link("in/a"), **seeds.EVIL}
    case = Case(("digest",), files, ("out",), anywhere=anywhere)
    return judge(case, main, processor=0.3, clock=0.3).outcome


@pytest.mark.parametrize(
    ("misdeed", "outcome"),
    [
        ("", "accepted"),
        ("import sys; print('error: a', file=sys.stderr); code = 2", "refused"),
        ("code = 2", "silent"),
        ("code = 3", "exit code"),
        ("code = 1", "exit code"),
        ("1 / 0", "traceback"),
        ("raise SystemExit(2)", "traceback"),
        ("while True: pass", "hang"),
        ("import time; time.sleep(99)", "hang"),
        ("import os; os.mkfifo('out'); open('out')", "hang"),
        ("bytearray(2**31)", "memory"),
        ("import torch; torch.empty(2**31, dtype=torch.uint8).zero_()", "memory"),
        ("open('in/a', 'w').close()", "file changed"),
        ("open('link', 'w').close()", "file changed"),
        ("open('in/b', 'w').close()", "file changed"),
        ("import os; os.remove('in/a')", "file changed"),
        ("import os; os.rename('in/a', 'out')", "file changed"),
        ("try: open('../a', 'w')\nexcept OSError: pass", "file changed"),
        ("try: open('/a', 'w')\nexcept OSError: pass", "file changed"),
        ("import sys; open('out', 'w').close(); print('error: a', file=sys.stderr); code = 2", "left behind"),
        ("try:\n import os; os.system('true')\nexcept OSError: pass", "code executed"),
        ("import sys; sys.path.insert(0, '.'); import evil", "code executed"),
        ("import sys; print('error: \\x1b', file=sys.stderr); code = 2", "control characters"),
        ("print('\\u202e')", "control characters"),
        ("import sys; print('error: ' + 'x' * 9999, file=sys.stderr); code = 2", "long message"),
        ("import sys; print('error: x\\n' * 9999, end='', file=sys.stderr); code = 2", "long message"),
        ("import sys; print('Oh', file=sys.stderr); code = 2", "stray output"),
    ],
)
def test_the_judge_sees(judge: Judge, misdeed: str, outcome: str) -> None:
    before = set(Path("/").iterdir())
    assert bad(judge, misdeed) == outcome
    assert set(Path("/").iterdir()) == before
    if "'/a'" in misdeed:
        assert bad(judge, misdeed, anywhere=True) == "accepted"
