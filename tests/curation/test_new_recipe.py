"""The first recipe of a data set, by properties of the facts that it follows."""

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankless.curation.facts import Facts
from rankless.curation.new_recipe import settings, text
from rankless.errors import UserError
from rankless.recipe import load
from rankless.recipe.commented import Setting, commented

CELLS = Facts(
    root="cells",
    format="auto",
    classes="auto",
    train="train",
    val="val",
    split_note="",
    boxed=True,
    train_images=205,
    val_images=87,
    counts={"Platelets": 209, "RBC": 2382, "WBC": 214},
    height=480,
    width=640,
    is_uniform=True,
    box_side=43,
    gpus=0,
    cores=2,
    memory=8 << 30,
)
SIGNS = dataclasses.replace(
    CELLS,
    boxed=False,
    train_images=610,
    counts=dict.fromkeys(map(str, range(10)), 61),
    height=100,
    width=100,
    box_side=0,
)

names = st.text(min_size=1, max_size=12)
some_facts = st.builds(
    Facts,
    root=st.text(min_size=1, max_size=20).filter(lambda text: text.strip() != ""),
    format=st.sampled_from(["auto", "voc", "coco"]),
    classes=st.one_of(st.just("auto"), st.lists(names, min_size=1, max_size=3, unique=True)),
    train=st.sampled_from(["train", "trainval", "list.txt"]),
    val=st.just("val"),
    split_note=st.just("Divided."),
    boxed=st.booleans(),
    train_images=st.integers(10, 2_000_000),
    val_images=st.integers(1, 1000),
    counts=st.dictionaries(names, st.integers(0, 10**6), min_size=1, max_size=12),
    height=st.floats(1, 20_000),
    width=st.floats(1, 20_000),
    is_uniform=st.booleans(),
    box_side=st.floats(0, 20_000),
    gpus=st.integers(0, 16),
    cores=st.integers(1, 256),
    memory=st.just(1 << 40),
)


def recipe_of(facts):
    return load.parsed(text(facts, "my.yaml"), "my.yaml")


@pytest.mark.slow
@given(some_facts)
def test_the_text_is_a_recipe_that_fits(facts):
    recipe = recipe_of(facts)
    data = recipe.data
    assert (data.root, data.train, data.format) == (facts.root, facts.train, facts.format)
    assert recipe.task == ("detect" if facts.boxed else "classify")
    assert recipe.batch.images <= facts.train_images and recipe.batch.micro_batches >= 2
    size = recipe.model.image_size
    sides = (size,) if isinstance(size, int) else size
    assert all(side % 32 == 0 and 32 <= side <= 640 for side in sides)
    views = recipe.epochs * facts.train_images
    advice = facts.kind.advice.load()
    assert views >= advice.steps * recipe.batch.images
    assert recipe.epochs >= advice.epochs
    # One epoch less would have too few steps, or too few epochs.
    too_few = views - facts.train_images < advice.steps * recipe.batch.images
    assert too_few or recipe.epochs == advice.epochs


@pytest.mark.slow
@given(some_facts)
def test_each_line_has_a_reason(facts):
    facts = dataclasses.replace(facts, root="data", classes="auto")  # others may take several lines
    lines = text(facts, "my.yaml").split("\n")
    values = [n for n, line in enumerate(lines) if line and not re.match(r" *(#|\w+:$)", line)]
    assert len(values) == len(settings(facts))
    assert all(re.match(r" *# \S", lines[n - 1]) for n in values)


@pytest.mark.parametrize(
    ("facts", "shipped", "sections"),
    [
        (CELLS, ["blood-cells"], "model epochs batch optim ema"),
        (SIGNS, ["resnet18", ["model.image_size=96"]], "model epochs batch optim schedule loss ema"),
    ],
)
def test_the_recipe_is_near_the_shipped_one(facts, shipped, sections):
    ours, theirs = recipe_of(facts), load.load(*shipped)
    for section in sections.split():
        assert getattr(ours, section) == getattr(theirs, section)
    if facts is CELLS:
        assert (ours.data.augment.mosaic, ours.data.augment.scale) == (0.5, 0.4)


@pytest.mark.parametrize(
    ("classes", "flip"),
    [
        (["0", "1", "2"], 0),
        (["a", "b", "dog"], 0),
        (["turn_left", "turn_right", "stop"], 0),
        (["license plate"], 0),
        (["cat", "dog"], 0.5),
        (["RBC", "WBC", "bright", "template"], 0.5),
    ],
)
@pytest.mark.parametrize("facts", [CELLS, SIGNS])
def test_characters_and_sides_are_not_mirrored(facts, classes, flip):
    facts = dataclasses.replace(facts, counts=dict.fromkeys(classes, 20))
    assert recipe_of(facts).data.augment.flip == flip


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({"box_side": 20}, (320, 416)),  # 640 pixels would be needed: the largest on a CPU
        ({"box_side": 20, "gpus": 1}, (480, 640)),
        ({"box_side": 400}, (256, 320)),
        ({"box_side": 0}, (320, 416)),
        ({"is_uniform": False}, 320),
        ({"height": 640, "width": 480}, (320, 256)),
    ],
)
def test_small_boxes_get_large_inputs(changes, size):
    assert recipe_of(dataclasses.replace(CELLS, **changes)).model.image_size == size


@pytest.mark.parametrize(
    ("changes", "side"),
    [({"height": 28, "width": 28}, 32), ({"height": 300, "width": 4000}, 224), ({"height": 65}, 64)],
)
def test_a_classifiers_input_is_no_larger_than_the_images(changes, side):
    recipe = recipe_of(dataclasses.replace(SIGNS, **changes))
    assert recipe.model.image_size == side
    assert (recipe.data.augment.crop == 1) == (side == 32)


def test_many_devices_share_a_step():
    batch = recipe_of(dataclasses.replace(CELLS, cores=8)).batch
    assert batch.micro_batches == 4


def test_little_memory_gets_small_micro_batches_or_an_error():
    small = dataclasses.replace(SIGNS, height=224, width=224, cores=1, memory=1500 << 20)
    assert recipe_of(small).batch.micro == 4
    with pytest.raises(UserError, match=r"memory: 500 MiB available for 1 process; expected about"):
        settings(dataclasses.replace(small, memory=500 << 20))


def test_sections_are_opened_once():
    written = commented(
        ["head", ""],
        [
            Setting("a", 1, "one"),
            Setting("b.c.d", "no", "two"),
            Setting("b.c.e", [1, 2], "three " * 30),
            Setting("b.f", True, "four"),
            Setting("g.c", 0.5, "five"),
        ],
    )
    lines = [line for line in written.split("\n") if line and not line.strip().startswith("#")]
    assert lines == ["a: 1", "b:", "  c:", "    d: 'no'", "    e: [1, 2]", "  f: true", "g:", "  c: 0.5"]
    assert all(len(line) <= 110 for line in written.split("\n"))
