"""The command ``rankless plan``: its table, its JSON, its plot, and what it does with mistakes."""

import json
from pathlib import Path

import pytest
from PIL import Image

from rankless import cli
from rankless.launch.planning import plan as planning
from rankless.launch.planning.plan import Checked
from rankless.launch.planning.prediction import Link, Machine, row, rows
from rankless.launch.planning.units import PlanOptions
from rankless.recipe.load import load
from support.small_plans import step

SMALL = (
    "digits", "model.width=0.1", "model.image_size=32", "data.train_images=32", "data.val_images=4",
    "batch.images=8", "batch.micro=2", "precision=fp32",
)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "problems"),
    [
        (["--bandwidth", "25"], ["--bandwidth is '25': expected a bandwidth above 0 with a unit"]),
        (["--latency", "0us"], ["--latency is '0us': expected a time above 0"]),
        (["--devices", "8x0", "--step-ms", "no"], ["--devices is '8x0'", "--step-ms is 'no'"]),
        (["--check", "1,two"], ["--check is '1,two': expected whole numbers of at least 1, as in 1,2,4"]),
        (
            ["--check", "1", "--step-ms", "5"],
            ["--check trains on this machine, so it cannot be combined with --step-ms"],
        ),
        (["--force"], ["--force: has no effect without --out"]),
        (["--check", "64"], ["--check has 64, but a step has only 4 micro-batches"]),
        (["--out", "plan.txt"], ["--out plan.txt: expected a name that ends in one of .png"]),
    ],
)
def test_a_mistake_is_a_sentence_each(capsys, words, problems):
    assert cli.main(["plan", *SMALL, *words]) == 2
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if not line.startswith("measuring")]
    assert out == ""
    assert len(lines) == len(problems)
    assert all(line.startswith(f"error: {one}") for line, one in zip(lines, problems, strict=True))


@pytest.mark.processes
@pytest.mark.usefixtures("forked_pages")
def test_another_machines_step_is_taken_as_it_is_given(capsys, tmp_path: Path):
    out = tmp_path / "plan.png"
    words = ["--devices", "2x2", "--bandwidth", "1GB/s", "--step-ms", "200", "--json", "--out", str(out)]
    assert cli.main(["plan", *SMALL, *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["recipe"] == "digits"
    assert found["rows"][0]["step"] == pytest.approx(0.2)
    assert found["rows"][0]["epoch"] == pytest.approx(0.2 * 32 / 8)
    assert [each["devices"] for each in found["rows"]] == [2**power for power in range(13)]
    asked = found["asked"]
    assert (asked["devices"], asked["machines"], asked["batch"], asked["loaders"]) == (4, 2, 8, None)
    assert 0.05 < asked["step"] < 0.2
    assert found["link"]["bandwidth"] == 1e9
    assert found["step"]["gradients"] > 1000
    with Image.open(out) as image:
        assert image.width > 1000


@pytest.mark.processes
@pytest.mark.usefixtures("forked_pages")
def test_steps_and_the_network_are_measured_here():
    asked = PlanOptions(check=(2,), seconds=0.1, rounds=1)
    found = planning.plan(load(SMALL[0], SMALL[1:]), asked, lambda line: None)
    assert min(found.step.load, found.step.compute, found.step.update) > 0
    assert found.step.images == 32
    assert found.link.bandwidth > 1e6 and not found.link.overlaps
    assert found.machine.copy > 0
    assert [each.processes for each in found.checks] == [2]
    assert all(each.measured > 0 and each.predicted > 0 for each in found.checks)
    json.dumps(found.as_json())
    text = "\n".join(planning.lines(found))
    assert "over gloo and the loopback interface" in text and "predicted" in text


@pytest.mark.processes
@pytest.mark.usefixtures("forked_pages")
@pytest.mark.parametrize("changes", [("batch_norm=sync",), ("batch.micro=8",)])
def test_what_is_measured_fits_the_recipe(changes):
    recipe = load(SMALL[0], [*SMALL[1:], *changes])
    found = planning.plan(recipe, PlanOptions((1, 1), bandwidth=1e9, seconds=0.1), lambda line: None)
    assert found.step.micro_batches == recipe.batch.micro_batches
    assert found.step.gradients > 1000
    assert bool(found.step.norms) == (recipe.batch_norm == "sync")
    assert found.step.compute > 0


def test_the_table_marks_what_was_asked_and_where_the_batch_grows():
    one, machine, link = step(8), Machine(4), Link(25e9, 2e-5)
    asked = row(one, machine, link, 32)
    found = planning.Plan(
        one, machine, link, asked, rows(one, machine, link, 32), ["where from"], ["what is known"],
        [Checked(2, 0.21, 0.2)],
    )  # fmt: skip
    lines = list(planning.lines(found))
    assert lines[1].split() == ["2", "210", "ms", "200", "ms", "+5%"]
    marked = [line for line in lines if line.startswith("→")]
    assert marked[0].split()[:3] == ["→", "32", "128*"]
    assert marked[1].startswith("→ 32 devices on 8 machines: step ")
    assert "- where from" in lines
    assert lines[-1] == "- what is known"
    starred = [line for line in lines if "*" in line[:20] and not line.startswith("*")]
    assert len(starred) == 9  # 16 to 4,096
    assert all(len(line) <= 80 for line in [*starred, *lines[3:4], marked[0]])
