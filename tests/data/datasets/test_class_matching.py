"""Classes of data among those of a model: by name, by spelling, by what the user says, and a table."""

from __future__ import annotations

import pytest
import torch

from rankless.data.datasets.annotated import GroundTruth, MatchedImages
from rankless.data.datasets.class_matching import LEFT_OUT, between_splits, match_classes, nearest_class
from rankless.errors import UserError
from rankless.inference.predict_detect import chosen_classes
from rankless.structures import Sample
from support.examples_for_loader import Made

COCO = ("person", "bicycle", "car", "motorcycle", "airplane", "couch", "dining table", "tv")
VOC = ("aeroplane", "bicycle", "car", "diningtable", "motorbike", "person", "sofa", "tvmonitor")


def test_vocs_classes_are_found_in_cocos():
    match = match_classes(VOC, COCO, (), "voc")
    assert [COCO[label] for label in match.labels] == [
        "airplane", "bicycle", "car", "dining table", "motorcycle", "person", "couch", "tv",
    ]  # fmt: skip
    assert match.notes[0] == "voc: the classes were matched with those of the model by name"
    assert "  motorbike    → motorcycle" in match.notes
    assert not any("bicycle " in note for note in match.notes)


@pytest.mark.parametrize(
    ("name", "hint"), [("aeroplane", "airplane"), ("sofa", "couch"), ("diningtable", "dining table")]
)
def test_a_class_of_voc_among_cocos_names_its_spelling(name, hint):
    assert nearest_class(name, COCO) == f"; did you mean '{hint}'?"
    with pytest.raises(UserError, match=rf"'{name}'.*did you mean '{hint}'"):
        chosen_classes([name], COCO)


def test_another_order_and_a_subset_are_told_apart():
    assert match_classes(("b", "a"), ("a", "b"), (), "x").notes == (
        "x: the classes are the same as those of the model, but in a different order",
    )
    match = match_classes(("c", "A"), ("a", "b", "c"), (), "x")
    assert match.labels == (2, 0)
    assert match.notes[1:] == ("  A  → a", "  1 of the model's 3 classes has no images: 'b'")


def test_a_spelling_never_takes_a_class_that_is_there_itself():
    assert match_classes(("Cat", "cat"), ("cat", "CAT"), (("Cat", "CAT"),), "x").labels == (1, 0)
    with pytest.raises(UserError, match="x: the model has no class 'Cat'; did you mean 'cat'"):
        match_classes(("Cat", "cat"), ("cat", "dog"), (), "x")
    with pytest.raises(UserError, match="has no class 'motorbike'"):  # which of the two?
        match_classes(("motorbike", "motorcycle"), ("motor-cycle", "dog"), (), "x")


def test_what_the_user_says_comes_first_and_may_join_or_leave_out():
    given = (("truck", "car"), ("lamp", ""))
    match = match_classes(("car", "truck", "lamp"), ("car", "dog"), given, "x")
    assert match.labels == (0, 0, LEFT_OUT)
    assert "  truck  → car" in match.notes and "  lamp   → (dropped)" in match.notes
    with pytest.raises(UserError) as found:
        match_classes(("car",), ("car", "dog"), (("cars", "car"), ("car", "dogg")), "x")
    assert "'cars' is not a class of x" in found.value.problems[0]
    assert "'dogg' is not a class of the model" in found.value.problems[1]
    assert "did you mean 'dog'" in found.value.problems[1]
    with pytest.raises(UserError, match=r"a class of x, which is supported only for data with boxes; select"):
        match_classes(("car",), ("car",), (("car", ""),), "x", may_leave_out=False)


def test_a_model_whose_classes_are_numbers_says_how_to_name_them():
    with pytest.raises(UserError, match="or import the model again with --names FILE"):
        match_classes(("cat", "dog"), ("0", "1"), (), "x")


THREE = Sample(
    torch.zeros(3, 4, 4, dtype=torch.uint8), torch.arange(12.0).view(3, 4), torch.tensor([0, 1, 2])
)


class Three(Made):
    def ground_truth(self, index: int) -> GroundTruth:
        flags, areas = torch.tensor([0, 1, 2]), torch.tensor([9.0, 8, 7])
        return GroundTruth(THREE.boxes, THREE.labels, 4, 4, flags, areas)


def test_images_have_the_models_labels():
    match = match_classes(("car", "lamp", "truck"), ("dog", "truck", "car"), (("lamp", ""),), "x")
    images = MatchedImages(Three(lambda _: THREE, 1), match, ("dog", "truck", "car"))
    sample, truth = images.read(0), images.ground_truth(0)
    assert sample.labels.tolist() == truth.labels.tolist() == [2, 1]
    assert sample.boxes.tolist() == truth.boxes.tolist() == [[0, 1, 2, 3], [8, 9, 10, 11]]
    assert truth.areas.tolist() == [9, 7] and truth.flags.tolist() == [0, 2]
    assert len(images) == 1 and images.class_names == ("dog", "truck", "car")


def test_numbers_are_no_sign_of_an_import_if_classes_of_the_data_are_found():
    with pytest.raises(UserError) as found:
        match_classes(("0", "nine"), ("0", "9"), (), "x", may_leave_out=False)
    assert "--classes-map 'nine=9'" in str(found.value) and "import" not in str(found.value)


def test_in_training_it_is_the_data_whose_splits_differ(tmp_path):
    (tmp_path / "train/eel").mkdir(parents=True)
    (tmp_path / "val/zebra").mkdir(parents=True)
    for name, where in (("zebra", f"see '{tmp_path}/val/zebra'"), ("eel", f"in '{tmp_path}/train/eel'")):
        with pytest.raises(UserError) as found, between_splits(str(tmp_path), "train", "val"):
            match_classes(("0", name), ("0", "1"), (), "x", may_leave_out=False)
        assert f"'val' has classes that 'train' does not have: '{name}'" in str(found.value)
        assert where in str(found.value) and "--" not in str(found.value)
