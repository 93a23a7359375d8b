"""Write ONNX files, with or without NMS, and the formats that contain ONNX or are converted from it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from rankless.extras import needed
from rankless.interop.export_plan import Plan, quiet
from rankless.models.detectors.protocol import CANDIDATES
from rankless.models.exported.metadata import Facts

OPSET = 18
TRITON_FILES = ("/1/model.onnx", "/config.pbtxt")
"""Paths of the files in a Triton model folder; ``1`` is the version of the model."""
_MOST = 8  # maximum batch size of the server
_PARAMETERS = ("class_names", "preprocessing", "outputs", "digest")
_DIMENSIONS = {
    "images": ("batch", "3", "height", "width"),
    "boxes": ("batch", "candidates", "4"),
    "scores": ("batch", "candidates", "classes"),
    "probabilities": ("batch", "classes"),
    "detections": ("found", "7"),
}

# As in `rankless predict`, a candidate keeps only its best class, and only the best candidates reach NMS.
# The operator expects y1, x1, y2, x2, but x1, y1, x2, y2 yield the same IoU.
_NMS = """\
<ir_version: {ir}, opset_import: ["" : {opset}]>
nms (float[batch, candidates, 4] boxes, float[batch, candidates, classes] scores)
    => (float[found, 7] detections)
<int64[1] most = {{{most}}}, int64[1] zero = {{0}}, int64[1] first = {{1}}, int64[1] second = {{2}},
 int64[1] third = {{3}}, int64 limit = {{{most}}}, float overlap = {{{iou}}}, float least = {{{confidence}}},
 float nothing = {{0}}, int64[3] row = {{1, -1, 1}}, int64 none = {{0}}, int64 one = {{1}},
 int64[1] flat = {{-1}}>
{{
    best = ReduceMax <keepdims = 0> (scores, second)
    label = ArgMax <axis = 2, keepdims = 0> (scores)
    sizes = Shape (scores)
    candidate_count = Slice (sizes, first, second)
    count = Min (candidate_count, most)
    top, order = TopK <axis = 1> (best, count)
    order_of_boxes = Unsqueeze (order, second)
    top_boxes = GatherND <batch_dims = 1> (boxes, order_of_boxes)
    top_labels = GatherElements <axis = 1> (label, order)
    of_a_class = Unsqueeze (top, first)
{by_class}
    selected = NonMaxSuppression (top_boxes, by_class, limit, overlap, least)
    image = Slice (selected, zero, first, first)
    place = Slice (selected, second, third, first)
    before = Mul (image, count)
    rank = Add (before, place)
    flat_rank = Reshape (rank, flat)
    found = Shape (flat_rank)
    ordered, by_rank = TopK <axis = 0, largest = 0> (flat_rank, found)
    image_and_place = Concat <axis = 1> (image, place)
    pairs = Gather <axis = 0> (image_and_place, by_rank)
    box = GatherND (top_boxes, pairs)
    score = GatherND (top, pairs)
    class_number = GatherND (top_labels, pairs)
    score_column = Unsqueeze (score, first)
    class_float = Cast <to = 1> (class_number)
    class_column = Unsqueeze (class_float, first)
    image_sorted = Slice (pairs, zero, first, first)
    image_column = Cast <to = 1> (image_sorted)
    detections = Concat <axis = 1> (image_column, box, score_column, class_column)
}}
"""
_BY_CLASS = """\
    class_count = Slice (sizes, second, third)
    class_end = Squeeze (class_count)
    numbers = Range (none, class_end, one)
    classes_down = Reshape (numbers, row)
    labels_across = Unsqueeze (top_labels, first)
    is_class = Equal (labels_across, classes_down)
    by_class = Where (is_class, of_a_class, nothing)"""
_OF_ALL = "    by_class = Identity (of_a_class)"


def write(plan: Plan, path: Path) -> None:
    """Write a model to an ONNX file."""
    onnx = needed("onnx", "onnx", "--format onnx")
    onnx.save_model(model(plan), str(path))


def write_openvino(plan: Plan, path: Path) -> None:
    """Write an ``.xml`` file and its ``.bin`` file. With ``plan.half``, weights are stored in float16."""
    openvino: Any = needed("openvino", "openvino", "--format openvino")
    onnx = needed("onnx", "onnx", "--format openvino")
    with tempfile.TemporaryDirectory(prefix="rankless-") as folder:
        between = Path(folder) / "model.onnx"
        onnx.save_model(model(plan, half=False), str(between))
        made = openvino.convert_model(str(between))
        for name, text in plan.facts.texts().items():
            made.set_rt_info(text, ["rankless", name])
        openvino.save_model(made, str(path), compress_to_fp16=plan.half)


def write_triton(plan: Plan, path: Path) -> None:
    """Write a folder for the model repository of Triton Inference Server or OpenVINO Model Server.

    ``path`` is the ONNX file, which is in a numbered version folder. Only Triton needs ``config.pbtxt``.
    """
    onnx = needed("onnx", "onnx", "--format triton")
    proto = model(plan)
    path.parent.mkdir(parents=True)
    onnx.save_model(proto, str(path))
    text = _config(proto.graph, plan)
    (path.parents[1] / "config.pbtxt").write_text(text, encoding="ascii")


def model(plan: Plan, *, half: bool | None = None) -> Any:
    """Return the ``onnx.ModelProto`` of an export. ``half`` overrides the planned precision."""
    onnx = needed("onnx", "onnx", "--format onnx")
    needed("onnxscript", "onnx", "--format onnx")
    program = plan.program(plan.portable(half=half))
    with quiet():
        try:
            made = torch.onnx.export(
                program,
                (plan.example(),),
                input_names=["images"],
                output_names=list(plan.facts.kind.outputs),
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
        except Exception as error:  # the exporter raises errors of many types
            raise plan.unable(error) from error
    proto: Any = made.model_proto if made is not None else None
    if plan.facts.nms is not None:
        inside = onnx.parser.parse_model(_nms(plan.facts, proto.ir_version))
        proto = onnx.compose.merge_models(proto, inside, [("boxes", "boxes"), ("scores", "scores")])
    _name_dimensions(proto)
    _state_kernel_sizes(proto, onnx)
    proto.producer_name = "rankless"
    onnx.helper.set_model_props(proto, plan.facts.texts())
    onnx.checker.check_model(proto)
    return proto


def _nms(facts: Facts, ir: int) -> str:
    settings = facts.recipe.evaluate
    return _NMS.format(
        ir=ir,
        opset=OPSET,
        most=CANDIDATES,
        iou=float(settings.iou),
        confidence=facts.nms,
        by_class=_OF_ALL if settings.class_agnostic else _BY_CLASS,
    )


def _name_dimensions(proto: Any) -> None:
    del proto.graph.value_info[:]  # optional, and contains the exporter's names
    for value in (*proto.graph.input, *proto.graph.output):
        for side, name in zip(value.type.tensor_type.shape.dim, _DIMENSIONS[value.name], strict=True):
            if not side.HasField("dim_value"):
                side.dim_param = name


def _state_kernel_sizes(proto: Any, onnx: Any) -> None:
    """State the kernel size of each convolution, which is optional in ONNX but required by OpenCV."""
    sizes = {tensor.name: list(tensor.dims[2:]) for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        is_stated = any(attribute.name == "kernel_shape" for attribute in node.attribute)
        if node.op_type == "Conv" and not is_stated and node.input[1] in sizes:
            node.attribute.append(onnx.helper.make_attribute("kernel_shape", sizes[node.input[1]]))


def _config(graph: Any, plan: Plan) -> str:
    """Return the configuration for Triton, a ``ModelConfig`` in protobuf's text format.

    Dynamic batching is enabled if the first dimension of all inputs and outputs is the batch.
    """
    values = [(kind, value) for kind in ("input", "output") for value in getattr(graph, kind)]
    is_batched = all(value.type.tensor_type.shape.dim[0].dim_param == "batch" for _, value in values)
    lines = ['backend: "onnxruntime"', f"max_batch_size: {_MOST if is_batched else 0}"]
    if is_batched:
        lines.append("dynamic_batching { }")
    for kind, value in values:
        sides = value.type.tensor_type.shape.dim[int(is_batched) :]
        dims = ", ".join(str(side.dim_value if side.HasField("dim_value") else -1) for side in sides)
        lines.append(f'{kind} {{ name: "{value.name}" data_type: TYPE_FP32 dims: [ {dims} ] }}')
    texts = plan.facts.texts()
    for name in _PARAMETERS:
        # The text format uses the same quotes and escapes as JSON in ASCII.
        text = json.dumps(texts[name] if name == "digest" else json.dumps(json.loads(texts[name])))
        lines.append(f'parameters {{ key: "{name}" value {{ string_value: {text} }} }}')
    return "\n".join(lines) + "\n"
