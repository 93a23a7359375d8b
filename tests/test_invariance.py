"""The measuring part of ``benchmarks/invariance.py``: what differs between two trainings, and by how much."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from invariance import PAGE, RESULTS, STOP, Seen, compared, finished, read_run, repeated, tables
from invariance_record import Job, Recorder

ROOT = Path(__file__).parents[1]

STEPS, SIZE = 3, 4
IMAGES = torch.rand(STEPS, SIZE, 3, 2, 2, generator=torch.Generator().manual_seed(3))


def seen(folder: Path, *ranks: torch.Tensor, rate: float = 0.5, scale: float = 1.0, stop: int = 0) -> Seen:
    """Train a linear network on each rank's images (steps, images, 3, 2, 2); the ranks exchange nothing."""
    folder.mkdir()
    for number, images in enumerate(ranks):
        recorder = Recorder(stop, folder, number)
        torch.manual_seed(1)
        model = nn.Sequential(nn.Flatten(), nn.Linear(12, 1))
        optimizer = torch.optim.SGD(model.parameters(), rate)
        model(torch.zeros(1, 3, 2, 2))  # as some programs measure their networks
        for batch in images:
            optimizer.zero_grad()
            (scale * model(batch).mean()).backward()
            optimizer.step()
            model.eval()(IMAGES[0])
            model.train()
        recorder.close(error="")
    (folder / "log").write_text("score 0.25\nscore 0.5\n")
    return read_run(Job("toy", len(ranks), "", "", str(folder)), "", 1.0)


def test_the_distance_is_that_of_the_weights_per_way_that_they_went(tmp_path: Path):
    """The gradient of a linear network's mean output is the mean image, so the weights are known."""
    one = seen(tmp_path / "1", IMAGES)
    found = compared(one, seen(tmp_path / "2", IMAGES))
    assert (found["images"], found["batch"], found["steps"]) == ("same", SIZE, STEPS)
    assert found["start"] == found["max"] == found["relative"] == 0
    assert found["rate"] == found["gradient"] == 1
    assert found["score"] == 0.5  # the last one
    found = compared(one, seen(tmp_path / "3", IMAGES, rate=1.0))
    means = IMAGES.double().flatten(2).mean(1).sum(0).numpy()
    gradient = np.append(means, STEPS)  # the bias
    assert found["max"] == pytest.approx(0.5 * gradient.max(), rel=1e-5)
    assert found["relative"] == pytest.approx(1, rel=1e-5)  # twice as far
    assert found["rate"] == 2
    found = compared(one, seen(tmp_path / "4", IMAGES, scale=3.0))
    assert found["gradient"] == pytest.approx(3, rel=1e-5)  # it shows how the loss is scaled
    assert found["start"] == 0


def test_images_are_compared_step_by_step_across_ranks(tmp_path: Path):
    one = seen(tmp_path / "1", IMAGES)
    halves = seen(tmp_path / "halves", IMAGES[:, :2], IMAGES[:, 2:])
    strided = seen(tmp_path / "strided", IMAGES[:, ::2], IMAGES[:, 1::2])
    later = seen(tmp_path / "later", IMAGES.flip(0))
    found = [compared(one, other) for other in (halves, strided, later)]
    assert [it["images"] for it in found] == ["same", "set", "different"]
    assert found[1]["batch"] == SIZE


def test_a_run_that_ended_early_repeats_the_beginning(tmp_path: Path):
    one = seen(tmp_path / "1", IMAGES)
    assert repeated(one, seen(tmp_path / "2", IMAGES[:2])) is True
    assert repeated(one, seen(tmp_path / "3", IMAGES[1:])) is False


def test_what_a_rank_said_is_the_problem_of_its_run(tmp_path: Path):
    Recorder(0, tmp_path, 0).close(error="ImportError: no such program")
    (tmp_path / "log").write_text("")
    run = read_run(Job("toy", 2, "", "", str(tmp_path)), "not finished after 1 s", 1.0)
    assert compared(run, run) == {"problem": "ImportError: no such program"}


@pytest.mark.processes
def test_a_run_that_takes_too_long_is_ended():
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    assert finished([process], 0.2) == "not finished after 0 s"
    assert process.poll() is not None


def test_the_page_shows_the_results():
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    page = PAGE.read_text(encoding="utf-8")
    assert tables(found) in page
    assert f"{STOP} of" in page
