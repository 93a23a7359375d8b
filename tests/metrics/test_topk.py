"""The scores of classifiers against scikit-learn's."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rankless.metrics.topk import topk_scores


def names(classes: int) -> list[str]:
    return [f"class {label}" for label in range(classes)]


def random_answers(count: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    logs = (2 * torch.randn(count, classes, generator=rng, dtype=torch.float64)).log_softmax(1)
    return logs, torch.randint(classes, (count,), generator=rng)


@given(st.integers(1, 40), st.integers(2, 9), st.integers(0, 10_000))
def test_every_number_is_scikit_learns(count, classes, seed):
    logs, labels = random_answers(count, classes, seed)
    scores = topk_scores(logs, labels, names(classes))
    truth, found, every = labels.numpy(), logs.argmax(1).numpy(), list(range(classes))
    assert scores["top1"] == pytest.approx(sklearn.metrics.accuracy_score(truth, found))
    assert ("top5" in scores) == (classes > 5)
    if classes > 5:
        expected = sklearn.metrics.top_k_accuracy_score(truth, logs.numpy(), k=5, labels=every)
        assert scores["top5"] == pytest.approx(expected)
    probabilities = logs.double().exp().numpy()
    probabilities /= probabilities.sum(1, keepdims=True)
    assert scores["nll"] == pytest.approx(
        sklearn.metrics.log_loss(truth, probabilities, labels=every), rel=1e-9
    )
    assert scores["confusion"] == sklearn.metrics.confusion_matrix(truth, found, labels=every).tolist()
    single = sklearn.metrics.precision_recall_fscore_support(truth, found, labels=every, zero_division=0)
    occurring = np.unique(truth)
    macro = sklearn.metrics.precision_recall_fscore_support(
        truth, found, labels=occurring, zero_division=0, average="macro"
    )
    assert [scores[name] for name in ("precision", "recall", "f1")] == pytest.approx(list(macro[:3]))
    for label in every:
        row = scores["per_class"][f"class {label}"]
        assert row["support"] == single[3][label]
        for number, name in enumerate(("precision", "recall", "f1")):
            if row[name] is None:
                assert label not in occurring and (name != "precision" or label not in found)
            else:
                assert row[name] == pytest.approx(single[number][label])
    json.dumps(scores, allow_nan=False)


def test_equal_answers_rank_by_the_class():
    logs = torch.full((8, 8), math.log(1 / 8))
    scores = topk_scores(logs, torch.arange(8), names(8))
    assert scores["top1"] == 1 / 8 and scores["top5"] == 5 / 8
    assert scores["nll"] == pytest.approx(math.log(8))
    assert [row[0] for row in scores["confusion"]] == [1] * 8


def test_nonsense_is_never_right():
    logs = torch.full((2, 7), math.nan)
    scores = topk_scores(logs, torch.tensor([0, 6]), names(7))
    assert scores["top1"] == scores["top5"] == 0
    assert scores["nll"] is None  # JSON has no such number


def test_a_large_confusion_matrix_is_left_out():
    logs, labels = random_answers(50, 101, 0)
    assert "confusion" not in topk_scores(logs, labels, names(101))
    assert "confusion" in topk_scores(logs[:, :100], labels % 100, names(100))


def test_classes_of_one_name_stay_apart():
    logs, labels = random_answers(20, 3, 0)
    assert list(topk_scores(logs, labels, ["a", "b", "a"])["per_class"]) == ["a", "b", "a (2)"]


@pytest.mark.parametrize(
    ("labels", "count"), [([0, 1], 2), ([0, 1, 2], 2), ([0, 1, -1], 3), ([0, 1, 3], 3), ([], 3)]
)
def test_what_does_not_fit_is_refused(labels, count):
    logs, _ = random_answers(3, 3, 0)
    with pytest.raises(ValueError, match=r"predictions|labels"):
        topk_scores(logs, torch.tensor(labels, dtype=torch.int64), names(count))
