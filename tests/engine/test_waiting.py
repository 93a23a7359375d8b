"""Advice on waiting: at most once, not before a hundred steps, and only when it is much."""

from __future__ import annotations

from rankless.engine.waiting import Waiting


def advice(waited: list[float]) -> list[int]:
    waiting = Waiting(images=8)
    return [step for step, part in enumerate(waited, 1) if waiting.step({"seconds": 1.0, "waited": part})]


def test_when_it_is_reported() -> None:
    assert advice([0.5] * 300) == [100]
    assert advice([0.19] * 500) == []
    assert advice([1.0] * 20 + [0.0] * 500) == []  # 20 of the first 100, which is not more than a fifth
    # From step 201 on: 21 of the last 100 seconds are first waited when 42 such steps are among them.
    assert advice([0.0] * 200 + [0.5] * 100) == [241]


def test_the_summary_is_of_the_whole_run() -> None:
    waiting = Waiting(images=8)
    assert waiting.summary() == "0 steps in 0.0 s (without evaluations)"
    for seconds, waited in ((30.0, 0.9), (1.0, 1.0), (3.0, 0.0)):
        waiting.step({"seconds": seconds, "waited": waited})
    assert waiting.summary() == (
        "3 steps in 34.0 s (without evaluations); after the first step, 4 images/s and 25% of the time "
        "waiting for images"
    )


def test_it_says_what_to_do() -> None:
    waiting = Waiting(images=8)
    said = [waiting.step({"seconds": 2.0, "waited": 0.5}) for _ in range(100)][-1]
    assert said.startswith("training spent 50% of the last 100 steps waiting for images; ")
    assert "workers" in said and "data.cache" in said
