"""Whole data sets: parts of them, all of them together, and new ones."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankless.curation.data_set import folder_beside, join_splits, names_below, open_data_set
from rankless.data.index.annotations import subset
from rankless.errors import UserError
from support.small_data import detection

TRAIN = [[[1, 1, 9, 9, 0], [2, 2, 8, 8, 1]], [], [[3, 3, 9, 9, 2]], [[5, 5, 50, 30, 1]]]
VAL = [[[10, 10, 20, 20, 2]]]


def of(whole, number):
    rows = whole.rows(number)
    return (
        whole.path(number),
        whole.sizes[number].tolist(),
        whole.boxes[rows].tolist(),
        whole.labels[rows].tolist(),
    )


@settings(settings.get_profile("files"), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=st.lists(st.integers(0, 3), max_size=6))
def test_a_subset_has_the_chosen_images_in_that_order(tmp_path_factory, chosen):
    root = tmp_path_factory.mktemp("data") / "d"
    whole = open_data_set(str(detection(root, {"train": TRAIN})), examined=True).splits["train"]
    part = subset(whole, chosen)
    assert [of(part, number) for number in range(len(part))] == [of(whole, number) for number in chosen]
    assert part.offsets[-1] == len(part.boxes) == len(part.flags) == len(part.areas)


def test_splits_together_take_a_image_once(tmp_path):
    root = detection(tmp_path / "d", {"train": TRAIN, "val": VAL})
    splits = open_data_set(str(root)).splits
    whole = join_splits([splits["train"], splits["val"], splits["train"]])
    wanted = [of(splits["train"], number) for number in range(4)] + [of(splits["val"], 0)]
    assert [of(whole, number) for number in range(len(whole))] == wanted
    assert names_below(str(root), whole)[-1] == "images/val-000.png"


def test_splits_of_other_classes_do_not_go_together(tmp_path):
    one = open_data_set(str(detection(tmp_path / "a", {"train": TRAIN}))).splits["train"]
    names = ["cat", "eel", "dog"]
    other = open_data_set(str(detection(tmp_path / "b", {"train": TRAIN}, names))).splits["train"]
    with pytest.raises(UserError, match=r"'cat', 'dog', 'eel'; 'cat', 'eel', 'dog'"):
        join_splits([one, other])


def test_trainval_is_no_part_beside_its_parts(tmp_path):
    data = open_data_set(str(detection(tmp_path / "d", {"train": TRAIN, "val": VAL, "trainval": VAL})))
    assert list(data.parts) == ["train", "val"]
    alone = open_data_set(str(detection(tmp_path / "e", {"trainval": VAL, "test": VAL})))
    assert list(alone.parts) == ["test", "trainval"]


def test_a_place_beside_a_folder_or_a_file_in_it(tmp_path):
    file = tmp_path / "d" / "data.yaml"
    file.parent.mkdir()
    file.touch()
    assert (
        folder_beside(str(file.parent), "fixed") == folder_beside(str(file), "fixed") == tmp_path / "d-fixed"
    )


def test_errors_stop_unless_they_are_to_be_examined(tmp_path):
    root = str(detection(tmp_path / "d", {"train": [[[1, 1, 9, 9, 7]]]}))
    with pytest.raises(UserError, match="unnamed class"):
        open_data_set(root)
    assert open_data_set(root, examined=True).splits["train"].findings.counts == {"unnamed class": 1}
    assert np.array_equal(open_data_set(root, examined=True).splits["train"].offsets, [0, 0])
