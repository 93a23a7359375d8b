"""Starting from trained weights: all, or all but a head of other classes; anything else is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from rankless.errors import UserError
from rankless.models import zoo
from rankless.models.classifiers.catalog import build_classifier
from rankless.models.weights_files import weights
from rankless.models.weights_files.pretrained import start_from
from rankless.recipe.load import default
from rankless.recipe.model_kinds import ResnetModel
from rankless.recipe.schema import Model, Recipe
from support.thorough import THOROUGH

NAMES = ("cat", "dog", "owl")


class Net(nn.Module):
    head_names = ("head.classes",)

    def __init__(self, classes: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.head = nn.ModuleDict({"boxes": nn.Conv2d(4, 4, 1), "classes": nn.Conv2d(4, classes, 1)})
        self.head_other = nn.Linear(2, 2)


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def written(path: Path, names: tuple[str, ...], seed: int = 1) -> tuple[Path, dict[str, Tensor]]:
    state = Net(len(names), seed).state_dict()
    weights.save(path, state, recipe=Recipe(), class_names=names)
    return path, state


def test_a_head_of_other_classes_is_made_anew(tmp_path: Path) -> None:
    path, state = written(tmp_path / "w.safetensors", ("a", "b", "c", "d", "e"))
    model = Net(3, seed=2)
    fresh = values(model)
    _, said = start_from(model, str(path), NAMES)
    heads = "'head.classes.weight', 'head.classes.bias'"
    assert said == f"the class rows of the heads are newly initialized for 3 classes instead of 5: {heads}"
    for name, value in model.state_dict().items():
        assert torch.equal(value, fresh[name] if name.startswith("head.classes") else state[name]), name


def test_rows_for_boxes_are_kept_where_no_class_is_known(tmp_path: Path) -> None:
    class Yolo(Net):
        def __init__(self, classes: int, seed: int) -> None:
            super().__init__(classes, seed)
            self.head["classes"] = nn.Conv2d(4, 2 * (5 + classes), 1)  # two anchors

        def head_layout(self, name: str) -> tuple[int, int]:
            return 5, 1

    path, theirs, model = tmp_path / "w.safetensors", Yolo(5, 1), Yolo(3, 2)
    weights.save(path, theirs.state_dict(), recipe=Recipe(), class_names=("a", "b", "c", "d", "e"))
    fresh = values(model)
    start_from(model, str(path), NAMES)
    for name, value in model.state_dict().items():
        if name.startswith("head.classes"):
            rows, their_rows = value.unflatten(0, (2, 8)), theirs.state_dict()[name].unflatten(0, (2, 10))
            assert torch.equal(rows[:, :5], their_rows[:, :5])
            assert torch.equal(rows[:, 5:], fresh[name].unflatten(0, (2, 8))[:, 5:])


def test_other_names_of_as_many_classes_are_reported(tmp_path: Path) -> None:
    path, state = written(tmp_path / "w.safetensors", ("a", "b", "c"))
    model = Net(3, seed=2)
    _, said = start_from(model, str(path), NAMES)
    assert "names in the file ('a', 'b', 'c') differ from those in the data ('cat', 'dog', 'owl')" in said
    assert weights.digest(model.state_dict()) == weights.digest(state)


def test_classes_are_matched_by_name_and_others_are_initialized_again(tmp_path: Path) -> None:
    path, state = written(tmp_path / "w.safetensors", ("owl", "cow", "pig", "cat"))
    model = Net(3, seed=2)
    fresh = values(model)
    _, said = start_from(model, str(path), NAMES)
    assert "2 of 3" in said and said.endswith("; newly initialized: 'dog'") and "warning" not in said
    for name, value in model.state_dict().items():
        if name.startswith("head.classes"):
            assert torch.equal(value[[0, 2]], state[name][[3, 0]]) and torch.equal(value[1], fresh[name][1])
        else:
            assert torch.equal(value, state[name]), name


def test_a_class_under_its_name_in_other_data_starts_from_its_weights(tmp_path: Path) -> None:
    path, state = written(tmp_path / "w.safetensors", ("couch", "airplane", "Dog"))
    model = Net(3, seed=2)
    _, said = start_from(model, str(path), ("aeroplane", "dog", "sofa"))
    assert "3 of 3" in said and "'aeroplane' ('airplane'), 'dog' ('Dog'), 'sofa' ('couch')" in said
    assert torch.equal(model.head["classes"].weight, state["head.classes.weight"][[1, 2, 0]])


def test_numbers_are_no_names(tmp_path: Path) -> None:
    path, state = written(tmp_path / "w.safetensors", ("0", "1", "2"))
    model = Net(3, seed=2)
    _, said = start_from(model, str(path), ("2", "1", "0"))
    assert said.startswith("warning: ") and weights.digest(model.state_dict()) == weights.digest(state)


def test_a_head_of_unknown_layout_is_taken_by_position_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    torch.manual_seed(0)
    model = Net(3, seed=1)
    model.head["classes"] = nn.Conv2d(4, 6, 1)  # two rows for each class, in whichever order
    state = values(model)
    weights.save(path, state, recipe=Recipe(), class_names=("owl", "cat", "dog"))
    _, said = start_from(model, str(path), NAMES)
    assert said.startswith("warning: ") and said.endswith("data.classes='[owl, cat, dog]'")
    assert weights.digest(model.state_dict()) == weights.digest(state)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        "yolov4-tiny",
        "yolov3-tiny",
        "yolov4-tiny-anchor-free",
        "torchvision/ssdlite320_mobilenet_v3_large",
        "torchvision/fasterrcnn_resnet50_fpn_v2",
        *(["torchvision/retinanet_resnet50_fpn_v2", "torchvision/fcos_resnet50_fpn"] if THOROUGH else []),
    ],
)
def test_a_models_scores_follow_the_names_of_the_classes(tmp_path: Path, name: str) -> None:
    theirs, ours, path = ("owl", "cow", "pig", "cat"), ("cat", "owl", "pig", "cow"), tmp_path / "w"
    is_detector = name in zoo.MODELS
    recipe = default([f"task={'detect' if is_detector else 'classify'}", f"model.name={name}"])
    build = zoo.build if is_detector else build_classifier

    def scores(model: Any) -> Tensor:
        torch.manual_seed(3)
        images = torch.rand(1, 3, 64, 64)
        with torch.no_grad():
            raw = model.eval()(images)
        return model.decode(raw)[1] if is_detector else raw  # type: ignore[no-any-return]

    torch.manual_seed(1)
    source: Any = build(recipe.model, 4)
    for part, parameter in source.named_parameters():
        if part.startswith(tuple(source.head_names)):  # no class starts like another
            parameter.data += 0.05 * torch.randn_like(parameter)
    weights.save(path, source.state_dict(), recipe=recipe, class_names=theirs)
    torch.manual_seed(2)
    model: Any = build(recipe.model, 4)
    start_from(model, str(path), ours)
    before, after = scores(source), scores(model)
    assert not torch.equal(before, after)
    for label, one in enumerate(ours):
        assert torch.allclose(after[..., label], before[..., theirs.index(one)], rtol=1e-4, atol=1e-6)


def test_weights_that_are_not_finite_are_refused_by_name(tmp_path: Path) -> None:
    state = values(Net(3, seed=1))
    state["body.0.weight"][0] = float("nan")
    safetensors.torch.save_file(state, tmp_path / "plain.safetensors")
    with pytest.raises(UserError, match=r"plain\.safetensors has NaN .* in 'body\.0\.weight'"):
        start_from(Net(3, seed=2), str(tmp_path / "plain.safetensors"), NAMES)


@pytest.mark.parametrize("classes", [3, 7])
def test_a_file_without_a_recipe_will_do(tmp_path: Path, classes: int) -> None:
    path, state = tmp_path / "plain.safetensors", values(Net(classes, seed=1))
    state["body.0.weight"] = state["body.0.weight"].half()
    safetensors.torch.save_file(state, path)
    model = Net(3, seed=2)
    reported = start_from(model, str(path), NAMES)
    assert len(reported) == (1 if classes == 3 else 2)
    assert torch.equal(model.body[0].weight, state["body.0.weight"].float())
    assert model.body[0].weight.dtype == torch.float32


def test_a_runs_directory_means_its_best_weights(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints" / "step-000000004"
    folder.mkdir(parents=True)
    (folder.parent / "best").write_text("step-000000004\n")
    written(folder / "model.safetensors", NAMES, seed=1)
    path, state = written(folder / "ema.safetensors", NAMES, seed=5)
    model = Net(3, seed=2)
    assert start_from(model, str(tmp_path / "run"), NAMES) == [f"starting from the weights in {path}"]
    assert weights.digest(model.state_dict()) == weights.digest(state)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s.pop("body.0.bias"), "1 missing, 0 unexpected, 0 with a different shape"),
        (lambda s: s.update({"more": torch.zeros(2)}), r"unexpected  more 2"),
        (lambda s: s.update({"head_other.bias": torch.zeros(3)}), r"head_other.bias: 3 in the file, 2 in"),
        # A head of as many classes that does not fit is another head.
        (
            lambda s: s.update({"head.classes.bias": torch.zeros(9)}),
            r"head.classes.bias: 9 in the file, 3 in",
        ),
        (lambda s: s.pop("head.classes.bias"), r"missing     head.classes.bias"),
    ],
)
def test_what_does_not_fit_is_reported_and_nothing_is_taken(tmp_path: Path, change: Any, said: str) -> None:
    state = values(Net(3, seed=1))
    change(state)
    weights.save(tmp_path / "w.safetensors", state, recipe=Recipe(), class_names=NAMES)
    model = Net(3, seed=2)
    fresh = weights.digest(model.state_dict())
    with pytest.raises(UserError, match=said):
        start_from(model, str(tmp_path / "w.safetensors"), NAMES)
    assert weights.digest(model.state_dict()) == fresh


def test_another_network_is_reported_by_its_keys(tmp_path: Path) -> None:
    weights.save(
        tmp_path / "w.safetensors",
        {"stem": torch.zeros(2)},
        recipe=Recipe(model=Model(name="yolov4-tiny-3l", width=0.5)),
        class_names=NAMES,
    )
    with pytest.raises(UserError) as refused:
        start_from(Net(3, seed=2), str(tmp_path / "w.safetensors"), NAMES, Model(name="yolov4-tiny"))
    assert refused.value.problems == (
        f"model.pretrained is '{tmp_path}/w.safetensors', which contains a different network (13 missing, "
        "1 unexpected, 0 with a different shape): model.name is 'yolov4-tiny', but 'yolov4-tiny-3l' in the "
        "file; model.width is 1.0, but 0.5 in the file; to use the network in the file, remove these keys "
        "from the recipe, or use the recipe fine-tune; to start untrained, remove model.pretrained",
    )
    with pytest.raises(UserError, match=r"model\.name is 'resnet18', but 'yolov4") as refused:
        start_from(Net(3, seed=2), str(tmp_path / "w.safetensors"), NAMES, ResnetModel(name="resnet18"))
    assert "None" not in str(refused.value)
    weights.save(
        tmp_path / "cfg.safetensors", {}, recipe=Recipe(model=Model(cfg="[net]\nwidth=64")), class_names=NAMES
    )
    with pytest.raises(UserError, match=r"name is 'yolov4-tiny', but .* comes from a cfg file;") as refused:
        start_from(Net(3, seed=2), str(tmp_path / "cfg.safetensors"), NAMES, Model(name="yolov4-tiny"))
    assert "model.cfg" not in str(refused.value)
    safetensors.torch.save_file({"stem": torch.zeros(2)}, tmp_path / "plain.safetensors")
    with pytest.raises(UserError, match=r"none of its tensors .*'yolov4-tiny'.*model\.name") as refused:
        start_from(Net(3, seed=2), str(tmp_path / "plain.safetensors"), NAMES, Model(name="yolov4-tiny"))
    assert "\n" not in refused.value.problems[0]


def test_a_model_without_head_names_takes_all_or_nothing(tmp_path: Path) -> None:
    path, _ = written(tmp_path / "w.safetensors", ("a", "b"))
    model = Net(3, seed=2)
    model.head_names = ()  # type: ignore[assignment]
    with pytest.raises(UserError, match="0 missing, 0 unexpected, 2 with a different shape"):
        start_from(model, str(path), NAMES)


def test_no_file_is_reported_with_the_key(tmp_path: Path) -> None:
    imported = f"rankless import {tmp_path}/x.pt --model NAME --out x.safetensors"
    for name, said in (("none.safetensors", "no such file"), ("x.pt", imported)):
        if said != "no such file":
            torch.save({}, tmp_path / name)
        with pytest.raises(UserError, match=rf"^model.pretrained: {tmp_path}/{name}: .*{said}"):
            start_from(Net(3, 1), str(tmp_path / name))


def test_nothing_is_read_where_nothing_is_named() -> None:
    assert start_from(Net(3, 1), "", NAMES) == []
