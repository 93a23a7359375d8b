"""Recipes as text: YAML 1.2, every fault at once, and the way back."""

import json
import math
import re
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rankless.engine.schedule import StepSchedule
from rankless.errors import UserError
from rankless.files import yaml12
from rankless.recipe.familiar import ELSEWHERE, SECTIONS
from rankless.recipe.installed import EDITOR_LINE, shipped, shipped_text
from rankless.recipe.json_schema import schema
from rankless.recipe.keys import Kinds, leaves
from rankless.recipe.load import default, differences, dump, from_json, load, to_json
from rankless.recipe.model_kinds import CustomModel
from rankless.recipe.schema import (
    Augment,
    Batch,
    Checkpoint,
    Data,
    Evaluate,
    Loss,
    Model,
    Optim,
    Recipe,
    Schedule,
)
from rankless.task_kinds import wrong_model

# --- reading YAML ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [  # the core schema: YAML 1.2.2, section 10.3.2
        ("null", None), ("Null", None), ("NULL", None), ("~", None), ("nULL", "nULL"),
        ("true", True), ("True", True), ("FALSE", False), ("tRUE", "tRUE"),
        ("on", "on"), ("off", "off"), ("yes", "yes"), ("No", "No"), ("y", "y"),
        ("12", 12), ("012", 12), ("+3", 3), ("-19", -19), ("0o17", 15), ("0xFF", 255), ("0o8", "0o8"),
        ("0b11", "0b11"), ("1_000", "1_000"), ("1:30", "1:30"), ("2001-01-01", "2001-01-01"),
        ("1e-2", 0.01), ("1e3", 1000.0), (".5", 0.5), ("5.", 5.0), ("-1.5E+3", -1500.0), ("12e03", 12000.0),
        (".inf", math.inf), ("-.INF", -math.inf), (".", "."), ("1.2.3", "1.2.3"), ("e3", "e3"),
        ("'12'", "12"), ('"true"', "true"), ("=", "="), ("<<", "<<"), ("[1, off]", [1, "off"]),
        (".NaN", math.nan),
    ],
)  # fmt: skip
def test_scalars_of_yaml_1_2(text, value):
    assert repr(yaml12.read(f"a: {text}", "f")[0]) == repr({"a": value})


def test_every_key_has_its_line():
    _, lines = yaml12.read("a: 1\nb:\n  c: 2\n\n  d: {e: 3,\n   f: 4}\n", "f")
    dotted = {".".join(path): line for path, line in lines.items()}
    assert dotted == {"a": 1, "b": 2, "b.c": 3, "b.d": 5, "b.d.e": 5, "b.d.f": 6}


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("a: 1\nb: 2\na: 3", ["f:3: key 'a' is given twice (first on line 1): keep only one"]),
        ("a:\n  b: 1\n  b: 1\nc: !!set {x}", ["f:3: key 'a.b' is given twice", "f:4: the tag '!!set'"]),
        ("a: !!python/object/apply:os.system [true]", ["f:1: the tag"]),
        ("a: !!int x", ["f:1: 'x' cannot be read as !!int"]),
        ("a: !mine 3", ["f:1: the tag '!mine' is not allowed"]),
        ("a: &x [*x]", ["f:1: an anchor cannot contain itself"]),
        ("a: 1\n\tb: 2", ["f:2: column 1: invalid YAML"]),
        ("a: b: c", ["f:1: column 5: invalid YAML: mapping values are not allowed here"]),
        ("a: [1", ["f:1: column 6: invalid YAML"]),
        ("a: 1\n---\nb: 2", ["f:2: column 1: invalid YAML: expected a single document"]),
        ("? [a]\n: 1", ["f:1: a key must be a single word or number"]),
        ("a: \x07", ["f: invalid YAML: character 4"]),
        ("[" * 999, ["f: nested too deeply"]),
        ("a: *b", ["f:1: column 4: invalid YAML: found undefined alias"]),
    ],
)
def test_errors_of_yaml(text, problems):
    with pytest.raises(UserError) as caught:
        yaml12.read(text, "f")
    assert len(caught.value.problems) == len(problems)
    for found, expected in zip(caught.value.problems, problems, strict=True):
        assert found.startswith(expected)


# --- problems of a recipe -----------------------------------------------------------------------------------


def problems_of(folder: Path, text: str, *overrides: str) -> list[str]:
    file = folder / "r.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        load(file, overrides)
    return [problem.replace(f"{folder}/", "") for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("optim: {lrr: 1}", "key 'optim.lrr': no such key; did you mean 'optim.lr'?"),
        ("lr: 1", "key 'lr': no such key; did you mean 'optim.lr'?"),
        ("optimm: {lr: 1}", "key 'optimm': no such key; did you mean 'optim'?"),
        ("milestone: [3]", "key 'milestone': no such key; did you mean 'schedule.milestones'?"),
        ("batch: {qqqq: 1}", "key 'batch.qqqq': no such key; expected one of images, micro"),
        ("optim.lr: 1", "key 'optim.lr': no such key: dots are for the command line; "
         "in a file, write 'lr:' indented under 'optim:'"),
        ("batch: {micro: eight}", "'batch.micro' is 'eight': expected a whole number of at least 1"),
        ("batch: {micro: '8'}", "'batch.micro' is '8': expected a whole number of at least 1; "
         "write 8 without quotes"),
        ("threads: true", "'threads' is true: expected a whole number from 1 to 1,024"),
        ("epochs: 1.0", "'epochs' is 1.0: expected a whole number of at least 1"),
        ("optim: {lr: .nan}", "'optim.lr' is nan: expected a number above 0"),
        ("optim: {clip: -.inf}", "'optim.clip' is -inf: expected a number of at least 0"),
        ("optim: {momentum: 1}", "'optim.momentum' is 1: expected a number of at least 0 and below 1"),
        ("optim: {nesterov: 'yes'}", "'optim.nesterov' is 'yes': expected true or false"),
        ("optim: {betas: [0.9]}", "'optim.betas' is [0.9]: expected a pair of numbers "
         "of at least 0 and below 1"),
        ("optim: {name: adm}", "'optim.name' is 'adm': expected one of sgd, adam, adamw, muon; did you mean "
         "'adam'?"),
        ("precision: FP32", "'precision' is 'FP32': expected one of auto, fp32, tf32, bf16, fp16; "
         "did you mean 'fp32'?"),
        ("loss: {box: atuo}", "'loss.box' is 'atuo': expected 'auto', or a number of at least 0; "
         "did you mean 'auto'?"),
        ("loss: {ignore: [[0.5]]}", "'loss.ignore' is [[…]]: expected 'auto', or a number from 0 to 1"),
        ("seed: {a: 1}", "'seed' is a section: expected a whole number of at least 0"),
        ("seed:", "'seed' is empty: expected a whole number of at least 0; "
         "remove the key to use the default, 0"),
        ("evaluate:", "'evaluate' is empty: expected a section with any of the keys "
         "every, best, batch, confidence, nms, iou, class_agnostic, multi_label, detections, rectangular, "
         "tta, classes_map"),
        ("model: yolov4", "'model' is 'yolov4': expected a section with any of the keys "
         "name, image_size, pretrained, freeze, checkpointing, width, dropout, activation, involution, cfg, "
         "anchors, num_anchors, scale_xy, dfl, config, normalize, densenet, options; did you mean "
         "'model.name'?"),
        ("imgsz: 640", "key 'imgsz': no such key; use model.image_size"),
        ("device: 0", "key 'device': no such key; use --devices N on the command line; a recipe does "
         "not specify devices"),
        ("patience: 5", "key 'patience': no such key; not needed: runs do not stop early, and the best "
         "weights are kept"),
        ("batch: 8", "'batch' is 8: expected a section with any of the keys images, micro; did you mean "
         "'batch.images', the number of images per step on all devices together (the number per GPU times "
         "the number of GPUs)?"),
        ("task: ''", "'task' is '': expected text that is not empty"),
        ('task: "\\ud800"', "'task' is '\\ud800': expected text that is not empty"),
        ("model: {image_size: [192, 40]}", "'model.image_size' is [192, 40]: a detector needs multiples of "
         "32, such as 192 and 32"),
        ("model: {image_size: 7}", "'model.image_size' is 7: expected 'auto', or a whole number of at least "
         "8, or a pair of whole numbers of at least 8"),
        ("model: {anchors: [[1, 2], [3]]}", "'model.anchors' is [[…], […]]: expected one of default, kmeans, "
         "or a list of pairs of numbers above 0"),
        ("checkpoint: {every: 10 minutes}", "'checkpoint.every' is '10 minutes': expected a number of "
         "minutes such as '10 min', or a whole number of at least 1, or a duration such as '5 epochs' or "
         "'80%'"),
        ("evaluate: {every: 5 epoch(s)}", "'evaluate.every' is '5 epoch(s)': expected a whole number of at "
         "least 0, or a duration such as '5 epochs' or '80%'"),
        ("schedule: {milestones: [2, 1]}", "'schedule.milestones' is [2, 1]: expected durations in "
         "increasing order"),
        ("optim: {nesterov: true, momentum: 0}", "'optim.nesterov' is true, which needs momentum, but "
         "optim.momentum is 0; set a momentum such as 0.9, or use optim.nesterov=false"),
    ],
)  # fmt: skip
def test_an_error_names_key_value_and_what_to_do(tmp_path, text, problem):
    assert problems_of(tmp_path, text) == [f"r.yaml:1: {problem}"]


@pytest.mark.parametrize("meant", [*ELSEWHERE.values(), *map(".".join, SECTIONS.items())])
def test_names_from_elsewhere_lead_to_keys_that_there_are(meant):
    known = [".".join(path) for path in leaves(Recipe)]
    for key in re.findall(r"[a-z_.]+\.[a-z_]+|^[a-z_]+(?==|$)", meant):
        assert key in known


def test_no_name_from_elsewhere_is_a_key():
    assert not ELSEWHERE.keys() & {path[-1] for path in leaves(Recipe)}


@pytest.mark.parametrize(
    ("task", "meant", "more"),
    [
        ("detection", "detect", ["r.yaml:2: 'model.image_size'", "r.yaml:3: 'optim.lr'"]),
        ("classification", "classify", ["r.yaml:3: 'optim.lr'"]),
        ("segment", None, ["r.yaml:3: 'optim.lr'"]),
    ],
)
def test_a_wrong_task_hides_no_other_mistake(tmp_path, task, meant, more):
    text = f"task: {task}\nmodel: {{image_size: 100}}\noptim: {{lr: -1}}\n"
    first, *rest = problems_of(tmp_path, text)
    assert first.startswith(f"r.yaml:1: 'task' is '{task}': expected 'detect', 'classify', 'package.mod")
    assert first.endswith(f"; did you mean '{meant}'?") == bool(meant)
    assert [problem.split(" is ")[0] for problem in rest] == more


def test_all_errors_come_at_once_in_the_order_of_the_lines(tmp_path):
    text = """\
batch:
  images: 20
schedule: {gamma: -1, warmup: [1]}
optim:
  lrr: 3
  nesterov: true
  name: adamw
  lr: low
model: {image_size: 5}
loss: {assign: simota}
data: {augment: {erase: 1}}
epochs: 4
"""
    found = problems_of(tmp_path, text, "epochs=0", "optm.lr=3", "seed", "seed=1", "data.val=@")
    assert [re.split(" is | YAML", problem)[0] for problem in found] == [
        "r.yaml:2: 'batch.micro'",
        "r.yaml:3: 'schedule.gamma'",
        "r.yaml:3: 'schedule.warmup'",
        "r.yaml:5: key 'optim.lrr': no such key; did you mean 'optim.lr'?",
        "r.yaml:6: 'optim.nesterov'",
        "r.yaml:8: 'optim.lr'",
        "r.yaml:9: 'model.image_size'",
        "r.yaml:10: key 'loss.assign': only the loss anchor-free has it; this model's loss",
        "r.yaml:11: key 'data.augment.erase': it has an effect only with task 'classify', but the task",
        "command line: 'epochs'",
        "command line: key 'optm.lr': no such key; did you mean 'optim.lr'?",
        "command line: 'seed': expected key=value, as in optim.lr=0.02",
        "command line: 'data.val=@': invalid",
    ]


def test_a_clash_is_not_reported_of_a_value_that_is_wrong_anyway(tmp_path):
    assert len(problems_of(tmp_path, "batch: {images: many, micro: 7}")) == 1


def test_a_clash_with_the_command_line_is_reported_there(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text("epochs: 1\nbatch:\n  images: 8\n  micro: 4\n")
    for override, where in (("batch.images=7", "command line"), ("batch.micro=3", "command line")):
        with pytest.raises(UserError, match=f"^{where}: 'batch.micro' is ") as error:
            load(file, [override])
        assert len(error.value.problems) == 1
    file.write_text("batch:\n  images: 7\n  micro: 4\n")
    with pytest.raises(UserError, match=f"^{re.escape(str(file))}:[23]: 'batch.micro' is 4"):
        load(file, ["epochs=2"])


def test_sections_that_are_nested_deeply_are_no_such_key():
    tree = {"a": 1}
    for _ in range(2 * sys.getrecursionlimit()):
        tree = {"a": tree}
    with pytest.raises(UserError, match=r"key 'a\.a.*': no such key"):
        Recipe(**tree)


def test_an_alias_gives_the_line_of_its_use(tmp_path):
    text = "loss: &x\n  box: 1\nmodel:\n  name: a\nema: *x\n"
    assert problems_of(tmp_path, text) == ["r.yaml:5: key 'ema.box': no such key; did you mean 'loss.box'?"]


def test_many_aliases_of_aliases_do_not_explode(tmp_path):
    lines = ["a0: &a0 [1, 1]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    found = problems_of(tmp_path, "\n".join([*lines, "seed: *a29"]))
    assert len(found) == 27
    assert found[25] == "… and 5 more"
    assert max(map(len, found)) < 300


@pytest.mark.parametrize("text", ["", "\n# nothing\n", "{}", "---\n"])
def test_an_empty_file_is_an_error(tmp_path, text):
    assert problems_of(tmp_path, text) == [
        "r.yaml: the file is empty: expected at least one key, such as 'model:'"
    ]


@pytest.mark.parametrize("text", ["- 1", "digits", "3"])
def test_a_file_without_keys_is_an_error(tmp_path, text):
    assert "expected a mapping with any of the keys task, model" in problems_of(tmp_path, text)[0]


def test_a_source_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("seed: 1")
    Path("latin.yaml").write_bytes(b"seed: 1 # \xe9")
    none = "no such file, folder or shipped recipe"
    for name, message in {
        "digit": rf"'digit': {none}; did you mean 'digits'\? for a model, use",
        "nime.yaml": rf"'nime.yaml': {none}; did you mean 'mine.yaml'\?$",
        "a/b": f"'a/b': {none}; expected .*digits",
        ".": "this is a folder",
        "latin.yaml": "latin.yaml: not UTF-8 text",
    }.items():
        with pytest.raises(UserError, match=message):
            load(Path(name) if name == "." else name)
    for name in ("yolov8n", "yolo11m", "yolov5s.yaml", "YOLOX_tiny"):
        with pytest.raises(
            UserError, match=r"the most similar ones are .*: rankless train (\S+) data.root="
        ) as error:
            load(name, check_name=wrong_model)
        assert "model.name=" not in str(error.value)
        assert load(str(error.value).rpartition("rankless train ")[2].split()[0]).task == "detect"
    with pytest.raises(UserError, match=r"rankless train resnet18 data\.root="):
        load("yolov8n-cls", check_name=wrong_model)
    for name in ("yolov4-csp", "resnet34"):  # a model, with the keys under which it is accepted
        with pytest.raises(UserError, match="for the model of this name, use ") as error:
            load(name, check_name=wrong_model)
        keys = str(error.value).partition(" this name, use ")[2].split()
        assert default(keys, check_name=wrong_model).model.name == name
    with pytest.raises(UserError) as error:
        load("nonsense", check_name=wrong_model)
    assert "this name" not in str(error.value)
    with pytest.raises(UserError, match=r"no shipped recipe 'yolov5'; did you mean 'yolov4'\?$"):
        shipped_text("yolov5")


# --- reading recipes --------------------------------------------------------------------------------------


def test_files_and_overrides(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_bytes(b"\xef\xbb\xbfseed: 3\noptim: {lr: 1}\nbatch: {images: 7}\n")
    Path("plain").write_text("seed: 4")
    overrides = ["batch.micro=7", "model.image_size=[192, 320]", "data={val: test, augment: {flip: 0}}",
                 "optim.lr=5", "optim.lr=1e-2", "data.root=~/a=b", "checkpoint.every=5 min"]  # fmt: skip
    assert load("mine.yaml", overrides) == Recipe(
        seed=3,
        optim=Optim(lr=0.01),
        batch=Batch(images=7, micro=7),
        model=Model(image_size=(192, 320)),
        data=Data(val="test", root="~/a=b", augment=Augment(flip=0.0)),
        checkpoint=Checkpoint(every="5 min"),
    )
    assert load("plain").seed == 4
    assert load(Path("plain"), ["seed=5"]).seed == 5
    assert load("plain", ["data.format=yolo"]).data.format == "darknet"


def test_an_override_heals_what_the_file_has_wrong(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text("batch: {images: many}")
    assert load(file, ["batch.images=16"]).batch.images == 16
    file.write_text("optim: 3")
    for overrides in (["optim.lr=1"], ["optim=3", "optim.lr=1"], ["batch.images={}"]):
        with pytest.raises(UserError, match="'optim' is 3: expected a section"):
            load(file, overrides)
    with pytest.raises(UserError, match=r"'batch\.images' is an empty section"):
        load("digits", ["batch.images=8", "batch.images={}"])


@pytest.mark.parametrize("name", sorted(shipped()))
def test_shipped_recipes_load_and_record_the_keys_of_their_kind(tmp_path, name):
    recipe = load(name)
    (tmp_path / "r.yaml").write_text(dump(recipe))
    assert load(tmp_path / "r.yaml") == recipe
    assert not isinstance(recipe.model, CustomModel)
    assert ("\n    mosaic:" in dump(recipe)) == (recipe.task == "detect")
    assert ("class_weights" in dump(recipe)) == ("policy" in dump(recipe)) == (recipe.task == "classify")
    editor, first, *_ = shipped_text(name).splitlines()
    assert editor == EDITOR_LINE.rstrip()
    assert first == f"# {shipped()[name]}"
    assert f"\n#   rankless train {name}" in shipped_text(name)


def test_the_published_schedules():
    """Darknet's cfg files: learning rate, burn-in 1000 with power 4, milestones, momentum, decay, random."""
    for name, rate, milestones, momentum, random in [
        ("yolov3", 1e-3, (400_000, 450_000), 0.9, True),
        ("yolov3-tiny", 1e-3, (400_000, 450_000), 0.9, True),
        ("yolov4", 1.3e-3, (400_000, 450_000), 0.949, True),
        ("yolov4-tiny", 0.00261, (1_600_000, 1_800_000), 0.9, False),
    ]:
        recipe = load(name)
        run = StepSchedule(recipe, 117_266)  # COCO's, which make a few more steps than Darknet's
        assert (recipe.optim.lr, run.milestones) == (rate, pytest.approx(milestones, rel=5e-3))
        assert run.warmup == pytest.approx(1000, rel=5e-3)
        assert (recipe.schedule.warmup_power, recipe.schedule.gamma) == (4, 0.1)
        assert (recipe.optim.momentum, recipe.optim.weight_decay, recipe.batch.images) == (momentum, 5e-4, 64)
        assert (recipe.data.multi_scale, recipe.data.multi_scale_every) == (0.4 if random else 0, 10)


def test_the_published_schedules_of_classifiers():
    """90 epochs of 1,281,167 images in batches of 256, the rate a tenth after 30 and 60 epochs."""
    for name in ("imagenet-resnet18", "imagenet-resnet50", "imagenet-densenet121"):
        recipe = load(name)
        assert (recipe.task, recipe.epochs, recipe.batch.images) == ("classify", 90, 256)
        assert StepSchedule(recipe, 1_281_167).milestones == (150_137, 300_274)
        assert (recipe.optim.lr, recipe.optim.momentum, recipe.optim.weight_decay) == (0.1, 0.9, 1e-4)
        assert (recipe.data.augment.crop, recipe.data.augment.flip, recipe.schedule.gamma) == (0.08, 0.5, 0.1)


# --- the way back -----------------------------------------------------------------------------------------

_share = st.floats(0, 1, exclude_max=True)
_fraction = st.floats(0, 1)
_positive = st.floats(0, 64, exclude_min=True)
_not_negative = st.floats(0, 1000) | st.integers(0, 99)
_count = st.integers(1, 1000)
_side = st.integers(1, 400).map(lambda n: 32 * n)
_auto = st.just("auto")
TRICKY = [
    "off", "1e3", "012", "0o7", "~", ".5", "1:30", "2001-01-01", "a: b", " a", "a ", "x #y", "true", "null",
    "=", "<<", "!x", "&a", "*a", "\x85", "\u2028", "é", "😀", "'", "-", "a\nb", "1.", "-.inf",
    "a: 1\n b\n\nc # d\n\n", "\n\n a\n", "a \nb", "# a\nb", "---\na\n...\n", "\n", "a\n\tb",
    "x" * 300 + " y",
]  # fmt: skip


@pytest.mark.parametrize("text", TRICKY)
def test_text_stays_text(tmp_path, text):
    (tmp_path / "r.yaml").write_text(dump(Recipe(data=Data(root=text))), "utf-8", newline="")
    assert load(tmp_path / "r.yaml").data.root == text


_text = st.sampled_from(TRICKY) | st.text(min_size=1, max_size=9)
_minutes = st.from_regex(r"\A[1-9][0-9]{0,3}(\.[0-9]{1,3})? ?min\Z")

_duration = _count | st.from_regex(r"\A[1-9]{1,2}(\.[0-9]{1,3})? ?(epochs?|%)\Z")

_pixels = st.floats(1, 1e6)
_anchors = st.just("kmeans") | st.lists(st.tuples(_pixels, _pixels), min_size=1, max_size=3).map(tuple)

recipes = st.builds(
    Recipe,
    task=st.sampled_from(["detect", "classify"]) | _text.map("{}:Task".format),
    model=st.builds(
        Model, name=_text, image_size=_side | st.tuples(_side, _side), width=_positive, cfg=_text,
        anchors=_anchors, freeze=_duration,
    ),
    data=st.builds(Data, root=_text, augment=st.builds(Augment, flip=_fraction, scale=_not_negative)),
    batch=st.builds(lambda n, micro: Batch(images=n * micro, micro=micro), _count, _count),
    seed=st.integers(0, 10**40),
    loss=st.builds(Loss, name=st.sampled_from(["auto", "yolov3"]), box=_auto | _not_negative,
                   ignore=_auto | _fraction, smoothing=_share),
    optim=st.builds(Optim, name=st.sampled_from(["sgd", "adam", "adamw", "muon"]), lr=_positive,
                    betas=st.tuples(_share, _share)),
    schedule=st.builds(Schedule, warmup=_duration,
                       milestones=st.sets(_count, max_size=4).map(lambda steps: tuple(sorted(steps)))),
    evaluate=st.builds(Evaluate, every=_duration),
    checkpoint=st.builds(Checkpoint, every=_duration | _minutes),
)  # fmt: skip


@settings(settings.get_profile("files"))
@given(recipes)
def test_yaml_and_json_lead_back(tmp_path_factory, recipe):
    file = tmp_path_factory.getbasetemp() / "back.yaml"
    file.write_text(dump(recipe), "utf-8")
    assert load(file) == recipe
    assert from_json(to_json(recipe)) == recipe
    # Two readers that know nothing of this package; PyYAML reads YAML 1.1, where '1e3' and 'off' differ.
    assert yaml.safe_load(dump(recipe)) == json.loads(to_json(recipe))
    assert "\n" not in to_json(recipe)


_pieces = st.sampled_from([
    "optim", "lr", "batch", "micro", "schedule", "milestones", ":", ": ", "\n", "  ", "- ", "[", "]", "{",
    "}", ",", "1", "-3", "1e9", ".nan", "'", '"', "&a ", "*a", "!!int ", "#", "|", ">", "? ", "null",
    "\\ud800", "%",
])  # fmt: skip


@settings(settings.get_profile("files"))
@given(st.lists(_pieces, max_size=25).map("".join) | st.text(max_size=30))
def test_any_text_gives_a_recipe_or_an_error(tmp_path_factory, text):
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text(text, "utf-8", newline="")
    for read in (lambda: load(file), lambda: load("digits", [text]), lambda: from_json(text)):
        try:
            assert isinstance(read(), Recipe)
        except UserError as error:
            assert error.problems
            assert all(len(problem) > 20 for problem in error.problems)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "w: invalid JSON"),
        ("[]", "w: this recipe is []"),
        ('{"optim": {"lrr": 1}}', "w: key 'optim.lrr': no such key; did you mean 'optim.lr'"),
        ('{"batch": {"micro": 7}}', "w: 'batch.micro' is 7, which does not divide"),
        ('{"optim": {"lr": NaN}}', "w: 'optim.lr' is nan"),
    ],
)
def test_json_with_errors(text, sentence):
    with pytest.raises(UserError) as caught:
        from_json(text, "w")
    assert str(caught.value).startswith(sentence)


def test_differences_are_dotted_and_in_order():
    old = Recipe()
    new = Recipe(epochs=3, optim=Optim(lr=0.5), data=Data(augment=Augment(flip=0.0)))
    changed = [("data.augment.flip", 0.5, 0.0), ("epochs", 100, 3), ("optim.lr", 0.01, 0.5)]
    assert differences(old, new) == changed
    assert differences(old, old) == []


@pytest.mark.slow
def test_the_schema_describes_every_key_and_the_short_forms():
    whole = schema()
    json.dumps(whole)
    assert whole["$defs"]["Optim"]["properties"]["lr"] == {
        "default": 0.01,
        "description": "Peak learning rate, which the schedule scales.",
        "exclusiveMinimum": 0,
        "maximum": 1e9,
        "type": "number",
    }
    value = whole["$defs"]["Augment"]["properties"]["value"]["description"]
    assert value.startswith("Range of the random brightness factor")
    assert "Attributes" not in whole["description"]
    kinds = whole["$defs"]
    assert {"enum": [0, 3, 5, 7]} in kinds["YoloModel"]["properties"]["involution"]["anyOf"]
    assert {"enum": [0, 1, 2, False, True]} in kinds["Densenet"]["properties"]["separable"]["anyOf"]
    preset = {"enum": ["none", "light", "yolov3", "yolov4", "heavy"]}
    assert kinds["Data"]["properties"]["augment"]["anyOf"] == [{"$ref": "#/$defs/Augment"}, preset]
    for definition in (whole, *whole["$defs"].values()):
        for name, key in definition["properties"].items():
            assert "$ref" in key or len(key["description"]) > 5, name


def test_a_key_given_twice_hides_nothing_else(tmp_path):
    text = (
        "epochs: 0\noptim: {lr: 1}\noptim: {lr: 2}\nseed: !!set {x}\nema: {decay: 7}\nloss: {box: [!x 1]}\n"
    )
    found = [one.partition(": ")[0] for one in problems_of(tmp_path, text, "epochs=-1")]
    assert found == [*(f"r.yaml:{line}" for line in (3, 4, 5, 6)), "command line"]


@pytest.mark.parametrize(
    "key", ["model.foo", "optim.size", "data.augment.abc", "optim.zeros", "evaluate.word", "velocity"]
)
def test_nothing_far_away_is_suggested(tmp_path, key):
    (problem,) = problems_of(tmp_path, "epochs: 1", f"{key}=1")
    assert "did you mean" not in problem and "; expected one of " in problem


def test_overrides_as_a_mapping_are_refused() -> None:
    with pytest.raises(UserError, match=r"overrides is .*: expected a list of strings, as in \['epochs=1'\]"):
        load("digits", {"epochs": 1})


def test_involution_is_a_kernel_or_a_section_and_separable_a_switch():
    for text, expected in (("7", (7, "head")), ("{kernel: 3, where: trunk}", (3, "trunk"))):
        recipe = default([f"model.involution={text}"])
        assert tuple(vars(recipe.model.involution).values()) == expected
        assert from_json(to_json(recipe)) == recipe
    for text, dilation in (("true", 1), ("false", 0), ("{dilation: 2, norm_between: true}", 2)):
        recipe = default(["task=classify", "model.name=densenet121", f"model.densenet.separable={text}"])
        assert recipe.model.densenet.separable.dilation == dilation


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ("model.involution.where=trunk", ("'model.involution.kernel' is 0",)),
        ("model.involution=4", ("'model.involution.kernel' is 4", "3, 5, 7")),
        (
            "model.anchors=[[[30, 61], [62, 45]], [[10, 13], [16, 30]]]",
            ("a list for each head", "[[10, 13], [16, 30], [30, 61], [62, 45]]"),
        ),
        ("model.anchors=[[0.5, 0.5], [0.1, 0.2]]", ("0.1 pixels", "[[41.6, 83.2], [208, 208]]")),
        (
            "model.anchors=[[[0.5, 0.25]], [[0.1, 0.2], [0.001, 0.1]]] model.image_size=[320,640]",
            ("a list for each head", "320 × 640", "[[1, 32], [64, 64], [320, 80]]"),
        ),
    ],
)
def test_wrong_network_options_say_what_to_write(given, parts):
    with pytest.raises(UserError) as caught:
        default(re.split(r"(?<=\]) (?=model)", given))
    (problem,) = caught.value.problems
    assert all(part in problem for part in ("command line", *parts))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(shipped()))
def test_shipped_recipe_takes_another_network_of_its_task(name, capsys):
    task, given = load(name).task, yaml.safe_load(shipped_text(name))
    capsys.readouterr()
    for model in {
        "detect": ("yolov4-tiny", "yolov4-tiny-anchor-free", "torchvision/fcos_resnet50_fpn"),
        "classify": ("resnet18", "densenet121"),
    }[task]:
        recipe = load(name, [f"model.name={model}"])
        assert recipe.model.name == model
        needed = capsys.readouterr().err
        kept = leaves(Recipe, Kinds.of(recipe))
        for section in ("model", "loss"):
            for key in given.get(section, {}):
                if (section, key) not in kept and (section, key) in leaves(Recipe):
                    assert f"{section}.{key}" in needed and model in needed


def test_keys_of_the_user_that_another_network_lacks_are_errors(tmp_path):
    with pytest.raises(UserError, match=r"command line: key 'model\.dfl'"):
        load("digits", ["model.name=yolov4-tiny", "model.dfl=8"])
    (tmp_path / "r.yaml").write_text("model: {name: yolov4-tiny-anchor-free, dfl: 8}\n")
    with pytest.raises(UserError, match=r"r.yaml:1: key 'model.dfl'"):
        load(tmp_path / "r.yaml", ["model.name=yolov4-tiny"])
