"""Anchors: as good as trying everything on small data, never worse than scikit-learn, whatever the order."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.cluster import KMeans
from torchvision.ops import box_iou

from rankless.data.anchors import average_iou, box_sizes, kmeans_anchors
from rankless.data.builtin.digits import DigitScenes
from rankless.data.datasets.annotated import BoxedImages, GroundTruth
from rankless.data.datasets.detection import DetectionExamples, open_images
from rankless.data.index.raw import RawBuilder
from rankless.data.index.validation import validate
from rankless.errors import UserError
from rankless.recipe.schema import Data
from support.examples_for_loader import Made

SIDES = st.integers(4, 400).map(lambda side: side / 4)


def by_torchvision(sizes: np.ndarray, priors: np.ndarray) -> float:
    first, second = (torch.from_numpy(np.concatenate((-s, s), 1)) for s in (sizes, priors))
    return float(box_iou(first, second).max(1).values.mean())


@given(
    sizes=st.lists(st.tuples(SIDES, SIDES), min_size=1), priors=st.lists(st.tuples(SIDES, SIDES), min_size=1)
)
def test_average_iou_against_torchvision(sizes: list, priors: list) -> None:
    expected = by_torchvision(np.array(sizes), np.array(priors))
    assert average_iou(sizes, priors) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_close_to_the_best_there_is(count: int) -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        sizes = np.exp(rng.uniform(3, 4.5, (8 - count, 2))).round(2)
        places = list(itertools.product(sorted(set(sizes[:, 0])), sorted(set(sizes[:, 1]))))
        shared = np.minimum(sizes[:, None], np.array(places)[None]).prod(2)
        iou = shared / (sizes.prod(1)[:, None] + np.array(places).prod(1) - shared)
        best = max(
            iou[:, list(some)].max(1).mean() for some in itertools.combinations(range(len(places)), count)
        )
        found = average_iou(sizes, kmeans_anchors(sizes, count, seed))
        assert found >= 0.95 * best


def test_clusters_that_lie_apart_are_found() -> None:
    rng = np.random.default_rng(0)
    centers = np.array([[10.0, 12], [80, 20], [25, 90], [150, 160]])
    sizes = (centers[:, None] * np.exp(rng.normal(0, 0.03, (4, 200, 2)))).reshape(-1, 2)
    found = np.array(kmeans_anchors(sizes, 4, 5))
    assert np.abs(found / centers - 1).max() < 0.01  # both from the smallest area to the largest


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 6, 9])
def test_not_worse_than_scikit_learn(count: int) -> None:
    rng = np.random.default_rng(count)
    side, shape = np.exp(rng.uniform(2.5, 5.5, 2000)), np.exp(rng.normal(0, 0.4, 2000))
    sizes = np.stack((side * shape, side / shape), 1)
    centers = np.exp(KMeans(count, n_init=5, random_state=0).fit(np.log(sizes)).cluster_centers_)
    assert average_iou(sizes, kmeans_anchors(sizes, count, 0)) >= average_iou(sizes, centers)


@settings(settings.get_profile("files"))
@given(
    st.lists(st.tuples(SIDES, SIDES), min_size=4, max_size=60, unique=True), st.randoms(use_true_random=False)
)
def test_the_order_changes_nothing_and_repeats_count(sizes: list, random) -> None:
    found = kmeans_anchors(sizes, 4, 1)
    areas = [w * h for w, h in found]
    assert areas == sorted(areas) and len(found) == 4
    mixed = sizes * 3
    random.shuffle(mixed)
    assert kmeans_anchors(mixed, 4, 1) == found


def test_as_many_sizes_as_anchors_are_the_anchors() -> None:
    sizes = [(10.0, 20.0), (10.25, 20.0), (300.5, 2.0), (7.0, 7.0)]
    by_area = tuple(sorted(sizes, key=lambda side: side[0] * side[1]))
    assert kmeans_anchors(sizes * 5, 4, 0) == by_area
    with pytest.raises(UserError, match="only 4 distinct sizes for 5 anchors"):
        kmeans_anchors(sizes * 5, 5, 0)
    with pytest.raises(UserError, match="only 0 distinct sizes"):
        kmeans_anchors(np.zeros((0, 2)), 1, 0)
    hair = [(10.0, 10.0), (10.0, np.nextafter(10.0, 11)), (10.0, np.nextafter(10.0, 9))]
    assert kmeans_anchors(hair, 3, 0) == ((10.0, 10.0),) * 3


def test_sizes_are_the_letterboxed_targets(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for folder in ("images", "labels"):
        (tmp_path / folder / "train").mkdir(parents=True)
    (tmp_path / "classes.txt").write_text("x")
    for number, size in enumerate([(90, 60), (200, 320), (31, 77)]):
        noise = rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / f"images/train/{number}.jpg")
        rows = [f"0 .5 .5 {rng.uniform(0.1, 1):.3f} {rng.uniform(0.1, 1):.3f}" for _ in range(number)]
        (tmp_path / f"labels/train/{number}.txt").write_text("\n".join(rows))
    data = open_images(Data(root=str(tmp_path)), "train", 1)
    items = [DetectionExamples(data, (64, 96), 0, None).item(index, 0) for index in range(3)]
    expected = torch.cat([item.boxes[:, 2:] - item.boxes[:, :2] for item in items]).numpy()
    for file in (tmp_path / "images/train").iterdir():
        file.write_bytes(file.read_bytes()[:800])
    assert np.abs(box_sizes(data, (64, 96)) - expected).max() < 1e-3 and len(expected) == 3


@pytest.mark.slow
def test_built_in_scenes_are_sampled() -> None:
    few = DigitScenes("train", 6, 0, (64, 64))
    boxes = torch.cat([few.read(index).boxes for index in range(6)])
    assert np.abs(box_sizes(few, (32, 128)) - (boxes[:, 2:] - boxes[:, :2]).numpy() / 2).max() < 1e-6
    many = DigitScenes("train", 10**9, 0, (32, 32))
    sizes = box_sizes(many, (32, 32))
    assert list(many._truths) == [number * 2_000_000 for number in range(500)]
    assert len(sizes) == sum(len(truth.labels) for truth in many._truths.values())


def test_difficult_and_no_boxes() -> None:
    class Hard(Made):
        boxes = torch.tensor([[0.0, 0, 10, 20], [0, 0, 30, 40], [5, 5, 5, 9]])

        def ground_truth(self, index: int) -> GroundTruth:
            return GroundTruth(self.boxes, torch.zeros(3), 100, 100, torch.tensor([True, False, False]))

    hard = Hard(pytest.fail, 1)  # no image is read
    assert box_sizes(hard, (50, 50)).tolist() == [[15, 20]]
    Hard.boxes = Hard.boxes[2:].repeat(3, 1)
    assert box_sizes(hard, (50, 50)).shape == (0, 2)


def test_flat_arrays_give_the_sizes_that_images_give_one_by_one() -> None:
    rng = np.random.default_rng(3)
    counts = [2, 0, 3, 1, 4]
    corners = rng.uniform(0, 20, (10, 2)).astype(np.float32)
    boxes = np.concatenate((corners, corners + rng.uniform(0, 9, (10, 2)).astype(np.float32)), 1)
    flags = np.array([0, 1, 0, 0, 2, 0, 0, 3, 0, 0], np.uint8)
    made = RawBuilder()
    for size in [(40, 30), (0, 0), (30, 40), (40, 30), (333, 77)]:
        made.add_image("a.jpg", size=size)
    for image, box, flag in zip(np.repeat(range(5), counts), boxes.tolist(), flags, strict=True):
        made.add_box(image, box, 0, 1, flag)
    found = validate(made.raw(names=["x"]), "voc")
    scales = [min(64 / 40, 96 / 30), 0, min(64 / 30, 96 / 40), min(64 / 40, 96 / 30), min(64 / 333, 96 / 77)]
    expected = [
        (boxes[row, 2:] - boxes[row, :2]).astype(np.float64) * scale
        for row, scale in enumerate(np.repeat(scales, counts))
        if flags[row] == 0
    ]
    np.testing.assert_array_equal(box_sizes(BoxedImages(found), (64, 96)), expected)
