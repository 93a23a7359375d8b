"""Sessions that run exported models with ONNX Runtime and OpenVINO."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from rankless.errors import UserError
from rankless.extras import needed
from rankless.hardware.compute_device import compute_device

Array = NDArray[Any]
_QUIET = 3  # severity "error" of ONNX Runtime, whose warnings are about graph optimizations


class Session(Protocol):
    """The interface of a session, which runs an exported file.

    Attributes:
        texts: text entries of the file; see :mod:`rankless.models.exported.metadata`.
        shape: shape of the input, (B, 3, H, W), with None for dimensions of any size.
    """

    texts: Mapping[str, str]
    shape: tuple[int | None, ...]

    def __call__(self, images: NDArray[np.float32]) -> list[Array]:
        """Compute the outputs for images (B, 3, H, W) in 0..1, in the order of the file."""
        ...


class OnnxSession:
    """A :class:`Session` for an ONNX file, on the first GPU if ONNX Runtime's GPU build is installed."""

    def __init__(self, path: Path) -> None:
        runtime = needed("onnxruntime", "onnx", str(path))
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), _QUIET
        there = runtime.get_available_providers()
        wanted = ["CUDAExecutionProvider"] if compute_device().type == "cuda" else []
        providers = [one for one in (*wanted, "CPUExecutionProvider") if one in there]
        try:
            self._session: Any = runtime.InferenceSession(str(path), options, providers=providers)
        except Exception as error:  # its error classes derive directly from Exception
            raise _unreadable(path, "ONNX", error) from error
        inputs = self._session.get_inputs()
        self.texts: Mapping[str, str] = self._session.get_modelmeta().custom_metadata_map
        self.shape = tuple(side if isinstance(side, int) else None for side in inputs[0].shape)
        self._name = inputs[0].name

    def __call__(self, images: NDArray[np.float32]) -> list[Array]:
        computed: list[Array] = self._session.run(None, {self._name: images})
        return computed


class OpenVinoSession:
    """A :class:`Session` for an OpenVINO model (``.xml`` and ``.bin``), on the CPU in float32."""

    def __init__(self, path: Path) -> None:
        openvino = needed("openvino", "openvino", str(path))
        try:
            core = openvino.Core()
            model = core.read_model(str(path))
            # By default, OpenVINO rounds to bfloat16 on CPUs that have it.
            settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
            self._compiled: Any = core.compile_model(model, "CPU", settings)
        except Exception as error:
            raise _unreadable(path, "OpenVINO", error) from error
        self.texts: Mapping[str, str] = _rt_info(model)
        shape = model.inputs[0].get_partial_shape()
        self.shape = tuple(None if side.is_dynamic else side.get_length() for side in shape)

    def __call__(self, images: NDArray[np.float32]) -> list[Array]:
        computed = self._compiled(np.ascontiguousarray(images))
        # Copies are needed, because the next call overwrites the outputs.
        return [np.array(computed[output]) for output in self._compiled.outputs]


SESSIONS: dict[str, type[OnnxSession | OpenVinoSession]] = {".onnx": OnnxSession, ".xml": OpenVinoSession}
"""Session classes by file extension."""


def _rt_info(model: Any) -> dict[str, str]:
    try:
        entries = model.get_rt_info(["rankless"]).astype(dict)
    except RuntimeError:  # the model has none
        return {}
    return {str(name): str(one.value if hasattr(one, "value") else one) for name, one in entries.items()}


def _unreadable(path: Path, kind: str, error: Exception) -> UserError:
    reason = " ".join(str(error).split())[:300]
    return UserError(
        f"{path}: cannot be read as {kind} ({reason}); export the model again, or use another copy"
    )
