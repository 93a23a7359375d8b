"""Write OpenVINO files, which are converted from ONNX."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from rankless.extras import needed
from rankless.interop import onnx_file
from rankless.interop.plan import Plan


def write(plan: Plan, path: Path) -> None:
    """Write an ``.xml`` file and its ``.bin`` file. With ``plan.half``, weights are stored in float16."""
    openvino: Any = needed("openvino", "openvino", "--format openvino")
    onnx = needed("onnx", "onnx", "--format openvino")
    with tempfile.TemporaryDirectory(prefix="rankless-") as folder:
        between = Path(folder) / "model.onnx"
        onnx.save_model(onnx_file.model(plan, half=False), str(between))
        made = openvino.convert_model(str(between))
        for name, text in plan.facts.texts().items():
            made.set_rt_info(text, ["rankless", name])
        openvino.save_model(made, str(path), compress_to_fp16=plan.half)
