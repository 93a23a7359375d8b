"""A sink that logs to MLflow at ``MLFLOW_TRACKING_URI``, by default the folder ``mlruns`` next to the run."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Any

from rankless.engine.sinks.numbers import flat, of_scores, of_step
from rankless.engine.sinks.sink import RunStart, Sink
from rankless.structures import Scores

_RECORD = "mlflow-run"
"""File in the run directory that contains the ID of the MLflow run."""
_EVERY = 5.0  # seconds between two batches of numbers
_MOST_NUMBERS, _MOST_KEYS = 1000, 100  # per batch, the limits of servers
_DEFAULTS = {
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # With these limits, a lost server is noticed before the wait at the end of the run is over.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
}


class MlflowSink(Sink):
    """Logs the recipe as parameters and all numbers as metrics, in batches."""

    def __init__(self) -> None:
        self._finished = False
        for name, value in _DEFAULTS.items():
            os.environ.setdefault(name, value)
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric, self._param, self._make_client = Metric, Param, MlflowClient

    def start(self, run: RunStart) -> None:
        """Start or continue the MLflow run. Repeated steps are logged again with the same values."""
        where = os.environ.get("MLFLOW_TRACKING_URI") or (run.run.resolve().parent / "mlruns").as_uri()
        self._client = self._make_client(where)
        self._waiting: list[Any] = []
        self._sent = time.monotonic()
        record = run.run / _RECORD
        self._run = record.read_text(encoding="utf-8").strip() if run.first and record.is_file() else ""
        if self._run:
            self._client.update_run(self._run, "RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "rankless")
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        self._run = self._client.create_run(experiment, run_name=run.run.name).info.run_id
        record.write_text(self._run + "\n", encoding="utf-8")
        params = [self._param(key, value[:6000]) for key, value in flat(run.recipe)]
        for start in range(0, len(params), _MOST_KEYS):
            self._client.log_batch(self._run, params=params[start : start + _MOST_KEYS])

    def step(self, entry: Mapping[str, Any]) -> None:
        self._add(of_step(entry), entry["step"])
        if time.monotonic() - self._sent > _EVERY:
            self._send()

    def scores(self, step: int, scores: Scores, is_best: bool) -> None:
        self._add(of_scores(scores), step)
        self._send()

    def event(self, name: str, step: int, text: str) -> None:
        if name == "end":
            self._finished = True

    def close(self) -> None:
        self._send()
        self._client.set_terminated(self._run, "FINISHED" if self._finished else "KILLED")

    def _add(self, numbers: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        for name, value in numbers.items():
            self._waiting.append(self._metric(re.sub(r"[^\w\-. /]", "_", name), value, now, step))

    def _send(self) -> None:
        waiting, self._waiting, self._sent = self._waiting, [], time.monotonic()
        for start in range(0, len(waiting), _MOST_NUMBERS):
            self._client.log_batch(self._run, metrics=waiting[start : start + _MOST_NUMBERS])
