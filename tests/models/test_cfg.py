"""Darknet's cfg files: what is read, what is refused, and that what is written says the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankless.errors import UserError
from rankless.models.darknet.cfg import read_cfg
from rankless.models.darknet.cfg_text import write_cfg
from rankless.models.darknet.network import Conv, MaxPool, Multiply, Network, Route, Shortcut, Yolo
from rankless.models.detectors.convolutional import DetectionModel
from rankless.models.detectors.darknet import MODELS
from rankless.models.heads.yolo.codec import HeadLoss

HEAD = """
[convolutional]
filters=21
size=1
activation=linear

[yolo]
mask=0,1,2
anchors = 10,14,  23,27,  37,58
classes=2
num=3
"""
NET = "[net]\nwidth=64\nheight=96\n"


def network_of(body: str, *, head: str = HEAD, net: str = NET) -> Network:
    return read_cfg(net + body + head).network


def problems_of(text: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        read_cfg(text)
    return list(caught.value.problems)


def test_every_usual_section_is_read_and_computes() -> None:
    found = network_of("""
[convolutional]
batch_normalize=1
filters=8
size=3
stride=2
pad=1
activation=mish   # a comment
[convolutional]
filters=8
size=3
groups=8
padding=2
dilation=2
activation=relu6
[maxpool]
size=2
stride=1
[shortcut]
from=-3
activation=leaky
[route]
layers=-1, 0
groups=2
group_id=1
[dropout]
probability=.3
[maxpool]
stride=2
size=2
[avgpool]
[convolutional]
filters=8
activation=logistic
[scale_channels]
from=-3
[upsample]
stride=2
[route]
layers=-1,3
""")
    assert found.size == (96, 64)
    assert found.layers[:5] == (
        Conv(8, 3, 2, "mish"),
        Conv(8, 3, 1, "relu6", norm=False, groups=8, padding=2, dilation=2),
        MaxPool(2, 1, 1),
        Shortcut((0,), "leaky"),
        Route((3, 0), 2, 1),
    )
    assert found.layers[9] == Multiply(6)
    head = found.layers[-1]
    assert isinstance(head, Yolo)
    assert head.anchors == ((10, 14), (23, 27), (37, 58))
    assert [h.stride for h in found.heads()] == [2]
    # The padding of 2, doubled by the dilation, adds four pixels: maps of unequal size are Darknet's business
    # too, so the sizes are only right where a cfg keeps them.
    model = DetectionModel(network_of("[convolutional]\nfilters=8\nsize=3\npad=1\nstride=2\n"))
    (raw,) = model(torch.rand(1, 3, 96, 64))
    assert raw.shape == (1, 21, 48, 32)


def test_the_yolo_section_brings_its_own_loss() -> None:
    keys = (
        "ignore_thresh=.6\niou_thresh=.2\niou_loss=giou\niou_normalizer=.1\nobj_normalizer=.4\n"
        "cls_normalizer=.5\nlabel_smooth_eps=.05\nmax_delta=3\nscale_x_y=1.1\n"
    )
    head = network_of("", head=HEAD + keys).heads()[0]
    assert (head.scale_xy, head.anchor_iou) == (1.1, 0.2)
    wanted = HeadLoss(
        box_loss="giou",
        box=0.1,
        objectness=0.4,
        classes=0.5,
        ignore=0.6,
        smoothing=0.05,
        largest_gradient=3.0,
    )
    assert head.loss == wanted


def test_letterbox_and_nms_are_the_files() -> None:
    plain = read_cfg(NET + HEAD)
    assert (plain.letterbox, plain.nms) == (False, "iou")
    other = read_cfg(NET + "letter_box=1\n" + HEAD + "nms_kind=greedynms\nbeta_nms=0.6\n")
    assert (other.letterbox, other.nms) == (True, "diou")


def test_what_is_not_used_is_reported() -> None:
    (note,) = read_cfg(NET + HEAD + "jitter=.3\nrandom=1\n").notes
    assert "jitter (line 15), random (line 16)" in note


@pytest.mark.parametrize("section", ["[route]\nlayers=-1,-1\n", "[shortcut]\nfrom=-1\n"])
def test_a_layer_that_is_read_twice_computes(section: str) -> None:
    network = network_of("[convolutional]\nfilters=4\nsize=1\nactivation=leaky\n" + section)
    (head,) = DetectionModel(network)(torch.zeros(1, 3, 32, 32))
    assert head.shape == (1, 21, 32, 32)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("[lstm]\n", "model.cfg:4: section [lstm] is not supported; expected one of convolutional"),
        ("[convolutionl]\n", "model.cfg:4: section [convolutionl] is not supported; did you mean"),
        ("[convolutional]\nfilters=0\n", "model.cfg:5: [convolutional] filters=0: expected a whole"),
        ("[convolutional]\nfilters=9999999\n", "model.cfg:5: [convolutional] filters=9999999: expected"),
        ("[convolutional]\nactivation=gauss\n", "model.cfg:5: [convolutional] activation=gauss: exp"),
        ("[convolutional]\nbinary=1\n", "model.cfg:5: [convolutional] binary=1 is not supported"),
        ("[convolutional]\nfilters=4\ngroups=2\n", "model.cfg:6: [convolutional] groups=2 does not divide"),
        ("[route]\nlayers=-1\n", "model.cfg:5: [route] layers=-1: expected numbers of earlier layers"),
        ("[route]\nlayers=a\n", "model.cfg:5: [route] layers=a: expected comma-separated numbers"),
        ("[shortcut]\nfrom=5\n", "model.cfg:5: [shortcut] from=5: expected numbers of earlier layers"),
        ("[maxpool]\nsize=2\nstride=2\n[shortcut]\nfrom=-1\n[maxpool]\nsize=2\nstride=2\n[route]\nlayers=-1,-2\n",
         "model.cfg:12: [route] reads layers of different resolutions (strides 4, 2)"),
        ("hello\n", "model.cfg:4: 'hello': expected [section] or key=value"),
    ],
)  # fmt: skip
def test_an_error_names_section_and_line(body: str, problem: str) -> None:
    assert problems_of(NET + body + HEAD)[0].startswith(problem)


def test_all_errors_come_at_once() -> None:
    found = problems_of(NET + "[gru]\n[convolutional]\nsize=x\nstride=-1\n[crnn]\n" + HEAD)
    assert [problem.split(": ")[0] for problem in found] == [f"model.cfg:{line}" for line in (4, 6, 7, 8)]
    assert len(problems_of("[net]\n" + "no option\n" * 9)) == 6  # then it is no cfg file


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD, r"starts with \[convolutional\] in line 2; expected a Darknet cfg file"),
        ("[net]\n", r"has no \[yolo\] section"),
        (NET + HEAD.replace("filters=21", "filters=20"), "a layer with 20 filters; expected 21"),
        (NET + HEAD + "new_coords=1\n", "expected activation=logistic for new_coords=1"),
        (NET + HEAD.replace("mask=0,1,2", "mask=0,1,3"), "expected indices of the 3 anchors"),
        (NET + "channels=1\n" + HEAD, "expected 3, for color images"),
    ],
)
def test_a_file_that_is_no_detector(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_cfg(text)


def test_files_are_read_whatever_their_line_ends_and_encoding(tmp_path: Path) -> None:
    text = "# Größe\n" + NET + HEAD
    for number, content in enumerate(
        [text.encode(), b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode(), text.encode("latin-1")]
    ):
        (tmp_path / f"{number}.cfg").write_bytes(content)
        assert read_cfg(str(tmp_path / f"{number}.cfg")).network == network_of("")
    with pytest.raises(UserError, match="cannot be read"):
        read_cfg(str(tmp_path / "none.cfg"))


@settings(settings.get_profile("files"))
@given(
    st.text(max_size=80),
    st.integers(0, 15),
    st.sampled_from(["layers", "filters", "size", "mask", "anchors", "from"]),
)
def test_no_text_gives_a_traceback(text: str, line: int, key: str) -> None:
    lines = (NET + "[shortcut]\nfrom=-1\n" + HEAD).splitlines()
    lines.insert(line, text)
    for broken in ("\n".join(lines), NET + HEAD + f"{key}={text}\n", text + "\n[net]"):
        try:
            read_cfg(broken)
        except UserError as error:
            assert all(len(problem) < 600 for problem in error.problems)


@pytest.mark.parametrize("name", [name for name, variant in MODELS.items() if not variant.anchor_free])
def test_what_is_written_is_read_back_equal(name: str) -> None:
    network = MODELS[name].network()
    for letterbox, nms in ((False, "iou"), (True, "diou")):
        back = read_cfg(write_cfg(network, letterbox=letterbox, nms=nms))  # type: ignore[arg-type]
        assert not back.notes
        assert back.network.layers == network.layers
        assert (back.network.size, back.letterbox, back.nms) == (network.size, letterbox, nms)


def test_depthwise_sections_of_forks_are_grouped_convolutions() -> None:
    """As in the published mobilenet_v1.cfg: no filters, as many as the channels that it reads."""
    first = "[convolutional]\nbatch_normalize=1\nfilters=8\nsize=3\nstride=2\npad=1\nactivation=relu\n"
    same = "batch_normalize=1\nsize=3\nstride=2\npad=1\nactivation=relu\n"
    found = network_of(f"{first}[depthwise_convolutional]\n{same}")
    assert found == network_of(f"{first}[convolutional]\nfilters=8\ngroups=8\n{same}")
    assert network_of(f"[depthwise_convolutional]\n{same}").layers[0] == Conv(3, 3, 2, "relu", groups=3)
    (problem,) = problems_of(NET + "[depthwise_convolutional]\nstride_x=2\n" + HEAD)
    assert "[depthwise_convolutional] stride_x differs from stride" in problem
    assert "groups=8" in write_cfg(found)  # Darknet itself knows no such section


def test_what_darknet_does_not_have_is_refused() -> None:
    from rankless.models.darknet.reshape import with_activation, with_anchor_free_heads, with_involution

    network = MODELS["yolov4-tiny"].network()
    for changed, word in (
        (with_involution(network, 3), "involution"),
        (with_anchor_free_heads(network, 0), "free"),
        (with_activation(network, "prelu"), "prelu"),
    ):
        with pytest.raises(UserError, match=word):
            write_cfg(changed, foreign=True)


@pytest.mark.parametrize("replaces", [False, True])
def test_cfg_with_involution_is_read_back_equal(replaces: bool) -> None:
    from rankless.models.darknet.reshape import with_involution

    network = with_involution(MODELS["yolov4"].network(), 7, replaces=replaces)
    assert read_cfg(write_cfg(network)).network.layers == network.layers
    (problem,) = problems_of(NET + "[involution]\nsize=4\n" + HEAD)
    assert "[involution] size=4" in problem and "odd" in problem


@pytest.mark.skipif("RANKLESS_REAL_DATA" not in os.environ, reason="needs RANKLESS_REAL_DATA")
@pytest.mark.parametrize("name", ["yolov3", "yolov3-spp", "yolov3-tiny", "yolov4", "yolov4-tiny"])
def test_the_named_network_is_that_of_the_official_cfg(name: str) -> None:
    official = read_cfg(os.environ["RANKLESS_REAL_DATA"] + f"/cfg/{name}.cfg").network
    assert official.layers == MODELS[name].network().layers
