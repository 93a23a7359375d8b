"""The folder of ``--format triton`` is what model servers read, and the page's client talks to them."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import onnxruntime
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from PIL import Image

from rankless.interop.export import export
from rankless.models.exported.sessions import OnnxSession, OpenVinoSession
from support.small_detector import CONFIDENCE, IOU, NAMES, SIDE, of_page, prints_the_objects, save

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("trained") / "mine.safetensors")


@pytest.fixture(scope="module")
def served(trained: Path) -> Path:
    """A repository with one model, with NMS."""
    folder = trained.with_name("models")
    options = {"nms": True, "confidence": CONFIDENCE, "overrides": [f"evaluate.iou={IOU}"]}
    export(trained, format="triton", out=folder / "mine", **options)
    return folder


def triton_config(path: Path) -> Any:
    """A file in the text format of the fields of Triton's ``ModelConfig`` that an export uses."""
    kinds = {"max_batch_size": 5, "data_type": 14, "dims": 3}
    kinds |= dict.fromkeys(("name", "backend", "key", "string_value"), 9)
    messages = {
        "Batching": {},
        "Value": {"string_value": ""},
        "Parameter": {"key": "", "value": "Value"},
        "Tensor": {"name": "", "data_type": "", "dims": "*"},
        "ModelConfig": {
            "backend": "", "max_batch_size": "", "dynamic_batching": "Batching",
            "input": "*Tensor", "output": "*Tensor", "parameters": "*Parameter",
        },
    }  # fmt: skip
    file = descriptor_pb2.FileDescriptorProto(name="served.proto", package="served", syntax="proto3")
    file.enum_type.add(name="DataType").value.extend(
        descriptor_pb2.EnumValueDescriptorProto(name=name, number=number)
        for name, number in {"TYPE_INVALID": 0, "TYPE_FP16": 10, "TYPE_FP32": 11}.items()
    )
    for message, fields in messages.items():
        made = file.message_type.add(name=message)
        for number, (name, of) in enumerate(fields.items(), 1):
            kind, many = of.removeprefix("*"), 3 if of.startswith("*") else 1
            field = made.field.add(name=name, number=number, label=many, type=kinds.get(name, 11))
            if kind or name == "data_type":
                field.type_name = f".served.{kind or 'DataType'}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    config = message_factory.GetMessageClass(pool.FindMessageTypeByName("served.ModelConfig"))()
    return text_format.Parse(path.read_text(encoding="utf-8"), config)


@pytest.mark.parametrize(("options", "most"), [("served", 0), ({}, 8), ({"batch": 2}, 0)], ids=str)
def test_the_folder_of_a_model_server(trained, served, options, most, tmp_path):
    folder = served / "mine"
    if options != "served":
        folder = tmp_path / "models" / "mine"
        done = export(trained, format="triton", out=folder, **options)
        assert done.files == (folder / "1" / "model.onnx", folder / "config.pbtxt")
    model, config_file = folder / "1" / "model.onnx", folder / "config.pbtxt"
    config, session = triton_config(config_file), onnxruntime.InferenceSession(str(model))
    assert (config.backend, config.max_batch_size) == ("onnxruntime", most)
    assert config.HasField("dynamic_batching") == bool(most)  # else a server would divide what is no batch
    for told, real in ((config.input, session.get_inputs()), (config.output, session.get_outputs())):
        assert [one.name for one in told] == [one.name for one in real]
        for one, value in zip(told, real, strict=True):
            shape = [side if isinstance(side, int) else -1 for side in value.shape]
            assert [-1] * bool(most) + list(one.dims) == shape and one.data_type == 11
    texts = session.get_modelmeta().custom_metadata_map
    for parameter in config.parameters:
        text = parameter.value.string_value
        assert text == texts[parameter.key] or json.loads(text) == json.loads(texts[parameter.key])
    assert {"class_names", "preprocessing"} <= {parameter.key for parameter in config.parameters}


@pytest.fixture
def server(request: pytest.FixtureRequest, served: Path) -> Iterator[str]:
    """The address of a model server: one that is installed, or a small one with the library that it runs."""
    with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as other:
        port, grpc = (str(one.getsockname()[1]) for one in (free, other))
    here = "127.0.0.1"
    commands = {
        "tritonserver": f"--model-repository={served} --http-address={here} --http-port={port} "
        f"--grpc-address={here} --grpc-port={grpc} --allow-metrics=false",
        "ovms": f"--model_name mine --model_path {served / 'mine'} --grpc_bind_address {here} --port {grpc} "
        f"--rest_bind_address {here} --rest_port {port}",
    }
    if request.param in commands:
        if shutil.which(request.param) is None:
            pytest.skip(f"there is no {request.param} here")
        running = subprocess.Popen([request.param, *commands[request.param].split()])
        try:
            for _ in range(600):
                with suppress(OSError):
                    urlopen(f"http://127.0.0.1:{port}/v2/models/mine/ready").close()
                    break
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            running.terminate()
            running.wait(60)
        return
    if request.param == "openvino":
        pytest.importorskip("openvino")
    compute = {"onnxruntime": OnnxSession, "openvino": OpenVinoSession}[request.param]
    session = compute(served / "mine" / "1" / "model.onnx")

    class Handler(BaseHTTPRequestHandler):
        """KServe's protocol, version 2, with its extension for binary tensors: metadata and inference."""

        def do_GET(self) -> None:
            assert self.path == "/v2/models/mine"
            shape = [-1 if side is None else side for side in session.shape]
            self.answer({"inputs": [{"name": "images", "datatype": "FP32", "shape": shape}]})

        def do_POST(self) -> None:
            assert self.path == "/v2/models/mine/infer"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            at = int(self.headers["Inference-Header-Content-Length"])
            (given,) = json.loads(body[:at])["inputs"]
            assert given["parameters"]["binary_data_size"] == len(body) - at
            assert (given["name"], given["datatype"]) == ("images", "FP32")
            (found,) = session(np.frombuffer(body[at:], np.float32).reshape(given["shape"]))
            output = {"name": "detections", "datatype": "FP32", "shape": found.shape}
            self.answer({"outputs": [output | {"data": found.ravel().tolist()}]})

        def answer(self, value: Any) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(value).encode())

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", int(port)), Handler) as standing_in:
        thread = threading.Thread(target=standing_in.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{port}"
        standing_in.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "server",
    [
        "onnxruntime",
        "openvino",
        pytest.param("tritonserver", marks=pytest.mark.processes),
        pytest.param("ovms", marks=pytest.mark.processes),
    ],
    indirect=True,
)
def test_the_page_shows_a_client_of_model_servers(server, trained, tmp_path, monkeypatch, capsys):
    code = of_page("serving.md", "served-client")
    assert "http://127.0.0.1:8000/v2/models/digits-nms" in code and 'list("0123456789")' in code
    code = code.replace("http://127.0.0.1:8000/v2/models/digits-nms", f"{server}/v2/models/mine")
    code = code.replace('list("0123456789")', repr(NAMES))
    # Each object has a score of its own here: of equal ones, each library prefers another.
    noise = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    prints_the_objects(code, trained, Image.fromarray(noise), tmp_path, monkeypatch, capsys)


def test_the_client_places_an_image_as_the_program_does() -> None:
    programs = [of_page("export.md", "plain-onnx"), of_page("serving.md", "served-client")]
    first, second = (code[code.index("photo =") : code.index("pixels =")] for code in programs)
    assert first == second and "canvas.paste" in first
    for code in programs:
        assert code.endswith(programs[0][programs[0].index("    corner =") :])
