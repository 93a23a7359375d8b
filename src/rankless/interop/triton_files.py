"""Write a model folder for the model repository of Triton Inference Server.

OpenVINO Model Server reads the same folder, but needs only the numbered subfolder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rankless.extras import needed
from rankless.interop import onnx_file
from rankless.interop.plan import Plan

PLACES = ("/1/model.onnx", "/config.pbtxt")
"""Paths of the files in the model folder; ``1`` is the version of the model."""
_MOST = 8  # maximum batch size of the server
_PARAMETERS = ("class_names", "preprocessing", "outputs", "digest")


def write(plan: Plan, path: Path) -> None:
    """Write an ONNX file to the folder of its version, and the configuration to the parent folder."""
    onnx = needed("onnx", "onnx", "--format triton")
    proto = onnx_file.model(plan)
    path.parent.mkdir(parents=True)
    onnx.save_model(proto, str(path))
    text = _config(proto.graph, plan)
    (path.parents[1] / "config.pbtxt").write_text(text, encoding="ascii")


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
