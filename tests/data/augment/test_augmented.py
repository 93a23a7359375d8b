"""A detector's training image: boxes are where their pixels are, whatever is combined, and all is keyed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankless.data.augment.augmented import Augmented, Augmenter
from rankless.data.augment.resample import clip
from rankless.recipe.schema import Augment
from rankless.structures import IGNORED_LABEL, Sample

SIZE = (96, 128)
OFF = Augment(preset="none")
COLORS = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 1]], dtype=torch.uint8) * 255
HALF = dict.fromkeys(("blur", "noise", "jpeg", "mixup_probability", "copy_paste"), 0.5)
HEAVY = Augment(preset="heavy", close_mosaic=0, crop=0.4, **HALF)


class Colored:
    """Two black images with one filled box each, of the color of its label, 0 or 1."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, number: int) -> Sample:
        rng = np.random.default_rng(2 * self.seed + number)
        height, width = rng.integers(60, 400, 2).tolist()
        x, y = int(rng.integers(width - 30)), int(rng.integers(height - 30))
        right, bottom = int(rng.integers(x + 20, width + 1)), int(rng.integers(y + 20, height + 1))
        image = torch.zeros(3, height, width, dtype=torch.uint8)
        image[:, y:bottom, x:right] = COLORS[number][:, None, None]
        return Sample(image, torch.tensor([[x, y, right, bottom]]).float(), torch.tensor([number]))


def noisy(number: int) -> Sample:
    rng = np.random.default_rng(number)
    height, width = rng.integers(40, 300, 2).tolist()
    first = rng.uniform(0, 0.7, (number, 2)) * (width, height)
    boxes = np.concatenate((first, first + rng.uniform(2, 12, (number, 2))), 1).astype(np.float32)
    image = torch.from_numpy(rng.integers(0, 256, (3, height, width), dtype=np.uint8))
    return Sample(image, torch.from_numpy(boxes), torch.full((number,), number))


@dataclass
class Drawn:
    read: Callable[[int], Sample]


def view(
    read: Callable[[int], Sample],
    options: Augment,
    *,
    index: int = 0,
    count: int = 2,
    seed: int = 1,
    epoch: int = 0,
    last: bool = False,
) -> Augmented:
    return Augmenter(Drawn(read), range(count), SIZE, options, (seed, epoch), last).augmented(index)


def extent(image: torch.Tensor, label: int) -> np.ndarray | None:
    """The smallest box around a color, xyxy; None if it is not seen."""
    seen = ((image > 127) == (COLORS[label] > 127)[:, None, None]).all(0).numpy()
    rows, columns = np.flatnonzero(seen.any(1)), np.flatnonzero(seen.any(0))
    return np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]) if len(rows) else None


def check(image: torch.Tensor, boxes: torch.Tensor, labels: torch.Tensor, *, tight: bool) -> None:
    limits = np.array([SIZE[1], SIZE[0]])
    assert bool((boxes >= 0).all()) and bool((boxes[:, 2:] <= torch.from_numpy(limits)).all())
    assert bool((boxes[:, 2:] > boxes[:, :2]).all()) and len(set(labels.tolist())) == len(labels)
    for label in (0, 1):
        found = extent(image, label)
        if label not in labels:
            if found is not None:
                cut = (found[:2] <= 0).any() or (found[2:] >= limits).any()
                assert cut, "a box that is wholly seen is missing"
            continue
        box = boxes[labels == label][0].numpy()
        if min(box[2:] - box[:2]) < 4:
            continue  # half may be blended away
        if found is None:
            assert not tight
            continue
        assert (found[:2] >= box[:2] - 1.5).all() and (found[2:] <= box[2:] + 1.5).all()
        inside = (box[:2] > 0).all() and (box[2:] < limits).all()
        if tight or inside:  # the border cuts a turned box's corner, and its frame is not the rest's
            assert np.abs(found - box).max() < 2.5


MOVES = Augment(preset="none", flip=0.5, flip_vertical=0.5, scale=0.6, translate=0.3)
WARPS = {"rotate": 180.0, "shear": 30.0, "perspective": 0.15}


@given(seed=st.integers(0, 10**6), crop=st.sampled_from([1.0, 0.2]))
def test_boxes_are_their_pixels_when_nothing_turns(seed: int, crop: float) -> None:
    image, boxes, labels, _ = view(Colored(seed), replace(MOVES, crop=crop), seed=seed)
    check(image, boxes, labels, tight=True)


@given(seed=st.integers(0, 10**6), parts=st.sets(st.sampled_from(["moves", "crop", *WARPS]), min_size=1))
def test_boxes_enclose_their_pixels_when_all_turns(seed: int, parts: set[str]) -> None:
    options = MOVES if "moves" in parts else OFF
    options = replace(options, **{name: WARPS[name] for name in WARPS if name in parts})
    options = replace(options, crop=0.3 if "crop" in parts else 1.0)
    image, boxes, labels, _ = view(Colored(seed), options, seed=seed)
    check(image, boxes, labels, tight=False)


@given(seed=st.integers(0, 10**6))
def test_pasted_boxes_are_where_their_pixels_are(seed: int) -> None:
    image, boxes, labels, _ = view(Colored(seed), replace(MOVES, copy_paste=1.0), seed=seed)
    assert labels.tolist() in ([], [0], [1], [0, 1])
    if 1 in labels:  # on top, so all of it is seen
        check(image, boxes[labels == 1], labels[labels == 1], tight=True) if 0 not in labels else None
        found = extent(image, 1)
        box = boxes[labels == 1][0].numpy()
        assert min(box[2:] - box[:2]) < 4 or np.abs(found - box).max() < 2.5


@pytest.mark.slow
def test_a_blend_mixes_two_finished_images_and_has_the_boxes_of_both() -> None:
    options = Augment(preset="none", flip=0.5, rotate=20.0, value=0.5, noise=0.5)
    shares = []
    for epoch in range(60):
        image, boxes, labels, where = view(noisy, replace(options, mixup=2.0), index=1, count=2, epoch=epoch)
        one = view(noisy, options, index=1, count=2, epoch=epoch)
        other = view(noisy, options, index=0, count=2, epoch=epoch)
        assert torch.equal(boxes, torch.cat((one[1], other[1]))) and where == one[3]
        assert torch.equal(labels, torch.cat((one[2], other[2])))
        a, b = one[0].double(), other[0].double()
        share = float(((image.double() - b) * (a - b)).sum() / ((a - b) ** 2).sum())
        assert (
            float((share * a + (1 - share) * b - image.double()).abs().max()) < 0.8
        )  # rounded, and so is the share
        shares.append(share)
    # Beta(2, 2): mean 1/2, variance 1 / 20
    assert abs(np.mean(shares) - 0.5) < 0.1 and np.var(shares) == pytest.approx(0.05, rel=0.5)


def test_a_blends_partner_is_any_other() -> None:
    partners = set()
    for epoch in range(25):
        labels = view(noisy, Augment(preset="none", mixup=1.0), index=2, count=5, epoch=epoch)[2].tolist()
        assert labels[:2] == [2, 2]  # the small boxes all stay
        partners.add(tuple(labels[2:]))
    assert partners == {(), (1,), (3,) * 3, (4,) * 4}


@pytest.mark.slow
@pytest.mark.parametrize("part", ["mixup", "copy_paste", "mosaic"])
def test_chances_are_as_large_as_they_are_called(part: str) -> None:
    plain = [view(noisy, OFF, index=3, count=9, epoch=epoch)[0] for epoch in range(100)]
    options = {"mixup": {"mixup": 8.0, "mixup_probability": 0.3}}.get(part, {part: 0.3})
    chosen = Augment(preset="none", **options)
    changed = [view(noisy, chosen, index=3, count=9, epoch=epoch)[0] for epoch in range(100)]
    count = sum(not torch.equal(one, other) for one, other in zip(plain, changed, strict=True))
    assert 14 < count < 46  # three and a half standard deviations of 30


@pytest.mark.slow
def test_the_last_epochs_show_every_image_alone() -> None:
    alone = replace(HEAVY, mosaic=0.0, mixup=0.0, copy_paste=0.0)
    differ = 0
    for index in range(8):
        closed = view(noisy, HEAVY, index=index, count=8, last=True)
        expected = view(noisy, alone, index=index, count=8)
        assert all(torch.equal(one, other) for one, other in zip(closed[:3], expected[:3], strict=True))
        differ += not torch.equal(view(noisy, HEAVY, index=index, count=8)[0], closed[0])
    assert differ == 8


@pytest.mark.slow
def test_a_image_is_a_function_of_seed_epoch_and_index() -> None:
    def all_of(order: list[int], seed: int = 1, epoch: int = 0) -> list[Augmented]:
        found = {index: view(noisy, HEAVY, index=index, count=6, seed=seed, epoch=epoch) for index in order}
        return [found[index] for index in range(6)]

    first = all_of(list(range(6)))
    for one, other in zip(first, all_of([5, 3, 0, 1, 2, 4]), strict=True):
        assert all(torch.equal(one[part], other[part]) for part in range(3)) and one[3] == other[3]
    worn = [view(noisy, replace(OFF, noise=1.0), epoch=epoch)[0] for epoch in range(2)]
    assert not torch.equal(*worn)
    for changed in (all_of(list(range(6)), epoch=1), all_of(list(range(6)), seed=2)):
        assert not any(torch.equal(one[0], other[0]) for one, other in zip(first, changed, strict=True))


@pytest.mark.slow
def test_threads_do_not_change_a_bit() -> None:
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append([view(noisy, HEAVY, index=index, count=9) for index in range(0, 9, 2)])
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(*found, strict=True):
        assert all(torch.equal(one[part], other[part]) for part in range(3))


def test_a_part_switched_off_leaves_the_others() -> None:
    options = Augment(preset="none", flip=0.5, rotate=20.0, scale=0.3)
    for index in range(3):
        plain = view(noisy, options, index=index, count=6)
        for more in ({"blur": 1.0}, {"noise": 1.0}, {"jpeg": 1.0}, {"value": 0.5}):
            other = view(noisy, replace(options, **more), index=index, count=6)
            assert torch.equal(plain[1], other[1]) and plain[3] == other[3]
            assert not torch.equal(plain[0], other[0])


@given(
    shape=st.sampled_from([(1, 1), (1, 500), (500, 1), (3, 2), (700, 30)]),
    boxes=st.booleans(),
    epoch=st.integers(0, 10**6),
    most=st.booleans(),
)
def test_odd_images_with_everything_on(shape: tuple[int, int], boxes: bool, epoch: int, most: bool) -> None:
    height, width = shape

    def read(number: int) -> Sample:
        gray = torch.full((3, height, width), 40 * number, dtype=torch.uint8)
        whole = torch.tensor([[0.0, 0, width, height]])[: int(boxes)]
        return Sample(gray, whole, torch.full((len(whole),), number))

    options = HEAVY
    if most:
        options = replace(HEAVY, rotate=180.0, shear=89.0, perspective=0.249, scale=3.0, translate=0.9)
    image, found, labels, _ = view(read, options, count=3, epoch=epoch)
    assert image.shape == (3, *SIZE) and image.dtype == torch.uint8 and image.is_contiguous()
    assert len(found) == len(labels) and found.dtype == torch.float32 and labels.dtype == torch.int64
    assert bool(found.isfinite().all()) and bool((found >= 0).all())
    assert bool((found[:, 2:] <= torch.tensor([128.0, 96])).all())
    assert bool((found[:, 2:] > found[:, :2]).all())


def test_one_image_alone_has_no_partner() -> None:
    options = replace(HEAVY, mixup_probability=1.0, copy_paste=1.0, mosaic=0.0)
    expected = view(noisy, replace(options, mixup=0.0, copy_paste=0.0), count=1)
    assert torch.equal(view(noisy, options, count=1)[0], expected[0])


def test_a_hair_outside_is_no_box() -> None:
    boxes, labels = torch.tensor([[-0.004, 3.0, 0.0, 9.0], [-0.004, 3.0, 1.0, 9.0]]), torch.tensor([3, 5])
    assert clip(boxes, labels, np.array([0, 0, 20, 20], np.float32))[1].tolist() == [5]


@given(epoch=st.integers(0, 10**6), pasted=st.sampled_from([0.0, 1.0]))
def test_boxes_to_ignore_move_like_objects_and_change_nothing_else(epoch: int, pasted: float) -> None:
    """Every image has each box twice, as an object and as a region to ignore."""

    def twice(number: int) -> Sample:
        one = noisy(number)
        regions = torch.full_like(one.labels, IGNORED_LABEL)
        return Sample(one.image, one.boxes.repeat(2, 1), torch.cat((regions, one.labels)))

    options = replace(HEAVY, copy_paste=pasted)
    image, boxes, labels, _ = view(noisy, options, index=3, count=6, epoch=epoch)
    same, found, their_labels, _ = view(twice, options, index=3, count=6, epoch=epoch)
    objects = their_labels != IGNORED_LABEL
    assert torch.equal(same, image)
    assert torch.equal(found[objects], boxes) and torch.equal(their_labels[objects], labels)
    regions = found[~objects]
    if not pasted:
        assert {*map(tuple, boxes.tolist())} <= {*map(tuple, regions.tolist())}
    assert bool((regions[:, 2:] > regions[:, :2]).all())
    assert bool((regions >= 0).all() and (regions[:, 2:] <= torch.tensor(SIZE[::-1])).all())


def test_a_sliver_of_a_region_to_ignore_is_kept() -> None:
    boxes, labels = torch.tensor([[-50.0, 3.0, 1.0, 9.0]] * 2), torch.tensor([0, IGNORED_LABEL])
    found, kept = clip(boxes, labels, np.array([0, 0, 20, 20], np.float32))
    assert found.tolist() == [[0, 3, 1, 9]] and kept.tolist() == [IGNORED_LABEL]
