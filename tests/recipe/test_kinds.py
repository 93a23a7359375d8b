"""A key without effect cannot be written, and the message says whose it is."""

from __future__ import annotations

import json
from typing import get_args

import pytest
import yaml

from rankless.errors import UserError
from rankless.files import yaml12
from rankless.recipe import loss_kinds, model_kinds
from rankless.recipe.json_schema import schema
from rankless.recipe.keys import KINDS, Kinds, leaves
from rankless.recipe.load import changed, default, dump, from_json, load, to_json
from rankless.recipe.schema import Augment, Data, Loss, Model, Recipe


def problems_of(*overrides: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        default(overrides)
    return [problem.removeprefix("command line: ") for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("model", "kind", "loss"),
    [
        ("yolov3-tiny", model_kinds.YoloModel, loss_kinds.Yolov3Loss),
        ("yolov4-tiny", model_kinds.YoloModel, loss_kinds.Yolov4Loss),
        ("yolov4-tiny-anchor-free", model_kinds.AnchorFreeModel, loss_kinds.AnchorFreeLoss),
        ("torchvision/retinanet_resnet50_fpn_v2", model_kinds.TorchvisionModel, loss_kinds.PublishedLoss),
        ("resnet18-cifar", model_kinds.ResnetModel, loss_kinds.CrossEntropyLoss),
        ("densenet121", model_kinds.DensenetModel, loss_kinds.CrossEntropyLoss),
        ("timm/convnext_tiny", model_kinds.TimmModel, loss_kinds.CrossEntropyLoss),
        ("mine", model_kinds.CustomModel, loss_kinds.AutoLoss),
    ],
)
def test_the_kind_follows_from_the_name(model, kind, loss):
    recipe = default([f"model.name={model}"])
    assert (type(recipe.model), type(recipe.loss)) == (kind, loss)
    assert recipe == Recipe(model=Model(name=model)) == from_json(to_json(recipe))
    assert default([f"model.name={model}", f"loss.name={recipe.loss.name}"]) == recipe


def test_a_name_beside_a_cfg_is_refused_and_not_ignored(tmp_path):
    with pytest.raises(UserError, match=r"command line: 'model.name' is 'yolov4', but 'model.cfg'"):
        default(["model.name=yolov4", "model.cfg=a.cfg"])
    (tmp_path / "both.yaml").write_text("model:\n  name: yolov4\n  cfg: a.cfg\n")
    with pytest.raises(UserError, match=r"both.yaml:2: 'model.name' is 'yolov4', but 'model.cfg'"):
        load(tmp_path / "both.yaml")
    (tmp_path / "cfg.yaml").write_text("model:\n  cfg: a.cfg\n")
    with pytest.raises(UserError, match=r"command line: 'model.name' is 'yolov4-tiny', but 'model.cfg'"):
        load(tmp_path / "cfg.yaml", ["model.name=yolov4-tiny"])
    assert load(tmp_path / "cfg.yaml", ["model.name=yolov4", "model.cfg=''"]).model.name == "yolov4"


def test_a_cfg_on_the_command_line_replaces_the_name_of_the_file(tmp_path):
    (tmp_path / "named.yaml").write_text("model:\n  name: yolov4\n")
    recipe = load(tmp_path / "named.yaml", ["model.cfg=a.cfg", "loss.anchor_iou=0.2"])
    assert (recipe.model.cfg, type(recipe.loss)) == ("a.cfg", loss_kinds.CfgLoss)
    (tmp_path / "recorded.yaml").write_text(dump(recipe))
    assert load(tmp_path / "recorded.yaml") == recipe == from_json(to_json(recipe))


def test_a_cfg_is_recorded_line_by_line_without_the_name_of_another_network():
    text = "[net]\nwidth=416\n\n[convolutional]\nactivation=leaky  # as published\n"
    recipe = Recipe(model=Model(cfg=text))
    written = dump(recipe)
    indented = "".join(f"    {line}".rstrip() + "\n" for line in text.splitlines())
    assert f"  cfg: |\n{indented}  anchors: default\n" in written
    assert "yolov4-tiny" not in written + to_json(recipe)
    assert yaml12.read(written, "r.yaml")[0]["model"]["cfg"] == text
    assert yaml.safe_load(written)["model"]["cfg"] == text  # as other readers of YAML see it
    assert from_json(to_json(recipe)) == recipe
    # What earlier versions recorded holds the default's name beside the cfg.
    tree = json.loads(to_json(recipe))
    tree["model"]["name"] = "yolov4-tiny"
    assert from_json(json.dumps(tree)) == recipe


def test_a_chosen_loss_has_its_keys():
    recipe = default(["model.name=resnet18", "loss={name: focal, gamma: 1.5}"])
    assert recipe.loss == loss_kinds.FocalLoss(gamma=1.5)
    assert Recipe(model=Model(name="resnet18"), loss=Loss(smoothing=0.1)).loss == loss_kinds.CrossEntropyLoss(
        smoothing=0.1
    )


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["loss.class_weights=balanced"],
         "key 'loss.class_weights': only the losses cross-entropy and focal have it; this model's loss is "
         "yolov4"),
        (["model.name=resnet18", "loss.gamma=1"],
         "key 'loss.gamma': only the losses yolov3, yolov4, cfg and focal have it; this model's loss is "
         "cross-entropy"),
        (["loss.assign=simota"],
         "key 'loss.assign': only the loss anchor-free has it; this model's loss is yolov4"),
        (["model.dfl=16"],
         "key 'model.dfl': only an anchor-free model has it; 'yolov4-tiny' is a YOLO model"),
        (["model.name=yolov4-anchor-free", "model.anchors=kmeans"],
         "key 'model.anchors': only a YOLO model has it; 'yolov4-anchor-free' is an anchor-free model"),
        (["model.name=timm/resnet18", "model.activation=mish"],
         "key 'model.activation': only a YOLO model, an anchor-free model, a ResNet, a DenseNet "
         "or one of Darknet's classifiers has it; 'timm/resnet18' is a timm model"),
        (["model.name=resnet18", "model.densenet.growth=3"],
         "key 'model.densenet.growth': only a DenseNet has it; 'resnet18' is a ResNet"),
        (["model.name=hf/rtdetr-r18", "model.config=a.json"],
         "'model.config' is given, but 'model.name' is 'hf/rtdetr-r18', which has its own configuration; "
         "remove model.config, or use model.name=hf/config"),
        (["model.name=resnet18", "model.activation=prelu"],
         "'model.activation' is 'prelu': expected one of auto, leaky, mish, swish, relu; "
         "did you mean 'relu'?"),
        (["model.name=resnet18", "loss.name=focul"],
         "'loss.name' is 'focul': expected one of auto, cross-entropy, focal for the model 'resnet18'; "
         "did you mean 'focal'?"),
        (["loss.gamma=1"], "'loss.gamma' is 1, but 'loss.objectness_loss' is 'auto'; 'loss.gamma' has an "
         "effect only with 'focal' or 'quality-focal'; remove it"),
        (["model.name=yolov4-anchor-free", "loss.dfl=1"],
         "'loss.dfl' is 1.0, but model.dfl is 0, so the distances have no distributions; remove loss.dfl, "
         "or set model.dfl to a number of bins such as 16"),
        (["task=classify", "model.name=resnet18", "data.fit=stretch"],
         "key 'data.fit': it has an effect only with task 'detect', but the task is 'classify'"),
        (["data.augment.policy=randaugment"],
         "key 'data.augment.policy': it has an effect only with task 'classify', but the task is 'detect'"),
        (["task=classify", "model.name=resnet18", "evaluate.tta=full"],
         "'evaluate.tta' is 'full', which needs inputs of several sizes, but many classifiers accept only "
         "one; expected 'none' or 'flip'"),
        (["task=classify", "model.name=resnet18", "data.augment.close_mosaic=2"],
         "'data.augment.close_mosaic' is 2, but mixup and cutmix are both off; "
         "remove data.augment.close_mosaic"),
    ],
)  # fmt: skip
def test_a_key_of_another_kind_is_named_with_its_kind(overrides, problem):
    assert problems_of(*overrides) == [problem]


def test_a_custom_task_may_read_every_key():
    given = [
        "task=my:Task",
        "model={name: mine, anchors: kmeans, dfl: 3}",
        "loss.gamma=3",
        "data.fit=stretch",
    ]
    recipe = default([*given, "data.augment.policy=randaugment"])
    assert from_json(to_json(recipe)) == recipe
    assert leaves(Recipe, Kinds("my:Task", "custom", "auto")).keys() == leaves(Recipe).keys()


def test_another_model_brings_other_keys():
    recipe = load("digits-classify")
    other = changed(recipe, ["task=detect", "model.name=yolov4-tiny", "data.train_images=7"])
    assert (other.loss, other.optim) == (loss_kinds.Yolov4Loss(smoothing=0.1), recipe.optim)
    chosen = default(["loss.name=yolov3", "loss.box=2"])
    assert changed(chosen, ["epochs=3"]).loss == chosen.loss


@pytest.mark.slow
def test_the_json_schema_knows_the_kinds():
    whole = schema()
    kind = whole["$defs"]["ResnetModel"]
    assert (kind["properties"]["name"]["pattern"], kind["required"]) == ("^resnet", ["name"])
    assert "anchors" not in kind["properties"]
    assert whole["$defs"]["YoloModel"]["required"] == []
    for section, union in (("model", model_kinds.AnyModel), ("loss", loss_kinds.AnyLoss)):
        named = [option["$ref"].rpartition("/")[2] for option in whole["properties"][section]["anyOf"]]
        tagged = [get_args(one)[0] for one in get_args(get_args(union)[0])]
        assert named == [one.__name__ for one in tagged]
        assert tagged == [*KINDS[section].values()]


@pytest.mark.parametrize(("mosaic", "least"), [(1.0, 0.25), (0.0, 0.1)])
def test_older_recipes_keep_the_former_minimum_area_of_mosaics(mosaic, least):
    recipe = Recipe(data=Data(augment=Augment(mosaic=mosaic)))
    assert recipe.data.augment.mosaic_min_area == 0.1
    recorded = json.loads(to_json(recipe))
    assert from_json(json.dumps(recorded)) == recipe
    del recorded["data"]["augment"]["mosaic_min_area"]
    assert from_json(json.dumps(recorded)).data.augment.mosaic_min_area == least
