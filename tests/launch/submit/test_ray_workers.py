"""A training on Ray: what the workers are sent, and, where Ray is installed, a real cluster."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankless import cli
from rankless.launch.submit import ray
from rankless.launch.submit.request import Request
from rankless.models.weights_files.weights import digest_file
from rankless.runs.directory import RunDirectory

FAULTS = Path(__file__).parents[2] / "support" / "faults"  # where the small task is
RECIPE = """\
task: small_task_for_faults:Small
batch: {images: 8, micro: 2}
epochs: 1
precision: fp32
"""


def test_what_is_submitted_can_be_read():
    request = Request("my boxes.yaml", ("optim.lr=0.1",), 1, 4, "/data/runs/x", (), "my-boxes", 2)
    text = ray.described(request, ray.Settings("auto", "/home/me", "my-boxes-1"))
    assert text == (
        "address:   auto\n"
        "workers:   4, each with 2 CPUs, and a GPU if available\n"
        "folder:    /home/me\n"
        "job:       my-boxes-1\n"
        "restarts:  at most 10\n"
        "each runs: python -m rankless train 'my boxes.yaml' optim.lr=0.1 --out /data/runs/x --devices 4\n"
    )


def test_workers_compute_on_what_was_asked_for_here(monkeypatch):
    settings = ray.Settings("auto", "/home/me", "job-1")
    monkeypatch.setenv("RANKLESS_CPU", "1")
    job = {"RANKLESS_JOB_ID": "job-1"}
    assert ray.work(Request("digits"), settings)["variables"] == {**job, "RANKLESS_CPU": "1"}
    monkeypatch.delenv("RANKLESS_CPU")
    assert ray.work(Request("digits"), settings)["variables"] == job


@pytest.mark.parametrize(
    ("cluster", "expected"), [({"CPU": 8.0}, {"CPU": 2}), ({"CPU": 8.0, "GPU": 4.0}, {"CPU": 2, "GPU": 1})]
)
def test_a_rank_takes_a_gpu_where_there_is_one(cluster, expected):
    assert ray._resources(Request("digits", devices=4, cpus=2), cluster) == expected
    with pytest.raises(ray.UserError, match=r"--devices: 5 ranks need .* has"):
        ray._resources(Request("digits", devices=5, cpus=2), cluster)


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="ray is installed")
def test_ray_that_is_not_installed_is_one_sentence(capsys):
    assert cli.main(["submit", "ray", "digits", "--address", "auto"]) == 2
    assert "error: ray: not installed here" in capsys.readouterr().err


def test_all_mistakes_are_sentences(capsys):
    assert cli.main(["submit", "ray", "digits", "epochz=1", "--address", "auto", "--devices", "x"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.startswith("error: ") for line in err.splitlines()] == [True, True]


@pytest.fixture(scope="module")
def address():
    """A cluster of two raylets with one core each."""
    pytest.importorskip("ray", reason="ray is not installed")
    from ray.cluster_utils import Cluster

    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    cluster.add_node(num_cpus=1)
    cluster.add_node(num_cpus=1)
    yield cluster.address
    cluster.shutdown()


def trained(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    (folder / "small.yaml").write_text(RECIPE)
    path = os.pathsep.join(filter(None, (str(FAULTS), os.environ.get("PYTHONPATH", ""))))
    return subprocess.run(
        [sys.executable, "-m", "rankless", *words],
        cwd=folder,
        env={**os.environ, "RANKLESS_CPU": "1", "PYTHONPATH": path, **more},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.processes
@pytest.mark.timeout(900)  # Ray's workers take long to start where there are few cores
@pytest.mark.filterwarnings("default")  # Ray's own
def test_a_real_cluster_trains_the_same_weights(address, tmp_path):
    """The ranks' path goes along with a worker's own environment, which a raylet had when it started."""
    path = {"PYTHONPATH": os.pathsep.join((str(FAULTS), os.environ.get("PYTHONPATH", "")))}
    alone = trained(tmp_path, "train", "small.yaml", "--out", "alone", "--devices", "1")
    assert alone.returncode == 0, alone.stderr
    words = ("submit", "ray", "small.yaml", "--address", address, "--devices", "2")
    done = trained(tmp_path, *words, "--out", "run", **path)
    assert done.returncode == 0, done.stderr
    digests = [
        digest_file(RunDirectory(tmp_path / name).step_directory(5) / "model.safetensors")
        for name in ("alone", "run")
    ]
    assert digests[0] == digests[1]
    again = trained(tmp_path, *words, "--out", "run", **path)
    assert again.returncode == 2, again.stderr
    many = trained(tmp_path, *words[:-1], "3", "--out", "many", **path)
    assert many.returncode == 2
    assert "3 ranks need 3 CPUs, but the cluster has 2" in many.stderr
