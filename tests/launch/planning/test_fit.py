"""The largest micro-batch: the search by its rules, and a real one that trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankless.cli import main
from rankless.errors import UserError
from rankless.hardware.memory import peak
from rankless.launch.planning.fit import Tried, _Search, _sizes, fit
from rankless.launch.planning.measurement_worker import guarded
from rankless.recipe.load import load
from rankless.recipe.schema import Batch, Recipe
from support.small_plans import SMALL


class Imagined(_Search):
    def __init__(self, base: int, each: int, free: int, on_cpu: bool) -> None:
        super().__init__(Recipe(), 1, free, on_cpu, lambda line: None)
        self.base, self.each = base, each

    def _try(self, micro: int) -> Tried:
        taken = self.base + micro * self.each
        return Tried(micro, taken, 1.0) if taken <= self.free else Tried(micro, problem="out of memory")


@given(
    st.integers(1, 200),
    st.integers(1, 4),
    st.integers(0, 1000),
    st.integers(1, 100),
    st.integers(1, 6000),
    st.booleans(),
)
def test_the_search_finds_the_largest_in_few_tries(
    images: int, ranks: int, base: int, each: int, free: int, on_cpu: bool
) -> None:
    images *= ranks
    sizes = _sizes(images, ranks)
    search = Imagined(base, each, free, on_cpu)
    search.run(sizes)
    fitting = [size for size in sizes if base + size * each <= free]
    found = [one.micro for one in search.tried.values() if not one.problem]
    assert max(found, default=0) == max(fitting, default=0)
    assert len(search.tried) <= 2 * len(sizes).bit_length() + images.bit_length() + 1
    if on_cpu and len(found) > 2:  # what is known to take too much is not tried
        assert not any(one.problem == "out of memory" for one in search.tried.values())


def test_sizes_leave_a_micro_batch_to_every_device() -> None:
    assert [_sizes(12, ranks) for ranks in (1, 3, 5)] == [[1, 2, 3, 4, 6, 12], [1, 2, 3, 4], [1, 2]]
    with pytest.raises(UserError, match=r"--devices is 13, but batch\.images is 12"):
        _sizes(12, 13)


@given(st.integers(1, 300), st.sampled_from(["exact", "fast"]))
def test_partial_sums_count_as_the_ones_of_a_binary_counter(images: int, reduce: str) -> None:
    """One rank holds a sum for each one in the number of micro-batches so far, and the next gradient."""
    search = _Search(Recipe(batch=Batch(images, 1), reduce=reduce), 1, 0, False, lambda line: None)
    most = max(number.bit_count() for number in range(images)) + 1
    assert search._more_sums(1) == (max(most - 2, 0) if reduce == "exact" else 0)


def test_several_ranks_hold_fewer_partial_sums() -> None:
    batch = Batch(images=16, micro=1)
    sums = [_Search(Recipe(batch=batch), n, 0, False, lambda line: None)._more_sums(1) for n in (1, 2, 4, 8)]
    assert sums == [3, 2, 1, 0]


@pytest.mark.processes
def test_a_process_that_takes_too_much_is_ended() -> None:
    takes = "import time; held = bytearray(300 << 20); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", takes])
    try:
        with guarded(process.pid, 100 << 20) as over:
            assert process.wait(60) == -9
        assert over and over[0] > 100 << 20
        with guarded(os.getpid(), 1 << 60) as over:
            pass
        assert not over and peak() > 10 << 20
    finally:
        process.kill()
        process.wait()


@pytest.mark.processes
@pytest.mark.usefixtures("forked_pages")
def test_it_trains_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*SMALL, "data.multi_scale=0.5", "model.freeze=1 epochs", "--devices", "2", "--json"]
    assert main(["fit", *words]) == 0
    answer = json.loads(capfd.readouterr().out)
    assert answer["largest"] == 2 and [one["micro"] for one in answer["tried"]] == [1, 2]
    assert all(one["memory"] > 100 << 20 and one["speed"] > 0 for one in answer["tried"])
    assert answer["devices"] == 2 and answer["batch_norm_sees"] == 2
    assert not [*tmp_path.iterdir()]


@pytest.mark.processes
@pytest.mark.usefixtures("forked_pages")
def test_what_never_fits_is_one_sentence() -> None:
    with pytest.raises(UserError) as caught:
        fit(load("digits", SMALL), 1, lambda line: None, 54 << 20)
    (sentence,) = caught.value.problems
    assert sentence.startswith(
        "a micro-batch of 1 image does not fit into the memory of this device (0.05 GiB free)"
    )
    assert sentence.endswith("needs more than 0.05 GiB; use a smaller model or smaller images")


@pytest.mark.processes
@pytest.mark.usefixtures("forked_pages")
def test_norms_over_the_whole_batch_need_room_for_a_share_of_the_step() -> None:
    # An image of this size takes 9 MiB more, far above the noise of what a process takes in all.
    recipe = load("digits", [*SMALL, "model.image_size=256", "batch.images=6", "batch_norm=sync"])
    found = fit(recipe, 1, lambda line: None)
    assert [one.micro for one in found.tried] == [2, 4, 6]
    assert (found.largest.micro, found.as_json()["devices_needed"]) == (6, 1)
    _, middle, large = (int(one.memory or 0) for one in found.tried)
    found = fit(recipe, 1, lambda line: None, (middle + large) // 2)
    assert (found.largest.micro, found.as_json()["devices_needed"]) == (4, 2)


ONE_PIXEL = (
    *(word.replace("image_size=64", "image_size=32") for word in SMALL if not word.startswith("batch.")),
    "data.multi_scale=0",
    "model.name=yolov4-tiny-anchor-free",
)
FOUR, ONE = ("batch.images=4", "batch.micro=2"), ("batch.images=1", "batch.micro=1")


@pytest.mark.processes
@pytest.mark.usefixtures("forked_pages")
def test_micro_batches_too_small_for_batch_norm_are_passed_over(capfd: pytest.CaptureFixture[str]) -> None:
    """Its deepest map has one pixel, and PyTorch refuses the variance of one value."""
    assert main(["fit", *ONE_PIXEL, *FOUR, "--devices", "1"]) == 0
    said = capfd.readouterr().out
    assert "1          –  too small: batch norm sees one value per channel" in said
    assert "the largest that fits: batch.micro=4" in said
    assert main(["fit", *ONE_PIXEL, *ONE]) == 2
    said = capfd.readouterr().err
    assert "one value per channel even with 1 image" in said and "use a larger model.image_size" in said
