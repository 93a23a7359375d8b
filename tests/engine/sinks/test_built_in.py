"""The sinks that come with Rankless, read back by the libraries that people look at them with."""

from __future__ import annotations

import csv
import importlib.util
import json
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from rankless.engine.sinks.background import BackgroundSink
from rankless.engine.sinks.numbers import flat, of_scores, of_step
from rankless.engine.sinks.sink import BUILT_IN, RunStart, Sink, Sinks, sink_class
from rankless.errors import UserError

RECIPE = {"epochs": 2, "batch": {"images": 8, "micro": 4}, "data": {"root": "digits"}}
NAMES = ("cat", "a|b: ç")


def step(number: int) -> dict[str, Any]:
    return {
        "step": number, "epoch": number / 2, "lr": 0.5, "loss": 1.0 / number, "count": 8.0, "skipped": True,
        "parts": {"box": 0.25 * number},
        "timing": {"seconds": 0.125, "waited": 0.0, "time": 1.7e9, "ranks": [1.0, 2.0]},
    }  # fmt: skip


def scores(ap: float) -> dict[str, Any]:
    per_class = {name: {"AP": ap / 2, "AP50": None} for name in NAMES}
    return {"AP": ap, "AP75": None, "loss": 2.0, "computed_in": "fp32", "per_class": per_class}


def trained(run: Path, name: str, pause: float = 0.0) -> None:
    """Four steps, killed after the third, and ``pause`` seconds later gone on with after the second."""
    for first, last, ends in ((0, 3, False), (2, 4, True)):
        time.sleep(pause if ends else 0)
        sinks = Sinks([], {name: sink_class(name)})
        run.mkdir(exist_ok=True)
        sinks.start(RunStart(run, RECIPE, first, 4, 2))
        for number in range(first + 1, last + 1):
            sinks.step(step(number))
            if number % 2 == 0:
                sinks.scores(number, scores(number / 8), True)
        sinks.event("end" if ends else "warning", last, "so much")
        assert sinks._users, "it was dropped"
        sinks.close()


def test_the_names_of_numbers() -> None:
    assert of_step(step(2)) == {
        "train/epoch": 1.0, "train/lr": 0.5, "train/loss": 0.5, "train/count": 8.0, "train/box": 0.5,
        "time/seconds": 0.125, "time/waited": 0.0,
    }  # fmt: skip
    assert of_scores(scores(0.5)) == {
        "val/AP": 0.5, "val/loss": 2.0, "val/cat/AP": 0.25, "val/a|b: ç/AP": 0.25,
    }  # fmt: skip
    assert dict(flat(RECIPE)) == {
        "epochs": "2", "batch.images": "8", "batch.micro": "4", "data.root": "digits",
    }  # fmt: skip


def test_an_evaluation_that_is_made_again_has_one_row(tmp_path: Path) -> None:
    for unscored in (False, True):
        sink = sink_class("csv")()
        sink.start(RunStart(tmp_path, RECIPE, 2 * unscored, 4, 2, unscored=unscored))
        sink.scores(2, scores(0.5), True)
    with (tmp_path / "scores.csv").open(newline="", encoding="utf-8") as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["2"]


def test_csv_is_read_by_pythons_own_reader(tmp_path: Path) -> None:
    trained(tmp_path / "run", "csv")
    with (tmp_path / "run" / "steps.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["1", "2", "3", "4"]
    assert [float(row["loss"]) for row in rows] == [1.0, 1 / 2, 1 / 3, 1 / 4]
    assert [float(row["box"]) for row in rows] == [0.25, 0.5, 0.75, 1.0]
    with (tmp_path / "run" / "scores.csv").open(newline="", encoding="utf-8") as file:
        evaluations = list(csv.DictReader(file))
    assert [(row["step"], row["AP"], row["a|b: ç/AP"]) for row in evaluations] == [
        ("2", "0.25", "0.125"), ("4", "0.5", "0.25"),
    ]  # fmt: skip


@pytest.mark.slow
def test_tensorboard_is_read_by_its_own_reader(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trained(tmp_path / "run", "tensorboard")
    found = EventAccumulator(str(tmp_path / "run" / "tensorboard"), purge_orphaned_data=True)
    found.Reload()
    losses = {event.step: event.value for event in found.Scalars("train/loss")}
    assert losses == {number: pytest.approx(1 / number) for number in (1, 2, 3, 4)}
    assert len(found.Scalars("train/loss")) == 4, "step 3, made twice, is shown once"
    assert [(event.step, event.value) for event in found.Scalars("val/AP")] == [(2, 0.25), (4, 0.5)]
    assert [event.value for event in found.Scalars("val/cat/AP")] == [0.125, 0.25]
    (text,) = found.Tensors("events/end/text_summary")
    assert text.step == 4 and text.tensor_proto.string_val[0] == b"so much"
    recipe = found.Tensors("recipe/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| batch.images | 8 |" in recipe
    kinds = [node.op for node in tensorflow_graph(found).node]
    assert kinds.count("aten::_convolution") == 21  # of yolov4-tiny, in its paper


def tensorflow_graph(found: Any) -> Any:
    from tensorboard.compat.proto.graph_pb2 import GraphDef

    return GraphDef.FromString(found._graph)


def test_a_network_that_is_not_traced_is_a_sentence_in_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink, before = sink_class("tensorboard")(), torch.get_rng_state()
    sink.start(RunStart(tmp_path, {**RECIPE, "task": "nowhere:Task"}, 0, 4, 1))
    sink.close()
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    (text,) = found.Tensors("graph/text_summary")
    assert b"no graph, because the network cannot be traced (" in text.tensor_proto.string_val[0]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.processes  # it asks which processor this is
def test_mlflow_is_read_by_its_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    trained(tmp_path / "run", "mlflow")
    client = MlflowClient((tmp_path / "mlruns").as_uri())
    (experiment,) = [one for one in client.search_experiments() if one.name == "rankless"]
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == "run"
    assert run.data.params == dict(flat(RECIPE))
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert {one.step: one.value for one in history} == {number: 1 / number for number in (1, 2, 3, 4)}
    assert run.data.metrics["val/AP"] == 0.5 and run.data.metrics["val/a_b_ ç/AP"] == 0.25


def records(path: Path) -> Iterator[bytes]:
    """The records of a .wandb file: LevelDB's log format behind a header of seven bytes."""
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    at, record = 7, b""
    while at + 7 <= len(data):
        if (left := -at % 32768) and left < 7:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def written(path: Path, kind: Any) -> list[Any]:
    """The messages in a file, once its last one is there: a process of the library's writes them."""
    until = time.monotonic() + 60
    while True:
        messages = [kind.FromString(data) for data in records(path)]
        if messages and messages[-1].HasField("exit"):
            return messages
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.processes
def test_wandb_is_read_by_its_own_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    trained(tmp_path / "run", "wandb", pause=1.1)  # its folders are named by the second
    logged: dict[int, dict[str, Any]] = {}
    ids = set()
    for path in sorted((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")):
        for record in written(path, wandb_internal_pb2.Record):
            if record.HasField("run"):
                ids.add(record.run.run_id)
            if record.HasField("history"):
                items = record.history.item
                row = {"".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}
                logged.setdefault(int(row["_step"]), {}).update(row)
    assert len(ids) == 1, "the parts of a run are one run"
    assert {number: row["train/loss"] for number, row in logged.items()} == {n: 1 / n for n in (1, 2, 3, 4)}
    assert logged[4]["val/AP"] == 0.5 and logged[2]["val/cat/AP"] == 0.125


class Slow(Sink):
    """A sink whose server is gone: a call does not return before ``gate`` opens."""

    def __init__(self) -> None:
        self.gate, self.taken = threading.Event(), list[int]()

    def step(self, entry: Mapping[str, Any]) -> None:
        self.gate.wait(60)
        if entry["step"] == 3:
            raise ConnectionError("refused")
        self.taken.append(entry["step"])


def test_a_server_that_is_gone_holds_nothing_up() -> None:
    slow = Slow()
    background = BackgroundSink(slow, closing=0.05)
    for number in (1, 2):
        background.step(step(number))  # would wait for a minute
    assert slow.taken == []
    with pytest.raises(TimeoutError, match=r"some data was not sent within 0.05 s of the end"):
        background.close()
    slow.gate.set()


def test_a_background_sink_keeps_the_order_and_raises_an_error_at_the_next_call() -> None:
    slow = Slow()
    slow.gate.set()
    background = BackgroundSink(slow, closing=60)
    for number in (1, 2, 3):
        background.step(step(number))
    background._thread.join(60)
    assert slow.taken == [1, 2]
    with pytest.raises(ConnectionError, match="refused"):
        background.step(step(4))
    slow = Slow()
    slow.gate.set()
    whole = BackgroundSink(slow, closing=60)
    whole.step(step(1))
    whole.close()
    assert slow.taken == [1]
    assert not whole._thread.is_alive()


@pytest.mark.parametrize("name", sorted(name for name, known in BUILT_IN.items() if known.library))
def test_a_missing_library_is_one_sentence(name: str) -> None:
    if importlib.util.find_spec(name) is not None:
        pytest.skip(f"{name} is installed")
    with pytest.raises(UserError) as error:
        sink_class(name)
    (problem,) = error.value.problems
    assert problem.startswith(f"--sink {name}: needs {name}")
    assert problem.endswith(f"run `pip install 'rankless[{name}]'`")


def test_a_full_disk_drops_the_sink_and_nothing_else(tmp_path: Path) -> None:
    sinks = Sinks([], {"csv": sink_class("csv")})
    sinks.start(RunStart(tmp_path, RECIPE, 0, 4, 1))
    (tmp_path / "steps.csv").symlink_to("/dev/full")
    sinks.step(step(1))
    assert not sinks._users
    sinks.close()
