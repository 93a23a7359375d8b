"""The command line: light to start, one clear sentence for a mistake, the right exit codes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rankless import __main__ as rankless_main
from rankless import __version__ as rankless_version
from rankless import cli
from rankless.hardware.compute_device import compute_device
from rankless.models.weights_files.weights import digest_file
from rankless.recipe.installed import EDITOR_LINE, shipped
from rankless.recipe.load import dump, load
from rankless.recipe.schema import Recipe

HEAVY = {"torch", "torchvision", "numpy", "sklearn", "PIL", "scipy", "matplotlib"}


def problems(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """The lines on stderr of a command that must exit with 2."""
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines
    assert all(line.startswith("error: ") for line in lines)
    return [line.removeprefix("error: ") for line in lines]


class Calls:
    """Stands in for training; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.fault: BaseException | None = None

    def train(self, recipe, run, *, devices, resume, sinks, **_):
        if self.fault:
            raise self.fault
        self.sinks = sinks
        self.asked.append((recipe, run, devices, resume))
        return 5


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Calls:
    """Training replaced, in an empty working directory."""
    made = Calls()
    monkeypatch.setattr("rankless.launch.local.train", made.train)
    monkeypatch.chdir(tmp_path)
    return made


# --- starting ---------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_light_commands_import_nothing_heavy():
    lines = ("--help", "import --help", "data --help", "data split --help", "recipes", "train digits lr=x")
    code = (
        "import sys; from rankless import Recipe, UserError, load_recipe; load_recipe('digits', ['seed=2']); "
        f"from rankless.cli import main; codes = [main(line.split()) for line in {lines!r}]; "
        f"print(*codes, *sorted({HEAVY!r} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "0 0 0 0 0 2"


def test_help_names_every_command_and_a_first_step(capsys):
    assert cli.main(["--help"]) == 0
    page = capsys.readouterr().out
    for verb in ("train", "evaluate", "predict", "digest", "verify", "doctor", "recipes", "import"):
        assert f"│ {verb} " in page
        assert cli.main([verb, "--help"]) == 0
        own = capsys.readouterr().out
        assert own.startswith(f"Usage: rankless {verb} ")
        assert f"Example:\n  rankless {verb}" in own.replace("Examples", "Example")
        assert len(own.splitlines()) < 48
    assert page.rstrip().endswith("rankless train digits")


def test_without_a_command_six_are_shown_to_begin_with_and_where_all_are(capsys):
    assert cli.main([]) == 0
    page = capsys.readouterr().out
    first = re.findall(r"^  rankless (\w+)", page, re.MULTILINE)
    assert first == ["doctor", "train", "data", "train", "predict", "report"]
    assert "rankless --help" in page


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"{rankless_version}\n"


# --- mistakes ---------------------------------------------------------------------------------------------


MISTAKES = [
    ("trian", "'trian': no such command; did you mean 'train'?"),
    ("--hlep", "--hlep: no such option; did you mean '--help'?"),
    ("data --hlep", "--hlep: no such option; did you mean '--help'?"),
    ("data --frobnicate", "--frobnicate: no such option; see: rankless data --help"),
    ("data chek x", "'chek': no such command; did you mean 'check'?"),
    ("frobnicate", "'frobnicate': no such command: expected one of train, new, attach"),
    ("train digits --devces 2", "--devces: no such option; did you mean '--devices'?"),
    ("train digits --run", "--run needs a value; see: rankless train --help"),
    ("train digits --resume=maybe", "--resume is 'maybe': expected no value"),
    (
        "data check",
        "ROOT is missing: expected a data folder, or a file such as data.yaml; see: rankless data",
    ),
    ("train digits --devices two", "--devices is 'two': expected a whole number"),
    ("train digits --devices 0", "--devices is 0: expected at least 1 device"),
    ("train --resume", "--resume needs a run"),
    ("train digits --detach", "--detach: has no effect without --hosts"),
    ("train digits --hosts localhost --detach --sync", "--detach: the first host coordinates"),
    ("attach nothing", "nothing: no detached training was started from this machine"),
    ("train --resume .", "as in --resume --run ."),
    ("predict x y --save coco --save yolo", "--save is given more than once"),
    ("train digits model.pretrained=hf://a/x.bin", "'hf://a/x.bin': expected hf://OWNER/NAME"),
    ("train my.cfg", "my.cfg: expected a recipe as the first argument; pass it as model.cfg=my.cfg"),
    ("train my.pth", "my.pth: expected a recipe as the first argument; pass it as model.pretrained=my.pth"),
    ("train my.pt data=x", "rankless train model.pretrained=my.safetensors data.root=x"),
    ("train resnet50", "'resnet18'? for the model of this name, use task=classify model.name=resnet50"),
    ("train --resume --run gone", "gone: nothing to resume (no recipe.yaml"),
    ("train digts", "'digts': no such file, folder or shipped recipe; did you mean 'digits'?"),
    (
        "train digits model.pretrained=x.onnx",
        "model.pretrained is 'x.onnx': an ONNX file, which cannot be trained",
    ),
    (
        "train fine-tune model.pretrained=hf://a/b/x.bin data.root=digits",
        "model.pretrained: hf://a/b/x.bin: expected a .safetensors file",
    ),
    ("train ssdlite320", "`rankless recipes` for the recipes, or `rankless models`"),
    ("train digits other", "command line: 'other': expected key=value"),
    ("evaluate", "TARGET is missing: expected a run directory, weights file or export; see: rankless eval"),
    ("evaluate x.onnx other", "'other': expected key=value"),
    ("predict x.onnx", "no images given"),
    ("predict x.onnx digits:val:0 --confidence 25", "--confidence is '25': expected a number from 0 to 1"),
    ("predict x.onnx digits:val:0 --confidence nan", "--confidence is 'nan'"),
    ("predict x.onnx digits:val:0 --format cvatt", "--format contains 'cvatt'"),
    ("predict x.onnx digits:val:0 --save jsn", "--save contains 'jsn'"),
    ("predict x.onnx x --save json --format csv", "are the same option; remove one"),
    ("digest gone", "gone: no such file"),
    ("verify --worlds 1,x", "--worlds is '1,x': expected whole numbers of at least 1, as in 1,2,4"),
    ("verify --steps 1.5", "--steps is '1.5'"),
    ("import x.pt", "--out is missing: expected the weights file to write; see: rankless import --help"),
    ("import x.pt --out o --classes many", "--classes is 'many'"),
    ("import x.pt --out o y.pt", "'y.pt': expected key=value"),
    ("recipes digts", "no shipped recipe 'digts'; did you mean 'digits'?"),
    ("export x.onnx", "--format is missing: expected onnx, openvino, torchscript, pt2, triton, pth, darknet"),
    ("--show-completion csh", "--show-completion is 'csh': expected bash, zsh or fish"),
    ("train digits precision=O2", "bf16 and fp16 compute in half precision (Apex's O1)"),
    ("train digits precision=bf16-pure", "--pure measures the speed of O3"),
    ("verify --version=0.5", "--version takes no value; see: rankless verify --help"),
    ("data show --help=-1 -1", "--help takes no value; see: rankless data show --help"),
    ("recipes digits more", "'more': unexpected argument; see: rankless recipes --help"),
    (
        "watch runs/digts",
        "runs/digts: no such run; to wait for this run to start, add --wait; did you mean 'runs/digits'?",
    ),
    ("watch digits", "to wait for this run to start, add --wait; did you mean 'runs/digits'?"),
    ("evaluate runs/digts", "expected a run directory or a weights file; did you mean 'runs/digits'?"),
    ("report runs/digts", "runs/digts: no such run; did you mean 'runs/digits'?"),
    ("audit runs/digts", "runs/digts: no such directory; expected a run directory with checkpoints; did you"),
    ("train --resume --run runs/digts", "or remove --resume; did you mean 'runs/digits'?"),
    ("watch gone/run --web", "gone/run: no such run; to wait for this run to start, add --wait"),
    ("report runs/digits --out x.txt", "--out x.txt: expected a name that ends in .html"),
]


@pytest.mark.parametrize(("words", "sentence"), MISTAKES)
def test_a_mistake_is_one_sentence(calls, capsys, words, sentence):
    Path("x.onnx").write_text("x")
    Path("runs/digits").mkdir(parents=True)
    Path("runs/digits/journal.jsonl").touch()
    (line,) = problems(capsys, *words.split())
    assert sentence in line
    assert not calls.asked


def test_every_error_of_a_recipe_has_its_line(calls, capsys):
    Path("my.yaml").write_text("epochs: 0\noptim: {lrr: 1}\n")
    assert problems(capsys, "train", "my.yaml", "lr=1") == [
        "my.yaml:1: 'epochs' is 0: expected a whole number of at least 1",
        "my.yaml:2: key 'optim.lrr': no such key; did you mean 'optim.lr'?",
        "command line: key 'lr': no such key; did you mean 'optim.lr'?",
    ]


def test_missing_data_of_a_recipe_file_is_reported_with_its_other_errors(calls, capsys):
    Path("my.yaml").write_text("model: {name: yolov9}\ndata: {root: gone/data}\n")
    name, data = problems(capsys, "train", "my.yaml")
    assert "'model.name' is 'yolov9': no such model" in name
    assert data.startswith("data.root is 'gone/data': no such file or folder")


def test_options_of_other_programs_lead_to_keys_all_at_once(calls, capsys):
    words = "train digits --batch-size 8 -j=4 --lr 0.1 --gpu_ids 0,1 --opt_level O2 --devices 1"
    assert problems(capsys, *words.split()) == [
        "--batch-size: no such option; use batch.images=VALUE, the number of images per step on all devices "
        "together (the number per GPU times the number of GPUs)",
        "-j: no such option; use workers=VALUE",
        "--lr: no such option; use optim.lr=VALUE",
        "--gpu_ids: no such option; use --devices N on the command line; a recipe does not specify devices",
        "--opt_level: no such option; use precision; O0 is fp32, O1 is fp16 or bf16",
    ]
    (said,) = problems(capsys, "train", "resnet18", "--test-only")
    assert said.startswith("--test-only: no such option; use the command rankless evaluate RUN")
    (said,) = problems(capsys, "train", "digits", "--model", "resnet50")
    assert "use a recipe, as in rankless train resnet18, or model.name" in said
    words = "predict --weights best.pt --source a.jpg --conf 0.3 --conf-thres=0.3 --foo -1 --max 2"
    see = "; see: rankless predict --help"
    assert [one.removesuffix(see) for one in problems(capsys, *words.split())] == [
        "--weights: no such option; use the first argument (a run or a weights file)",
        "--source: no such option; use the arguments after the first",
        "--conf: no such option; use --confidence VALUE",
        "--conf-thres: no such option; use --confidence VALUE",
        "--foo: no such option",
    ]
    words = "train --epochs 3 --foo --img-size 416 --ba=2"
    found = [one.split(": ")[0] for one in problems(capsys, *words.split())]
    assert found == ["--epochs", "--foo", "--img-size", "--ba"]


def test_a_key_given_twice_is_refused(calls, capsys):
    """Which of the two counts is not said anywhere; the API, which joins lists, takes the last."""
    assert problems(capsys, "train", "digits", "epochs=1", "seed=3", "epochs=2", "--devices", "1") == [
        "epochs=1 and epochs=2: 'epochs' is given more than once; keep only one"
    ]
    (said,) = problems(capsys, "predict", "x", "y", "evaluate.iou=.5", "evaluate.iou=.5")
    assert said.startswith("evaluate.iou=.5 and evaluate.iou=.5: ")
    assert load("digits", ["epochs=1", "epochs=2"]).epochs == 2 and not calls.asked


def test_flags_of_training_scripts_are_answered(capsys):
    for flags, answer in {
        "--n_cpu --workers -j": "workers=",
        "--multiscale_training": "data.multi_scale=",
        "--model_def --cfg": "model.cfg=",
        "--data_config --data": "data.root=",
        "--pretrained_weights --pretrained --weights": "model.pretrained=",
        "--dsconv": "separable.dilation=2 model.densenet.separable.norm_between=true",
        "--adam": "optim.name=",
        "--eval_interval --evaluation_interval --val_interval": "evaluate.every='N epochs'",
        "--save_period --checkpoint_interval": "checkpoint.every='N epochs'",
        "--warmup-epochs": "schedule.warmup='N epochs'",
        "--batch": "batch.images=",
        "--ddp --multiprocessing_distributed": "not needed; all devices are used",
        "--epohcs --epoch": "epochs=VALUE",
        "--optim.lr": "optim.lr=VALUE",
        "--no_val": "data.val=",
        "--lr_scheduler": "schedule.name=",
        "-r --start_epoch": "--resume",
        "--n_gpu": "--devices",
        "--backend": "NCCL",
    }.items():
        lines = problems(capsys, "train", "digits", *flags.split())
        assert len(lines) == len(flags.split()) and all(answer in line for line in lines)


@pytest.mark.parametrize(("rank", "waited"), [("0", []), ("1", [5.0])])
def test_a_rank_with_nothing_to_say_lets_rank_0_say_it(calls, capsys, monkeypatch, rank, waited):
    """torchrun ends all ranks at the first end of one."""
    for name, value in {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "29500")
    slept: list[float] = []
    monkeypatch.setattr(cli.time, "sleep", slept.append)
    assert cli.main(["train", "digits", "--batch-size", "8"]) == 2
    assert (slept, "--batch-size" in capsys.readouterr().err) == (waited, rank == "0")


@pytest.mark.processes
def test_what_old_launchers_add_is_left_out(forked, tmp_path):
    wrong = "error: command line: 'epochs' is 'x': expected a whole number of at least 1\n"
    for words, said in (
        ("epochs=x --local-rank=0", wrong),
        ("--local_rank=12 epochs=x", wrong),
        ("--local-rank 0 epochs=x --local_rank 1", wrong),
        ("epochs=x --local-rank", "error: --local-rank: no such option; not needed: the launcher"),
    ):
        done = forked("-m", "rankless", "train", *words.split(), cwd=tmp_path)
        assert done.returncode == 2 and done.stderr.startswith(said), words


@pytest.mark.parametrize("start", [rankless_main.main, lambda: cli.main(sys.argv[1:])])
def test_a_deleted_working_directory_is_one_sentence(tmp_path, monkeypatch, capsys, start):
    """Before imports, because MKL would end the process, and while a command runs."""
    monkeypatch.setattr(rankless_main.gc, "set_threshold", lambda *_: None)
    monkeypatch.setattr(rankless_main.atexit, "register", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["rankless", "report", "x"])
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert start() == 2
    said = "error: the working directory was deleted; change to another one (cd), and start again\n"
    assert capsys.readouterr().err == said


COMPUTING = ["train", "verify", "evaluate x", "errors x", "benchmark x"]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMPUTING)
def test_device_is_cpu_or_cuda(monkeypatch, capsys, tmp_path, command):
    """The GPU that PyTorch reports here is hidden from whatever asks for one."""
    monkeypatch.chdir(tmp_path)
    gpus = 1
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setenv("RANKLESS_CPU", "")
    words = [*command.split(), *(["digits", "epochs=x"] if command in ("train", "verify") else [])]
    for wrong in ("0", "cuda:1", "gpu"):
        said, *_ = problems(capsys, *words, "--device", wrong)
        assert said.startswith(f"--device is '{wrong}': expected cpu, cuda or auto; to select GPUs, use --d")
    assert "--device" not in problems(capsys, *words, "--device", "cuda")[0]
    assert compute_device().type == "cuda"
    assert "--device" not in problems(capsys, *words, "--device", "cpu")[0]
    assert compute_device().type == "cpu"
    assert problems(capsys, *words, "--device", "cuda")[0].startswith("--device is cuda, but RANKLESS_CPU")
    monkeypatch.setenv("RANKLESS_CPU", "")
    gpus = 0
    assert "PyTorch found no GPU" in problems(capsys, *words, "--device", "cuda")[0]


def test_device_where_it_is_no_option(capsys):
    (said,) = problems(capsys, "export", "x", "--format", "onnx", "--device", "cpu")
    assert said.startswith("--device: no such option; not needed: exports are computed on the CPU")
    for command in ("train", "verify"):
        (said,) = problems(capsys, command, "digits", "--hosts", "a,b", "--device", "cpu")
        assert said.startswith("--device: applies only to this machine") and "; remove --device" in said


def test_weights_of_pytorch_in_place_of_a_model_are_named(calls, capsys):
    about_model, about_data = problems(capsys, "train", "model=yolov8n.pt", "data=coco8.yaml")
    assert "did you mean 'model.pretrained'?" in about_model
    for words in (["model=yolov8n.pt"], ["yolov4-tiny", "model=yolov8n.pt", "data.root=x"]):
        said, *_ = problems(capsys, "train", *words)
        assert said.count("rankless import yolov8n.pt --model NAME") == 1
    assert "did you mean 'data.root'" in about_data
    (said,) = problems(capsys, "train", "digits", "model=my.cfg")
    assert said.endswith("did you mean 'model.cfg'?")


def test_data_as_elsewhere_without_a_recipe_names_one(calls, capsys):
    about_data, about_recipe = problems(capsys, "train", "data=my.yaml")
    assert "did you mean 'data.root'?" in about_data
    assert about_recipe.startswith(
        "the recipe is missing: expected its name first, as in rankless train yolo"
    )
    assert len(problems(capsys, "train", "yolov4-tiny", "data=my.yaml")) == 1


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("detect train data=coco.yaml", "train, evaluate, predict or export"),
        ("darknet detector test obj.data my.cfg my.weights a.jpg", "train, evaluate, predict or export"),
        ("val model=x.safetensors", "rankless evaluate RUN"),
        ("predict model=best.pt source=x.jpg conf=0.3", "first argument|after the first|--confidence 0.3"),
        ("predict runs/x a.jpg classes=[0,2] half=True half=False", "--classes 0,2|precision=fp16|remove it"),
        ("export runs/x nms=True format=openvino device=0", "--nms|--format openvino|on the CPU"),
        ("evaluate runs/x data=my.yaml batch=4 iou=0.5", "data.root=my.yaml|batch.micro=4|evaluate.iou=0.5"),
        ("predict runs/x a.jpg evaluate.iou=0.5 imgsz=640", "model.image_size=640"),
    ],
)
def test_words_of_other_programs_are_answered_with_ours(calls, capsys, theirs, ours):
    for said, word in zip(problems(capsys, *theirs.split()), ours.split("|"), strict=True):
        assert re.search(r": no such command; |: unknown argument; ", said)
        assert word in said.partition("; ")[2]


@pytest.mark.parametrize(
    ("line", "faults"),
    [
        ("predict w --conf 0.1 --source x", "--conf --confidence|--source first"),
        (
            "train --parallel thread --devices two --sink tensorbord --device gpu epochs=0 data.root=q",
            "gpu cuda|--devices two auto|epochs 0|data.root q|thread processes|tensorbord tensorboard",
        ),
        (
            "predict none digits:val:0 gone --confidence 2 --max 0 --iou x --batch 0 --tta a --save b",
            "--iou x|--max 0|--tta a flip|--confidence 2|--batch 0|--save b json|gone|none",
        ),
        ("digest one two three", "one|two|three"),
        ("evaluate none --devices x --device y a", "--device y|--devices x|'a' key=value|none"),
        ("export none --format onnx --batch x a", "--batch x|'a' key=value|none"),
        ("verify digits epochs=0 --worlds 1,a --steps b", "--steps b|epochs 0|--worlds a"),
        ("tune digits --devices a --trials b", "--devices a|--trials b"),
        ("fit digits epochs=0 --devices a", "--devices a|epochs 0"),
        ("train digits evaluate.best=mAP epochs=0 data.root=q", "epochs 0|data.root q|mAP AP50 top1"),
        ("train --run r evaluate.best=dice epochs=0 task=a.py:B", "epochs 0"),
        ("train resnet18 evaluate.best=top5 epochs=0", "epochs 0"),
        ("report none --out x.txt", "x.txt .html|none"),
    ],
)
def test_all_faults_of_a_line_are_named_at_once(calls, capsys, line, faults):
    for one, words in zip(problems(capsys, *line.split()), faults.split("|"), strict=True):
        assert all(word in one for word in words.split()), (one, words)
        assert "run: rankless" not in one
    assert not calls.asked


def test_files_given_as_elsewhere_lead_to_keys(calls, capsys):
    Path("flowers").mkdir()
    for name in ("my.cfg", "my.weights"):
        Path(name).write_text("x")
    Path("obj.data").write_text("classes = 1\ntrain = train.txt\nnames = obj.names\n")
    Path("data.yaml").write_text("train: images/train\nval: images/val\nnames: [cat]\n")
    Path("nameless.yaml").write_text("train: images/train\nval: images/val\n")
    assert problems(capsys, "train", "digits", "flowers", "my.cfg", "my.weights", "none") == [
        "command line: 'flowers': expected key=value; did you mean data.root=flowers?",
        "command line: 'my.cfg': expected key=value; did you mean model.cfg=my.cfg?",
        "command line: 'my.weights': expected key=value; did you mean model.pretrained=my.weights?",
        "command line: 'none': expected key=value, as in optim.lr=0.02",
    ]
    for name in ("obj.data", "data.yaml", "nameless.yaml"):
        assert problems(capsys, "train", name) == [
            f"{name}: this describes a data set and is not a recipe; use it as the data: "
            f"rankless train yolov4-tiny data.root={name}"
        ]
    assert problems(capsys, "train", "./flowers")[0].startswith("./flowers: no known data format: ")


def test_a_bug_says_that_it_is_one(calls, capsys, monkeypatch):
    monkeypatch.setattr("rankless.user_code.is_users", lambda _: False)  # this file is not the user's own
    calls.fault = AttributeError("asked")
    assert cli.main(["train", "digits", "--run", "x"]) == 1
    error = capsys.readouterr().err
    assert "Traceback" in error
    assert "this is a bug in Rankless" in error


def test_an_interruption_exits_with_130(calls, capsys):
    calls.fault = KeyboardInterrupt()
    assert cli.main(["train", "digits"]) == 130
    error = capsys.readouterr().err
    assert error.startswith("interrupted")
    assert "Traceback" not in error


@pytest.mark.processes
def test_an_interruption_while_libraries_are_loaded_shows_no_traceback(tmp_path):
    slow = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(30)"
    (tmp_path / "cyclopts.py").write_text(slow)  # the first that is imported
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "rankless", "predict", "model", "photo.jpg"]
    environment = {**os.environ, "PYTHONPATH": path}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20, env=environment, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")


@pytest.mark.processes
def test_a_reader_that_leaves_early_is_no_error():
    code = "import sys; from rankless.cli import main; sys.exit(main(['recipes', '--schema']))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()  # type: ignore[union-attr]
    assert process.stderr.read() == b""  # type: ignore[union-attr]
    process.stderr.close()  # type: ignore[union-attr]
    assert process.wait(60) == 0


# --- the verbs --------------------------------------------------------------------------------------------


def test_train(calls):
    for place in ("runs/my", "x"):
        Path(place).mkdir(parents=True)
    Path("my.yaml").write_text("seed: 4")
    Path("x/recipe.yaml").write_text(dump(Recipe(seed=7)))
    digits, mine = load("digits"), Recipe(seed=4, epochs=3)
    for words, asked in {
        "digits optim.lr=0.5 --devices 2": (load("digits", ["optim.lr=0.5"]), Path("runs/digits"), 2, False),
        "": (digits, Path("runs/digits-2"), None, False),
        "epochs=3": (load("digits", ["epochs=3"]), Path("runs/digits-3"), None, False),
        "--devices auto my.yaml epochs=3": (mine, Path("runs/my-2"), None, False),
        # the recipe of the run, or the given one
        "--resume --run x": (Recipe(seed=7), Path("x"), None, True),
        "--run x --resume epochs=20": (Recipe(seed=7, epochs=20), Path("x"), None, True),
        "digits --resume --run=x": (digits, Path("x"), None, True),
        "digits --run y --sink a:B --sink c.py:D": (digits, Path("y"), None, False),
    }.items():
        assert cli.main(["train", *words.split()]) == 5
        assert calls.asked.pop() == asked
    assert calls.sinks == ("a:B", "c.py:D")


def test_digest(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_file({"weight": torch.zeros(2)}, "w")
    digest = digest_file(Path("w"))
    assert cli.main(["digest", "w"]) == 0
    assert capsys.readouterr().out == f"{digest}  w\n"
    assert cli.main(["digest", "w", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"sha256": digest, "weights": "w"}
    assert cli.main(["digest", "w", "w"]) == 0
    assert capsys.readouterr().out == f"{digest}  w\n" * 2
    assert cli.main(["digest", "w", "w", "--json"]) == 0
    assert [one["weights"] for one in json.loads(capsys.readouterr().out)] == ["w", "w"]


def test_recipes(capsys):
    assert cli.main(["recipes"]) == 0
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == list(shipped())
    assert cli.main(["recipes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == shipped()
    assert cli.main(["recipes", "digits"]) == 0
    assert capsys.readouterr().out.startswith(f"{EDITOR_LINE}# {shipped()['digits']}\n")
    assert cli.main(["recipes", "digits", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["image_size"] == 160
    assert cli.main(["recipes", "--schema"]) == 0
    assert "optim" in json.loads(capsys.readouterr().out)["properties"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["my.yaml", "optim.lr=-1"], "my.yaml:3: 'model.name' is 'yolov9': no such model; expected one of "),
        (["optim.lr=-1", "model.name=resnet18"], "command line: 'model.name' is 'resnet18', which"),
        (["optim.lr=-1", "task=classify"], "command line: 'model.name' is 'yolov4-tiny', which is not a cla"),
        (["task=classify", "optim.lr=-1", "model.name=rsnet18"], "; did you mean 'resnet18'?"),
    ],
)
def test_a_models_name_is_reported_with_all_else(calls, capsys, words, problem):
    Path("my.yaml").write_text("epochs: 3\nmodel:\n  name: yolov9\n")
    found = problems(capsys, "train", *words)
    assert any(problem in one for one in found), found
    assert any(one.startswith("command line: 'optim.lr' is -1") for one in found)
    assert len(found) == 2


@pytest.mark.processes
def test_an_output_that_cannot_be_written_is_named():
    code = "import sys; from rankless.cli import main; sys.exit(main(['recipes']))"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
            env=environment,
        )
    sentence = "the output cannot be written (No space left on device); redirect it elsewhere"
    assert (done.returncode, done.stderr) == (1, f"error: {sentence}\n")


LEADS_NOWHERE = [
    ("evaluate nope", ["nope: no such file or directory"]),
    ("predict nope x", ["'x': no such file or folder", "nope: no such file or directory"]),
    ("train digits data.root=nope", ["data.root is 'nope': no such file or folder at "]),
    ("train digits data.root=/no/pe", ["data.root is '/no/pe': no such file or folder; exp"]),
    ("train resnet18", ["data.root is not given: expected a folder or a file; add data.root="]),
    ("train fine-tune model.pretrained=a.pth", ["data.root is not", "import a.pth --model NAME"]),
    ("train digits model.pretrained=imagenet", ["for published weights, use model.pretr"]),
    ("train digits model.pretrained=true", ["for published weights, use model.pretr"]),
    ("train digits --ranks 1", ["use --devices N"]),
    ("evaluate run --gpus 1", ["use --devices N"]),
    ("train digits model.pretrained=nope.pt", ["model.pretrained is 'nope.pt': no such file"]),
    (
        "train digits data.root=nope model.pretrained=nope.pt",
        ["data.root is 'nope': no such file or ", "model.pretrained is 'nope.pt': no such file"],
    ),
]


@pytest.mark.processes
def test_a_path_that_leads_nowhere_is_reported_before_pytorch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    (tmp_path / "a.pth").write_bytes(b"PK\3\4")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    code = (
        "import sys; from rankless import cli\n"
        "for line in sys.argv[1:]: print(cli.main(line.split()), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *(line for line, _ in LEADS_NOWHERE)],
        capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *answers, rest = done.stderr.split("\n2\n")
    assert rest == "" and len(answers) == len(LEADS_NOWHERE)
    for (line, said), answer in zip(LEADS_NOWHERE, answers, strict=True):
        problems = answer.splitlines()
        assert len(problems) == len(said), (line, answer)
        assert all(one in problem for one, problem in zip(said, problems, strict=True)), (line, answer)
    assert not (tmp_path / "runs").exists()
