"""Darknet's weights files: against OpenCV's reader, against real files, and damaged in every way."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rankless.errors import UserError
from rankless.models.darknet.cfg import read_cfg
from rankless.models.darknet.cfg_text import write_cfg
from rankless.models.darknet.reshape import with_classes, with_width
from rankless.models.detectors.convolutional import DetectionModel
from rankless.models.detectors.darknet import MODELS
from rankless.models.weights_files.darknet_weights import classes_of, read_weights, write_weights
from support.norms import with_statistics

OPENCV_EPS = 1e-6  # OpenCV's reader; Darknet's, PyTorch's and ours is 1e-5
TINY = with_classes(with_width(MODELS["yolov4-tiny"].network(), 0.125), 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["yolov3", "yolov3-spp", "yolov3-tiny", "yolov4", "yolov4-tiny", "yolov4-tiny-3l", "yolov4-csp"]
)
def test_opencv_reads_what_is_written_and_computes_the_same(name: str, tmp_path: Path) -> None:
    network = with_width(MODELS[name].network(), 1 if name == "yolov4-tiny" else 0.25)
    torch.manual_seed(4)
    model = with_statistics(DetectionModel(network))
    (tmp_path / "n.cfg").write_text(write_cfg(network))
    write_weights(tmp_path / "n.weights", network, model.state_dict(), seen=640)
    # Out and in again: into a network that was read from the cfg.
    back = read_weights(tmp_path / "n.weights", read_cfg(str(tmp_path / "n.cfg")).network)
    assert (back.seen, back.filled) == (640, back.convolutions)
    assert classes_of(tmp_path / "n.weights", network) == 80
    model.load_state_dict(back.state, strict=False)
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.eps = OPENCV_EPS
    theirs = cv2.dnn.readNetFromDarknet(str(tmp_path / "n.cfg"), str(tmp_path / "n.weights"))
    image = torch.rand(1, 3, 96, 96, generator=torch.Generator().manual_seed(1))
    theirs.setInput(image.numpy())
    wanted = theirs.forward([f"conv_{number}" for number in network.predictors()])
    if name == "yolov4-csp":  # OpenCV applies the logistic here, the head's decoding does it in ours
        wanted = [np.log(raw / (1 - raw)) if raw.min() > 0 and raw.max() < 1 else raw for raw in wanted]
    with torch.no_grad():
        for mine, raw in zip(model(image), wanted, strict=True):
            np.testing.assert_allclose(mine.numpy(), raw, rtol=1e-3, atol=1e-4 * np.abs(raw).max())


def written(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    path = tmp_path / "w.weights"
    write_weights(path, TINY, with_statistics(DetectionModel(TINY)).state_dict())
    return path


def test_a_truncated_file_fills_the_first_layers(tmp_path: Path) -> None:
    whole = written(tmp_path).read_bytes()
    state = DetectionModel(TINY).state_dict()
    first_two = sum(
        state[f"layers.{layer}.{name}"].numel()
        for layer in (0, 1)
        for name in ("conv.weight", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var")
    )
    (tmp_path / "backbone.conv.2").write_bytes(whole[: 20 + 4 * first_two])
    found = read_weights(tmp_path / "backbone.conv.2", TINY)
    assert (found.filled, found.convolutions) == (2, 21)
    assert {name.split(".")[1] for name in found.state} == {"0", "1"}
    assert classes_of(tmp_path / "backbone.conv.2", TINY) is None


def test_the_older_header_counts_in_32_bits(tmp_path: Path) -> None:
    whole = written(tmp_path).read_bytes()
    (tmp_path / "old.weights").write_bytes(struct.pack("<4i", 0, 1, 0, 77) + whole[20:])
    old, new = read_weights(tmp_path / "old.weights", TINY), read_weights(tmp_path / "w.weights", TINY)
    assert old.seen == 77
    assert all(torch.equal(old.state[name], tensor) for name, tensor in new.state.items())


def test_variances_below_zero_are_fixed_and_reported(tmp_path: Path) -> None:
    model = with_statistics(DetectionModel(TINY))
    state = model.state_dict()
    state["layers.0.norm.running_var"][1] = -2e-5
    write_weights(tmp_path / "w.weights", TINY, state)
    found = read_weights(tmp_path / "w.weights", TINY)
    assert found.notes == ("1 negative running variance was set to zero",)
    model.load_state_dict(found.state, strict=False)
    with torch.no_grad():
        assert all(raw.isfinite().all() for raw in model(torch.rand(1, 3, 64, 64)))


def test_classes_are_found_from_the_length(tmp_path: Path) -> None:
    assert classes_of(written(tmp_path), with_classes(TINY, 80)) == 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda b: b[:-4], "ends in the middle of layer 36"),
        (lambda b: b + b"\0" * 8, "values, but the network has only"),
        (lambda b: b[:-3], "is truncated or damaged"),
        (lambda b: b[:10], "is too short"),
        (lambda b: b"PK\x03\x04" + b[4:], "is not a Darknet weights file"),
        (lambda b: b[:-4] + struct.pack("<f", float("nan")), "NaN or infinite values in 'layers.36.conv"),
    ],
)
def test_a_damaged_file_is_reported_in_a_sentence(change, words: str, tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match=words):
        read_weights(path, TINY)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_weights(tmp_path / "none.weights", TINY)


@settings(settings.get_profile("files"))
@given(st.binary(max_size=400), st.integers(0, 2**20))
def test_no_bytes_give_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, cut: int
) -> None:
    folder = tmp_path_factory.getbasetemp()
    whole = written(folder).read_bytes()
    for number, damaged in enumerate(
        (content, whole[: cut % len(whole)], struct.pack("<3iQ", 0, 2, 5, 0) + content)
    ):
        path = folder / f"{number}.weights"
        path.write_bytes(damaged)
        for read in (lambda p=path: read_weights(p, TINY), lambda p=path: classes_of(p, TINY)):
            try:
                read()
            except UserError as error:
                assert str(path) in error.problems[0]


@pytest.mark.skipif("RANKLESS_REAL_DATA" not in os.environ, reason="needs RANKLESS_REAL_DATA")
def test_raw_heads_of_a_real_network() -> None:
    root = Path(os.environ["RANKLESS_REAL_DATA"])
    network = read_cfg(str(root / "weights/yolo-fastest-1.1.cfg")).network
    found = read_weights(root / "weights/yolo-fastest-1.1.weights", network)
    assert found.filled == found.convolutions
    model = DetectionModel(network).eval()
    model.load_state_dict(found.state, strict=False)
    stored = np.load(root / "golden/yolo-fastest-1.1_dog_raw.npz")
    image = torch.from_numpy(stored["input_u8_rgb_hwc"]).permute(2, 0, 1)[None].float() / 255
    with torch.no_grad():
        for raw, name in zip(model(image), ("conv_120", "conv_129"), strict=True):
            assert np.abs(raw[0].numpy() - stored[name]).max() < 1e-4
