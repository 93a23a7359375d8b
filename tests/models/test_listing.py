"""The list of models."""

from __future__ import annotations

import pytest

from rankless.interop.importing import layers_of
from rankless.models.classifiers.catalog import CLASSIFIERS
from rankless.models.listing import Listed, listed, listed_classifier, listed_detector
from rankless.models.zoo import MODELS
from rankless.printing import print_models
from support.thorough import THOROUGH


@pytest.mark.slow
def test_entries_have_the_published_sizes() -> None:
    """Those of torchvision's and transformers' detectors are compared with their publishers' elsewhere."""
    tiny, small = listed_detector("yolov3-tiny", "detect"), listed_classifier("resnet18", "classify")
    assert (tiny.task, tiny.classes, tiny.size, tiny.parameters) == ("detect", 80, (416, 416), 8_852_366)
    assert round(tiny.gflops, 2) == 5.56
    assert (small.task, small.classes, small.size, small.parameters) == (
        "classify", 1000, (224, 224), 11_689_512,
    )  # fmt: skip
    assert small.source == "He et al., 2016, Deep Residual Learning for Image Recognition"
    assert next(listed()).name == next(iter(MODELS))


@pytest.mark.slow
@pytest.mark.skipif(not THOROUGH, reason="counts the operations of every model")
def test_every_model_is_listed_once() -> None:
    rows = list(listed())
    assert [row.name for row in rows] == [*MODELS, *CLASSIFIERS]
    assert all(row.parameters > 0 and row.gflops > 0 and row.source for row in rows)


def test_the_list_fits_a_terminal_and_loses_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = []
    rows = [Listed(name, "detect", 80, (64, 64), 10**8, 1234.5, one.source) for name, one in MODELS.items()]
    for columns in (400, 80):
        monkeypatch.setenv("COLUMNS", str(columns))
        print_models(rows)
        texts.append(capsys.readouterr().out)
        assert max(map(len, texts[-1].splitlines())) <= columns
    assert texts[0].split() == texts[1].split() and len(texts[0].splitlines()) == len(rows) + 2
    for row in rows:
        assert f"\n{row.name} " in texts[1] and f" {row.parameters:,} " in texts[1] and row.source in texts[1]


@pytest.mark.parametrize(
    ("name", "parameters", "layer", "shape"),
    [
        ("resnet18", 11_689_512, "layer1.0.conv1", "64×56×56"),  # torchvision's documentation, He et al. 2016
        ("yolov4-tiny", 6_056_606, "", "255×13×13"),  # of yolov4-tiny.cfg: 85 numbers of 3 anchors
    ],
)
def test_the_layers_of_a_model_have_shapes(name, parameters, layer, shape):
    rows, total = layers_of(name, [])
    assert total == parameters == sum(row[3] for row in rows)
    assert any(row[2] == shape and layer in row[0] for row in rows)


def test_layers_that_compute_several_times_count_once():
    rows, total = layers_of("torchvision/retinanet_resnet50_fpn_v2", [])
    assert total == 38_198_935  # torchvision's documentation
    assert sum(row[3] for row in rows) == total
    tower = "head.classification_head.cls_logits"
    assert [row[0] for row in rows].count(tower) == 5  # of five maps
