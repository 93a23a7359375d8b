"""Sinks observe: whatever a user's does, the run is the same, and the first error is its last."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rankless
from rankless.engine.sinks.sink import RunStart, Sink, Sinks, sink_class
from rankless.errors import UserError
from rankless.runs import journal
from rankless.runs.directory import RunDirectory

HERE = Path(__file__).parent
FILE = HERE.parents[1] / "support" / "sinks_of_a_user.py"
START = RunStart(Path("run"), {"epochs": 1}, 4, 10, 2)


class Calls(Sink):
    def __init__(self, name: str, calls: list[tuple[Any, ...]], fails: str = "") -> None:
        self.name, self.calls, self.fails = name, calls, fails

    def _note(self, method: str, *arguments: Any) -> None:
        self.calls.append((self.name, method, *arguments))
        if method == self.fails:
            raise ValueError(f"{self.name} cannot {method}")

    def start(self, run: RunStart) -> None:
        self._note("start", run.first)

    def step(self, entry: Mapping[str, Any]) -> None:
        self._note("step", entry["step"])

    def scores(self, step: int, scores: Any, is_best: bool) -> None:
        self._note("scores", step, is_best)

    def event(self, name: str, step: int, text: str) -> None:
        self._note("event", name, step, text)

    def close(self) -> None:
        self._note("close")


@pytest.mark.parametrize("method", ["start", "step", "scores", "event", "close"])
def test_a_users_sink_that_raises_is_reported_once_and_dropped(method: str) -> None:
    calls: list[tuple[Any, ...]] = []
    makers = {name: lambda name=name: Calls(name, calls, method) for name in ("a", "b")}  # type: ignore[misc]
    sinks = Sinks([Calls("own", calls)], {**makers, "good": lambda: Calls("good", calls)})
    sinks.start(START)
    for step in (5, 6):
        sinks.step({"step": step})
        sinks.scores(step, {}, True)
        sinks.event("waiting", step, "so much")
    sinks.close()
    reported = [call for call in calls if call[:3] == ("own", "event", "sink")]
    assert sorted(text.split()[2] for *_, text in reported) == ["a", "b"]
    assert all(f"cannot {method}); training continues without it" in text for *_, text in reported)
    for name in ("a", "b"):
        assert sum(call[:2] == (name, method) for call in calls) == 1
        last = [call for call in calls if call[0] == name][-1]
        assert last[1] == method
    assert [call[1] for call in calls if call[0] == "good" and call[2:3] != ("sink",)] == [
        "start", *["step", "scores", "event"] * 2, "close",
    ]  # fmt: skip


def test_an_urgent_event_does_not_wait_for_a_step_and_custom_sinks_get_it_in_their_own_thread() -> None:
    calls: list[tuple[Any, ...]] = []
    sinks = Sinks([Calls("own", calls)], {"user's": lambda: Calls("user's", calls)})
    sinks.start(START)
    thread = threading.Thread(target=sinks.urgent_event, args=("late", 5, "rank 3"))
    thread.start()
    thread.join()
    assert calls[-1] == ("own", "event", "late", 5, "rank 3") and calls[-2][1] == "start"
    sinks.step({"step": 6})
    assert calls[-3:] == [("own", "step", 6), ("user's", "event", "late", 5, "rank 3"), ("user's", "step", 6)]
    sinks.step({"step": 7})
    assert sum(call[0] == "user's" and call[1] == "event" for call in calls) == 1


def test_errors_of_built_in_sinks_end_the_run() -> None:
    sinks = Sinks([Calls("own", [], "step")])
    sinks.start(START)
    with pytest.raises(ValueError, match="own cannot step"):
        sinks.step({"step": 1})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "Recorder",
            "sink is 'Recorder': expected one of csv, .*, or 'package.module:Class' or 'file.py:Class'",
        ),
        ("tensorbord", "; did you mean 'tensorboard'?"),
        ("no_such_module:Sink", "the module 'no_such_module' cannot be imported"),
        (f"{FILE}:Sank", "has no 'Sank'; expected one of "),
        (f"{FILE}:NotOne", "but it lacks step, scores, event, close; .* inherit from rankless.Sink"),
        (f"{HERE}/gone.py:Sink", "no such file"),
    ],
)
def test_a_name_that_leads_to_no_sink(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        sink_class(name)


RECIPE = rankless.load_recipe(
    "digits",
    [
        "epochs=2", "data.train_images=12", "data.val_images=6", "batch.images=4", "batch.micro=2",
        "workers=0", "precision=fp32", "model.image_size=64", "model.width=0.25",
        "evaluate.every=1 epoch", "schedule.name=constant", "schedule.warmup=0",
    ],
)  # fmt: skip


BUILT_IN = ("csv", "tensorboard")


@pytest.mark.processes
def test_sinks_of_a_real_run_on_two_ranks_change_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    names = [f"{FILE}:{name}" for name in ("Recorder", "Fails", "Exits", "CannotBeMade")]
    assert rankless.train(replace(RECIPE, epochs=1), tmp_path / "run", devices=2, sinks=names) == 0
    printed = capfd.readouterr().out
    assert rankless.train(RECIPE, tmp_path / "plain", devices=1) == 0
    assert printed.count("Fails failed (RuntimeError: no connection)") == 1
    assert rankless.train(RECIPE, tmp_path / "run", devices=2, resume=True, sinks=[names[0], *BUILT_IN]) == 0
    runs = [RunDirectory(tmp_path / name) for name in ("plain", "run")]
    assert (runs[1].path / "steps.csv").read_text().count("\n") == 4, "a header and the steps 4 to 6"
    assert list((runs[1].path / "tensorboard").glob("events.*"))
    assert len({rankless.digest_file(run.step_directory(6) / "ema.safetensors") for run in runs}) == 1
    assert journal.numbers(runs[0].journal) == journal.numbers(runs[1].journal)
    dropped = [entry["text"] for entry in journal.read(runs[1].journal) if entry.get("event") == "sink"]
    assert [text.split(" failed")[0].rpartition(":")[2] for text in dropped] == [
        "CannotBeMade", "Fails", "Exits",
    ]  # fmt: skip
    calls = [json.loads(line) for line in (runs[1].path / "recorded.jsonl").read_text().splitlines()]
    assert [call for call in calls if call[0] == "start"] == [["start", 1, 0, 3, 2], ["start", 2, 3, 6, 2]]
    numbers = journal.numbers(runs[0].journal)
    assert [call for call in calls if call[0] == "step"] == [
        ["step", entry["step"], entry["loss"]] for entry in numbers if "step" in entry
    ]
    assert [call[:3] for call in calls if call[0] == "scores"] == [
        ["scores", entry["evaluation"], entry["scores"]] for entry in numbers if "evaluation" in entry
    ]
    assert calls[-1] == ["close"] and ["event", "end", 6] in [call[:3] for call in calls]
