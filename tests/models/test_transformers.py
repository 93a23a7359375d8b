"""transformers' detectors behind the seam, against transformers' own code in the same process."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rankless.errors import UserError
from rankless.interop.export_plan import PortableDetector, quiet
from rankless.models import zoo
from rankless.models.detectors.bilinear_sampling import DeterministicSampling, bilinear
from rankless.models.detectors.transformers import MODELS, TransformersDetector
from rankless.models.detectors.transformers_configs import CONFIGS as PUBLISHED
from rankless.models.weights_files import transformers_folder
from rankless.models.weights_files.pretrained import start_from
from rankless.randomness import GENERATORS
from rankless.recipe.load import default, load
from rankless.recipe.model_kinds import Model
from rankless.recipe.transformers_config import KINDS, class_names, folder_of, read_config, recipe_keys
from rankless.structures import DetectionBatch, Letterbox
from rankless.world.process_group import World
from support.detr_configs import CONFIGS, keys
from support.first_steps import digests_of_steps
from support.thorough import thorough_only

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow  # each network takes a second to build

SIDE, CLASSES = 128, 3


def built(kind: str, classes: int = CLASSES, **more: Any) -> TransformersDetector:
    """A small detector; the noise tells apart queries that are equal at the start, whose order is any."""
    torch.manual_seed(0)
    made: Any = zoo.build(keys(kind, **more), classes)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return made


def batch(*counts: int, seed: int = 1) -> DetectionBatch:
    """Random images, with so many boxes each."""
    rng, most = torch.Generator().manual_seed(seed), max(counts)
    corner = torch.rand(len(counts), most, 2, generator=rng) * SIDE / 2
    size = 2 + torch.rand(len(counts), most, 2, generator=rng) * SIDE / 2
    valid = torch.arange(most) < torch.tensor(counts).unsqueeze(1)
    labels = torch.randint(CLASSES, (len(counts), most), generator=rng)
    images = torch.randint(256, (len(counts), 3, SIDE, SIDE), generator=rng, dtype=torch.uint8)
    boxes = torch.cat((corner, corner + size), -1)
    places = [Letterbox(1, 0, 0, SIDE, SIDE)] * len(counts)
    return DetectionBatch(
        images, boxes * valid.unsqueeze(-1), labels * valid, valid, list(range(len(counts))), places
    )


def in_their_form(given: DetectionBatch) -> list[dict[str, Tensor]]:
    """Labels as transformers' image processors make them of COCO's boxes."""
    return [
        {
            "class_labels": labels[valid],
            "boxes": torch.cat(((boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]), 1)[valid]
            / SIDE,
        }
        for boxes, labels, valid in zip(given.boxes, given.labels, given.valid, strict=True)
    ]


def theirs(kind: str, ours: TransformersDetector, attention: str = "eager") -> Any:
    """transformers' own detector with the same weights."""
    config = getattr(transformers, f"{KINDS[kind]}Config")(
        **CONFIGS[kind], num_labels=CLASSES, attn_implementation=attention
    )
    network = getattr(transformers, f"{KINDS[kind]}ForObjectDetection")(config)
    network.load_state_dict(ours.state_dict())
    return network.train(ours.training)


def pixels(kind: str, given: DetectionBatch) -> Tensor:
    images = given.images.to(torch.get_default_dtype()) / 255
    if "rt_detr" in kind or kind == "d_fine":
        return images
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return (images - mean.view(3, 1, 1)) / std.view(3, 1, 1)


@pytest.fixture
def precision(kind: str, training: bool) -> Iterator[torch.dtype]:
    """Float64, where no order of adding up can hide another loss; D-FINE's loss knows only float32."""
    chosen = torch.float32 if kind == "d_fine" and training else torch.float64
    torch.set_default_dtype(chosen)
    yield chosen
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", CONFIGS)
def test_loss_and_gradients_are_transformers_own(kind: str, training: bool, precision: torch.dtype) -> None:
    ours, given = built(kind).train(training), batch(2, 3)
    network = theirs(kind, ours, "eager")
    near = {"rtol": 1e-9, "atol": 1e-9} if precision == torch.float64 else {"rtol": 1e-5, "atol": 1e-4}
    torch.manual_seed(5)  # of dropout and of the denoising queries
    loss = ours.loss(ours(given.images.to(precision) / 255), given)
    (loss.sum / loss.count).backward()
    torch.manual_seed(5)
    other = network(pixel_values=pixels(kind, given), labels=in_their_form(given)).loss
    other.backward()
    assert loss.count == 5
    torch.testing.assert_close(loss.sum / loss.count, other, **near)
    for name, parameter in network.named_parameters():
        mine = dict(ours.named_parameters())[name].grad
        if parameter.grad is None:
            assert mine is None or not mine.any(), name
        else:
            torch.testing.assert_close(mine, parameter.grad, **near)


@pytest.mark.parametrize("kind", CONFIGS)
def test_boxes_and_scores_are_those_of_their_image_processor(kind: str) -> None:
    ours, given = built(kind).eval(), batch(1, 1)
    with torch.no_grad():
        boxes, scores = ours.decode(ours(given.network_input))
        outputs = theirs(kind, ours)(pixel_values=pixels(kind, given))
    processor: Any = (
        transformers.RTDetrImageProcessor() if kind != "detr" else transformers.DetrImageProcessor()
    )
    found = processor.post_process_object_detection(
        outputs, threshold=0.0, target_sizes=torch.tensor([[SIDE, SIDE]] * 2)
    )
    for mine, mine_scores, one in zip(boxes, scores, found, strict=True):
        # RT-DETR's takes the best pairs of a query and a class, DETR's the best class of each query.
        flat = mine_scores.flatten() if kind != "detr" else mine_scores.max(1).values
        best, which = flat.topk(10)
        order = one["scores"].argsort(descending=True)[:10]
        torch.testing.assert_close(best, one["scores"][order], rtol=1e-4, atol=1e-5)
        at = which // CLASSES if kind != "detr" else which
        torch.testing.assert_close(mine[at], one["boxes"][order], rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("kind", ["rt_detr", "deformable_detr"])
def test_micro_batches_have_the_loss_of_the_whole_batch(kind: str) -> None:
    """In evaluation mode, where nothing depends on the other images, and no term is a mean over queries."""
    ours, whole = built(kind).eval(), batch(3, 0, 1, 2)
    wanted = ours.loss(ours(whole.network_input), whole)
    halves = [
        DetectionBatch(
            whole.images[rows],
            whole.boxes[rows],
            whole.labels[rows],
            whole.valid[rows],
            whole.indices[rows],
            whole.letterboxes[rows],
        )
        for rows in (slice(0, 2), slice(2, 4))
    ]
    losses = [ours.loss(ours(half.network_input), half) for half in halves]
    total, count = sum(one.sum for one in losses), sum(one.count for one in losses)
    torch.testing.assert_close(total / count, wanted.sum / wanted.count, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", CONFIGS)
def test_unmatched_queries_in_a_region_to_ignore_have_no_gradient(kind: str) -> None:
    """All boxes of the last layer, where the left half is such a region, with a matching by hand."""
    ours, given = built(kind).eval(), batch(2, 0)
    raw = ours(given.network_input)
    logits, boxes = raw.outputs.logits, raw.outputs.pred_boxes.detach()

    def gradient(ignored: Tensor | None) -> Tensor:
        given.ignored = ignored
        found = ours.loss(raw, given)
        assert found.count == 2
        return torch.autograd.grad(found.sum, logits, retain_graph=True)[0].abs().sum(-1)

    regions = torch.tensor([[0.0, 0, 0.55 * SIDE, SIDE]]).repeat(2, 1, 1)
    before, after = gradient(None), gradient(regions)
    left, right = boxes[..., 0] - boxes[..., 2] / 2, boxes[..., 0] + boxes[..., 2] / 2
    top, bottom = boxes[..., 1] - boxes[..., 3] / 2, boxes[..., 1] + boxes[..., 3] / 2
    shared = (right.clamp(max=0.55) - left.clamp(min=0)).clamp(min=0)
    shared = shared * (bottom.clamp(max=1) - top.clamp(min=0)).clamp(min=0)
    inside = shared > (right - left) * (bottom - top) / 2
    assert inside[1].any() and not after[1][inside[1]].any()  # an image without objects
    matched = inside & (after > 0)  # with the two objects of the first image
    assert matched.sum() <= 2 and torch.equal(after[matched], before[matched])
    assert (before > 0).all() and torch.equal(after[~inside], before[~inside])


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_batch_without_boxes_uses_every_parameter(kind: str) -> None:
    ours = built(kind).train()
    names = [{*ours.loss(ours(one.network_input), one).parts} for one in (batch(0, 0), batch(1, 2))]
    empty = ours.loss(ours(batch(0, 0).network_input), batch(0, 0))
    empty.sum.backward()
    assert empty.count == 0 and names[0] == names[1]
    trained = {name: p.grad for name, p in ours.named_parameters() if p.requires_grad}
    assert all(gradient is not None for gradient in trained.values())


def test_a_diverged_network_has_a_loss_that_is_not_finite() -> None:
    ours = built("d_fine").train()
    with torch.no_grad():
        ours.get_parameter("model.enc_bbox_head.layers.0.weight").fill_(float("nan"))
    assert not ours.loss(ours(batch(1, 1).network_input), batch(1, 1)).sum.isfinite()


def test_more_queries_than_cells_are_an_error() -> None:
    ours = built("rt_detr", num_queries=400).eval()
    with pytest.raises(UserError, match=r"128 × 128 pixels has 336 cells, .* needs at least 400.* 160"):
        ours(batch(1).network_input)
    assert ours(torch.zeros(1, 3, 160, 160)).outputs is not None


def sampled(maps: Tensor, points: Tensor) -> Tensor:
    return F.grid_sample(maps, points, mode="bilinear", padding_mode="zeros", align_corners=False)


def test_sampling_is_grid_sample_forward_and_backward() -> None:
    rng = torch.Generator().manual_seed(1)
    maps = torch.randn(2, 3, 5, 7, generator=rng, dtype=torch.float64, requires_grad=True)
    points = torch.rand(2, 4, 6, 2, generator=rng, dtype=torch.float64) * 3 - 1.5  # some far outside
    points.requires_grad_()
    torch.testing.assert_close(bilinear(maps, points), sampled(maps, points))
    pairs = [
        torch.autograd.grad(function(maps, points).square().sum(), (maps, points))
        for function in (bilinear, sampled)
    ]
    torch.testing.assert_close(*pairs)
    assert torch.autograd.gradcheck(bilinear, (maps, points))


@pytest.mark.parametrize("kind", ["rt_detr", "rt_detr_v2", "d_fine", "deformable_detr"])
def test_a_detector_with_deterministic_sampling_is_the_same(kind: str) -> None:
    given, losses, ours = batch(2, 1), [], built(kind).eval()
    for sampling in (nullcontext(), DeterministicSampling()):
        with Operators() as operators, sampling:
            losses.append(ours.loss(ours(given.network_input), given).sum)
        assert ("aten.grid_sampler_2d.default" in operators.names) == (len(losses) == 1)
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-5)


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name: str) -> None:
    """The parameters of the papers' tables, in millions."""
    with torch.device("meta"):
        model: Any = zoo.build(Model(name=name), 80)
    found = sum(parameter.numel() for parameter in model.parameters())
    of_papers = (20, 42, 20, 4, 10, 19, 31)
    assert found == MODELS[name].parameters
    assert found == pytest.approx(1e6 * of_papers[list(PUBLISHED).index(name)], rel=0.06)


def test_heads_for_other_classes_are_matched_by_name(tmp_path: Path) -> None:
    folder = written(tmp_path, "rt_detr", ["cat", "dog", "cow"])
    state, names = transformers_folder.read(folder, "test")
    assert names == ("cat", "dog", "cow")
    ours = built("rt_detr", 2)
    said = start_from(ours, str(folder), ["cow", "hen"], keys("rt_detr"))
    assert (
        "matched by class name: 1 of 2 classes are among the 3 in the file; newly initialized: 'hen'"
        in said[-1]
    )
    row = ours.state_dict()["model.denoising_class_embed.weight"]
    assert torch.equal(row[0], state["model.denoising_class_embed.weight"][2])
    assert torch.equal(row[2], state["model.denoising_class_embed.weight"][3])  # of the padding
    other = built("rt_detr", 2)
    assert (
        "the class rows of the heads are newly initialized for 2 classes instead of 3"
        in start_from(other, str(folder), ["a", "b"], keys("rt_detr"))[-1]
    )


def written(tmp_path: Path, kind: str, names: list[str]) -> Path:
    """A folder as transformers writes it."""
    config = getattr(transformers, f"{KINDS[kind]}Config")(
        **CONFIGS[kind], id2label=dict(enumerate(names)), label2id={name: n for n, name in enumerate(names)}
    )
    torch.manual_seed(3)
    getattr(transformers, f"{KINDS[kind]}ForObjectDetection")(config).save_pretrained(tmp_path / kind)
    processor = {"do_normalize": kind == "detr", "size": {"height": 128, "width": 96}}
    (tmp_path / kind / "preprocessor_config.json").write_text(json.dumps(processor))
    return tmp_path / kind


def test_a_folder_states_network_classes_and_preprocessing(tmp_path: Path) -> None:
    folder = written(tmp_path, "d_fine", ["cat", "dog"])
    made = default([f"model.pretrained={folder}"])
    assert made.model.name == "hf/config" and made.model.image_size == (128, 96)
    assert made.model.normalize == "none" and made.data.fit == "stretch" and made.evaluate.iou == 1.0
    model: Any = zoo.build(made.model, 2)
    start_from(model, str(folder), ["cat", "dog"], made.model)
    own = transformers.DFineForObjectDetection.from_pretrained(folder).state_dict()
    assert all(torch.equal(value, own[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "yolos"}, r"model_type is 'yolos'; expected a detector: one of rt_detr"),
        (
            {"architectures": ["DetrForSegmentation"]},
            r"architecture is DetrForSegmentation; expected RTDetrFor",
        ),
        ({"quantization_config": {}}, r"its weights are quantized"),
        ({"backbone": "hf_hub:a/b"}, r"its backbone is hf_hub:a/b, from another repository"),
        (
            {"backbone_config": {"model_type": "timm_backbone", "backbone": "local-dir:a"}},
            r"its backbone is local-dir:a, from another repository",
        ),
        (
            {"backbone_config": {"model_type": "timm_backbone", "backbone": "resnet0"}},
            r"transformers rejected the configuration: Unknown model \(resnet0\)",
        ),
        ({"architectures": 5}, r"architectures is 5; expected a list of names"),
        ({"architectures": "RTDetr"}, r'architectures is "RTDetr"; expected a list of names'),
        ({"d_model": "x"}, r"transformers rejected the configuration: .*d_model"),
    ],
)
def test_other_configurations_are_refused_by_name(change: dict[str, Any], said: str) -> None:
    text = json.dumps({"model_type": "rt_detr", **CONFIGS["rt_detr"], **change})
    with pytest.raises(UserError, match=said):
        zoo.build(Model(name="hf/config", config=text), 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"image_mean": [0.5, 0.5, 0.5], "do_normalize": True},
            r"normalizes by image_mean \[0.5, 0.5, 0.5\]",
        ),
        ({"rescale_factor": 1.0}, r"rescale_factor is 1.0; expected 1/255"),
        ({"rescale_factor": "x"}, r'rescale_factor is "x"; expected 1/255'),
        ({"rescale_factor": None}, r"rescale_factor is null; expected 1/255"),
        ({"resample": 3}, r"does not resize bilinearly"),
        ({"size": {"height": 100, "width": 96}}, r'size is \{"height": 100, "width": 96\}; expected sides'),
    ],
)
def test_other_preprocessing_is_refused_by_name(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "detr", **CONFIGS["detr"]}))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(change))
    with pytest.raises(UserError, match=said):
        recipe_keys(tmp_path, "test")


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize(
    "change",
    [
        {"backbone": "resnet18"},
        {"backbone": "resnet18", "backbone_kwargs": {"pretrained": True, "checkpoint_path": "no-such-file"}},
        {"use_timm_backbone": False, "backbone": "resnet18"},
        {
            "backbone_config": {
                "model_type": "timm_backbone",
                "backbone": "resnet18",
                "use_pretrained_backbone": True,
            }
        },
    ],
)
def test_a_configuration_loads_no_backbone(kind: str, change: dict[str, Any], network_use: list[Any]) -> None:
    """Neither from the Hub nor from a file."""
    text = json.dumps({"model_type": kind, **CONFIGS[kind], "backbone_config": None, **change})
    with suppress(UserError), torch.device("meta"):  # D-FINE does not fit such a backbone
        zoo.build(Model(name="hf/config", config=text), 2)
    assert network_use == []
    backbone = read_config(text).get("backbone_config") or {}
    assert not {"pretrained", "checkpoint_path", "use_pretrained_backbone"} & {*backbone}


@pytest.mark.parametrize("number", ['"abc"', "null", "1e400", str(10**12), "0", "true"])
def test_a_number_of_classes_that_is_none_is_refused(number: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(f'{{"num_labels": {number}}}')
    with pytest.raises(UserError, match=r"num_labels is .*; expected a whole number from 1 to 100,000"):
        class_names(tmp_path, "test")


def test_names_too_long_for_a_file_are_refused() -> None:
    assert folder_of("x" * 300) is None
    with pytest.raises(UserError, match="cannot be read: File name too long"):
        read_config("x" * 300)


def test_loading_waits_for_the_lock_of_model_creation(tmp_path: Path) -> None:
    """transformers replaces torch's functions while it loads, for all threads; ranks may be threads."""
    folder = written(tmp_path, "rt_detr", ["cat"])
    transformers_folder.read(folder, "test")
    with ThreadPoolExecutor(1) as pool:
        with GENERATORS:
            loading = pool.submit(transformers_folder.read, folder, "test")
            with pytest.raises(TimeoutError):
                loading.result(timeout=1)
        assert loading.result()[1] == ("cat",)


def test_pickles_and_missing_files_are_refused_by_name(tmp_path: Path) -> None:
    text = {"model_type": "detr", **CONFIGS["detr"], "id2label": {"0": "cat"}}
    (tmp_path / "config.json").write_text(json.dumps(text))
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80")
    with pytest.raises(
        UserError, match=r"has only pickles, which can run arbitrary code \(pytorch_model.bin\)"
    ):
        transformers_folder.read(tmp_path, "test")
    with pytest.raises(UserError, match=r"nothing/config.json|nothing: cannot be read"):
        read_config(str(tmp_path / "nothing"))


def test_the_meta_device_gives_the_shapes_of_the_cpu() -> None:
    images = batch(1).images.float() / 255
    with torch.no_grad():
        raw, without_values = (
            built("rt_detr").eval().to(device)(images.to(device)) for device in ("cpu", "meta")
        )
    assert without_values[1].logits.shape == raw[1].logits.shape and without_values[1].logits.is_meta


@thorough_only
@pytest.mark.parametrize("kind", ["rt_detr", "d_fine", "deformable_detr"])
def test_onnxruntime_finds_the_same_boxes(kind: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, images = PortableDetector(built(kind).eval()), batch(1).images.float() / 255
    with quiet(), torch.no_grad():
        wanted = model(images)
        program = torch.export.export(model, (images,))
        torch.onnx.export(program, (images,), tmp_path / "model.onnx", opset_version=18, dynamo=True)
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    found = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    for mine, other, far in zip(wanted, found, (1e-2, 1e-5), strict=True):  # pixels, scores
        torch.testing.assert_close(torch.from_numpy(other), mine, rtol=0, atol=far)


def two_steps(world: World, recipe: str, folder: str, precision: str) -> list[str]:
    words = [f"precision={precision}", "batch.images=8", "batch.micro=2"]
    return digests_of_steps(load(recipe, words), folder, world, 2)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(("kind", "precision"), [("rt_detr", "fp32"), ("d_fine", "bf16")])
def test_one_digest_on_any_number_of_ranks(
    kind: str, precision: str, ranks: Any, small_recipe: str, tmp_path: Path
) -> None:
    lines = Path(small_recipe).read_text().replace("lr: 0.02", "lr: 1e-4").splitlines()
    model = json.dumps({"name": "hf/config", "config": keys(kind).config, "image_size": 64})  # type: ignore[attr-defined]
    text = "\n".join(f"model: {model}" if line.startswith("model:") else line for line in lines)
    (tmp_path / "small.yaml").write_text(text)
    given = (str(tmp_path / "small.yaml"), str(tmp_path / "run"), precision)
    (alone,) = ranks(1, two_steps, given[0], f"{given[1]}1", precision)
    assert ranks(3, two_steps, given[0], f"{given[1]}3", precision) == [alone] * 3


def test_copies_train_and_evaluate_on_their_own() -> None:
    ours = built("rt_detr").train()
    other = copy.deepcopy(ours).eval()
    assert ours.network.training and not other.network.training
    assert {id(p) for p in other.network.parameters()} == {id(p) for p in other.parameters()}
