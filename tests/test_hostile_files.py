"""Whatever a stranger's file or a slip of the hand is, the command line answers with a sentence, and soon."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from rankless.cli import main
from rankless.errors import HARMFUL, UserError
from rankless.models import zoo
from rankless.models.classifiers import catalog
from rankless.models.detectors import darknet
from rankless.models.weights_files import weights
from rankless.recipe import load
from rankless.recipe.model_kinds import Densenet, Model

pytestmark = pytest.mark.timeout(60)  # a pipe waits for ever

DIGITS = "9" * 5000  # Python converts 4,300 to an integer


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small data set of Darknet's layout in the current folder, called ``d``."""
    monkeypatch.chdir(tmp_path)
    for split in ("train", "val"):
        for part in ("images", "labels"):
            (tmp_path / "d" / part / split).mkdir(parents=True)
        for number in range(2):
            color = (99 * number, 99 * (split == "val"), 9)
            Image.new("RGB", (32, 32), color).save(tmp_path / f"d/images/{split}/{number}.png")
            (tmp_path / f"d/labels/{split}/{number}.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    (tmp_path / "d/classes.txt").write_text("cat\n")
    return tmp_path / "d"


def reported(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What a command says on its standard error before it exits with 2."""
    code = main([str(word) for word in words])
    said = capsys.readouterr().err
    assert code == 2, said
    assert "Traceback" not in said
    assert len(said) < 6000
    assert not HARMFUL.search(said.replace("\n", ""))
    return said


@contextlib.contextmanager
def limited(kind: int, most: int) -> Iterator[None]:
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def addresses(more: int) -> int:
    """The size of this process's address space, in bytes, and ``more``."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + more


VERBS = [
    ["data", "check", "{}"],
    ["data", "stats", "{}"],
    ["data", "show", "{}", "--out", "o.png"],
    ["data", "anchors", "{}"],
    ["data", "anchors", "d", "--model", "{}"],
    ["data", "convert", "{}", "--to", "coco", "--out", "o"],
    ["data", "convert", "d", "--to", "coco", "--out", "{}/o"],
    ["data", "check", "d", "--fix", "--out", "{}/o"],
    ["data", "pack", "{}", "--out", "o"],
    ["data", "split", "{}", "--out", "o"],
    ["train", "{}"],
    ["train", "--resume", "--run", "{}"],
    ["train", "digits", "model.cfg={}"],
    ["predict", "{}", "d"],
    ["digest", "{}"],
    ["evaluate", "{}"],
    ["import", "{}", "--model", "yolov4-tiny", "--out", "o.safetensors"],
    ["import", "d/classes.txt", "--cfg", "{}", "--out", "o.safetensors"],
    ["import", "d/classes.txt", "--model", "yolov4-tiny", "--names", "{}", "--out", "o.safetensors"],
]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["x" * 300, "pipe", "loop", "/dev/zero", "", "a\0b", "socket"])
@pytest.mark.usefixtures("data")
def test_a_path_that_is_no_file_is_a_sentence_in_every_verb(capsys: pytest.CaptureFixture[str], place: str):
    os.mkfifo("pipe")
    Path("loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
        for verb in VERBS:
            if place == "" and verb[-1] in ("{}/o", "model.cfg={}"):
                continue  # that is a folder that can be made, and no cfg
            reported(capsys, *(word.format(place) for word in verb))


@pytest.mark.parametrize("verb", [["convert", "--to", "coco"], ["pack"], ["split"]])
@pytest.mark.usefixtures("data")
def test_the_root_of_the_file_system_is_no_data_set(capsys: pytest.CaptureFixture[str], verb: list[str]):
    assert "the root of the file system" in reported(capsys, "data", verb[0], "/", *verb[1:], "--out", "o")


@pytest.mark.parametrize("name", ["pipe.yaml", "pipe.cfg", "pipe.json", "pipe.csv", "pipe.txt", "pipe.tar"])
@pytest.mark.usefixtures("data")
def test_a_pipe_is_not_waited_for(capsys: pytest.CaptureFixture[str], name: str):
    os.mkfifo(name)
    reported(capsys, "data", "check", name)
    reported(capsys, "train", name)
    reported(capsys, "train", "digits", f"data.root={name}")


def test_pipes_and_loops_within_a_data_set(data: Path, capsys: pytest.CaptureFixture[str]):
    images = data / "images" / "train"
    os.mkfifo(images / "pipe.png")
    (images / "loop.png").symlink_to("loop.png")
    (images / "zero.png").symlink_to("/dev/zero")
    (images / "folder.png").mkdir()
    (images / "up").symlink_to("..")
    (data / "images" / "loop").symlink_to("loop")
    (data / "labels" / "train" / "0.txt").unlink()
    os.mkfifo(data / "labels" / "train" / "0.txt")
    assert main(["data", "check", "d"]) == 1
    assert "it is a pipe; expected a regular file" in capsys.readouterr().out
    for verb in (["stats"], ["show", "--out", "o.html"], ["convert", "--to", "coco", "--out", "o"]):
        main(["data", verb[0], "d", *verb[1:]])
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("verb", [["convert", "--to", "coco"], ["split"]], ids=["convert", "split"])
def test_an_image_without_an_end_is_not_copied(data, capsys, verb):
    """It filled the disk."""
    (data / "images" / "train" / "zero.png").symlink_to("/dev/zero")
    (data / "labels" / "train" / "zero.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    with limited(resource.RLIMIT_FSIZE, 1 << 24):  # no module's bytecode is larger
        said = reported(capsys, "data", verb[0], "d", *verb[1:], "--out", "o")
    assert "zero.png: cannot be copied to --out o: it is a device; expected a regular file" in said
    assert not Path("o").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["train", "digits", f"seed={DIGITS}"],
        ["train", "digits", "seed=0x" + "f" * 3990],
        ["train", "digits", f"optim.lr={DIGITS}"],
        ["data", "show", "d", "--seed", DIGITS],
        ["data", "show", "d", "--count", DIGITS],
        ["data", "anchors", "d", "--image-size", DIGITS],
        ["data", "split", "d", "--out", "o", "--seed", DIGITS],
        ["predict", "x", f"digits:val:{DIGITS}"],
        ["import", "x", "--classes", DIGITS, "--model", "yolov4-tiny", "--out", "o.safetensors"],
    ],
    ids=lambda words: " ".join(words)[:40],
)
@pytest.mark.usefixtures("data")
def test_a_number_of_thousands_of_digits(capsys: pytest.CaptureFixture[str], words: list[str]):
    reported(capsys, *words)


@pytest.mark.parametrize(
    ("key", "limit"),
    [
        ("model.width=1e6", "at most 64"),
        ("model.image_size=1000000", "at most 16,384"),
        ("batch.images=1000000000", "at most 1,048,576"),
        ("data.train_images=1000000000000", "at most 10,000,000"),
        ("workers=100000", "from 0 to 256"),
        ("optim.lr=1e300", "at most 1,000,000,000"),
        ("data.augment.scale=1e308", "from 0 to 1,000"),
        ("model.name=densenet121 model.densenet.growth=1000000", "from 1 to 4,096"),
    ],
)
def test_a_digit_too_many_is_reported_with_the_limit(capsys, key, limit):
    assert limit in reported(
        capsys, "train", *(["digits-classify"] if "densenet" in key else ["digits"]), *key.split()
    )


@pytest.mark.parametrize("recipe", ["yolov4-tiny", "resnet18"])
@pytest.mark.usefixtures("data")
def test_a_step_that_fits_nowhere_is_reported_before_it(capsys: pytest.CaptureFixture[str], recipe: str):
    keys = ["model.image_size=16384", "batch.micro=64", "batch.images=64", "data.root=d"]
    said = reported(capsys, "train", recipe, *keys)
    assert "a micro-batch of 64 images of 16,384 × 16,384 pixels needs at least" in said
    assert "GB of memory, but only " in said
    assert not Path("runs").exists() or not any(Path("runs").rglob("*.jsonl"))


@pytest.mark.slow
@pytest.mark.usefixtures("data")
def test_large_and_deep_recipes(capsys: pytest.CaptureFixture[str]):
    file = Path("r.yaml")
    file.write_text("# " + "x" * 10_000_000)
    assert "more than the allowed 1,048,576" in reported(capsys, "train", file)
    file.write_text("a: " + "[" * 100_000)
    reported(capsys, "train", file)
    file.write_text("".join(f"k{number}: 1\n" for number in range(3000)))
    assert "more than 1,000 keys" in reported(capsys, "train", file)
    file.write_text('model: {name: "' + "y" * 900_000 + '"}')
    assert "no such model" in reported(capsys, "train", file)
    file.write_text('data: {root: "a\\0b"}')
    reported(capsys, "train", file)


@pytest.mark.usefixtures("data")
def test_process_substitution_says_what_to_do(capsys: pytest.CaptureFixture[str]):
    ends = os.pipe()
    try:
        said = reported(capsys, "train", f"/dev/fd/{ends[0]}")
    finally:
        for end in ends:
            os.close(end)
    assert "it is a pipe; expected a regular file; copy its contents to a file" in said


HOSTILE = ("\x1b[31mred\x07.png", "[red]x.png", "\u202egnp.exe.png", "a\nerror: b.png", b"\xff\xfe.png")


def test_names_out_of_files_move_no_cursor(data: Path, capsys: pytest.CaptureFixture[str]):
    folder = os.fsencode(data / "images" / "train")
    for name in HOSTILE:
        Path(os.fsdecode(folder + b"/" + os.fsencode(name))).write_bytes(b"no image")
    (data / "classes.txt").write_text("\x1b[31mcat\u202e[bold]\n")
    for words in (["check"], ["check", "--json"], ["stats"], ["stats", "--json"], ["check", "--fix"]):
        main(["data", words[0], "d", *words[1:]])
        said = capsys.readouterr()
        assert not HARMFUL.search((said.out + said.err).replace("\n", ""))
        assert "\nerror: b.png" not in said.out
        if words == ["check"]:
            assert "[red]x.png" in said.out
        if words == ["check", "--json"]:
            assert repr("\x1b[31m")[1:-1] in str(json.loads(said.out))


def test_names_out_of_files_are_text_on_a_page(data: Path):
    source = data / "images" / "train" / "0.png"
    for name in ("<script>alert(1).png", "\x1b[31m.png", "\udcff.png", '"onload="x.png'):
        shutil.copy(source, source.with_name(name))
    (data / "classes.txt").write_text("<b onclick=x>\n")
    assert main(["data", "show", "d", "--count", "9", "--out", "page.html"]) == 0
    page = Path("page.html").read_text("utf-8")
    assert "<script>alert" not in page
    assert page.count("<script") == 1  # the page's own
    assert "<b onclick" not in page
    assert '"onload="x' not in page
    assert not HARMFUL.search(page.replace("\n", ""))


@pytest.mark.parametrize(
    "annotations",
    [
        "[" * 1_000_000,
        '{"images":' + "[" * 200_000 + "]" * 200_000 + "}",
        '{"images":[{"id":1,"file_name":"a.png"}],"categories":[{"id":1,"name":"c"}],"annotations":[{"id":1,'
        '"image_id":1,"category_id":1,"segmentation":' + "[" * 100_000 + "]" * 100_000 + "}]}",
        '{"images":[{"id":1,"file_name":"a.png"}],"categories":[{"id":1,"name":"c"}],"annotations":[{"id":1,'
        f'"image_id":1,"category_id":{DIGITS},"bbox":[{DIGITS},1,2,3]' + "}]}",
        '{"images":[{"id":1,"file_name":"a.png"}],"categories":[{"id":1,"name":"c"}],"annotations":[{"id":1,'
        '"image_id":1,"category_id":1,"segmentation":{"counts":[1,99999999999999],'
        '"size":[99999999,99999999]}}]}',
    ],
    ids=["deep", "deep images", "deep outline", "digits", "mask"],
)
def test_coco_files_of_a_stranger(tmp_path, monkeypatch, capsys, annotations):
    monkeypatch.chdir(tmp_path)
    Path("c/annotations").mkdir(parents=True)
    Path("c/train").mkdir()
    Image.new("RGB", (8, 8)).save("c/train/a.png")
    Path("c/annotations/instances_train.json").write_text(annotations)
    assert main(["data", "check", "c"]) in (1, 2)
    assert "Traceback" not in capsys.readouterr().err


BOMB = """
[net]
width=416
height=416
[convolutional]
filters=1
size=3
[convolutional]
filters=30000
[convolutional]
filters=40000
[convolutional]
filters=18
activation=linear
[yolo]
mask=0,1,2
anchors=1,1,2,2,3,3
classes=1
"""
LIMITED = """
import resource, sys
from pathlib import Path
from rankless.cli import main
room = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + (2 << 30)
resource.setrlimit(resource.RLIMIT_AS, (room, room))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_a_small_cfg_takes_no_gigabytes(tmp_path: Path, forked: Any):
    (tmp_path / "a.cfg").write_text(BOMB)
    (tmp_path / "limited.py").write_text(LIMITED)
    first_layer = bytes(4 * 28)
    (tmp_path / "a.weights").write_bytes(struct.pack("<3iQ", 0, 2, 5, 0) + first_layer)
    words = "import a.weights --cfg a.cfg --out o.safetensors"
    ended = forked("limited.py", *words.split(), cwd=tmp_path)
    assert ended.returncode == 2, ended.stderr
    assert "network" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_network_larger_than_the_memory_is_never_begun():
    with limited(resource.RLIMIT_AS, addresses(200 << 20)):
        with pytest.raises(UserError, match=r"parameters needs at least .* of memory, but only .* are free"):
            zoo.build(Model(name="yolov4-tiny", width=4.0), 80)
        with pytest.raises(UserError, match=r"are free; use a smaller model\.densenet\.growth"):
            catalog.build_classifier(Model(name="densenet121", densenet=Densenet(growth=512)), 10)


@pytest.mark.usefixtures("data")
def test_weights_that_ask_for_a_giant_image_are_not_obeyed(capsys):
    recipe = load.default(["model.image_size=16384", "model.width=0.25", "model.name=yolov3-tiny"])
    state = zoo.build(recipe.model, 1).state_dict()
    weights.save(Path("w.safetensors"), state, recipe=recipe, class_names=["cat"])
    with limited(resource.RLIMIT_AS, addresses(1 << 30)):
        said = reported(capsys, "predict", "w.safetensors", "d/images/train/0.png", "--out", "o")
    assert "w.safetensors: an image of 16,384 × 16,384 pixels, the size in its recipe, needs at least" in said


@pytest.mark.slow
def test_estimated_sizes_are_those_of_the_built_network():
    for name in ("yolov3-tiny", "yolov4-tiny", "yolov4-csp"):
        network = darknet.network(Model(name=name), 3)
        built = zoo.build(Model(name=name), 3)
        floats = sum(t.numel() for t in built.state_dict().values() if t.is_floating_point())
        assert network.parameters() == floats


def test_images_that_claim_to_be_huge(data: Path, capsys: pytest.CaptureFixture[str]):
    images = data / "images" / "train"
    Image.new("RGB", (16, 16)).save(images / "huge.jpg")
    jpeg = bytearray((images / "huge.jpg").read_bytes())
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = struct.pack(">HH", 65500, 65500)
    (images / "huge.jpg").write_bytes(jpeg)
    with (images / "long.png").open("wb") as file:
        file.write((images / "0.png").read_bytes())
        file.truncate(1 << 40)
    assert main(["data", "check", "d"]) == 1
    said = capsys.readouterr().out
    assert "at most 178 million pixels" in said
    assert "it has 1,099,511,627,776 bytes, more than the allowed 1,073,741,824" in said
