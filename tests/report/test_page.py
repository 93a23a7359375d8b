"""The report of a real run: every number is the journal's, in a browser, too; nothing breaks the page."""

from __future__ import annotations

import json
import re
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankless.report import charts, page, training
from rankless.report.collected import Collected
from rankless.report.markup import card, fill_rows
from rankless.runs import journal
from rankless.runs.directory import weights_of
from rankless.runs.weights_digest import of_weights
from support import browser

pytestmark = pytest.mark.processes  # the run is trained by ranks


class Numbers(HTMLParser):
    """Collects the page's numbers, the points of its charts, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.data: list[tuple[list[Any], int | None, float, str]] = []
        self.charts: dict[str, dict[str, list[list[float]]]] = {}
        self.text: list[str] = []
        self._open: dict[str, str | None] | None = None
        self._title, self._is_json = "", False
        self.feed(html)

    def handle_starttag(self, tag: str, given: list[tuple[str, str | None]]) -> None:
        attributes = dict(given)
        if tag == "data":
            self._open = attributes
        elif tag == "svg":
            self._title = str(attributes["aria-label"])
        elif tag == "script":
            self._is_json = attributes.get("type") == "application/json"

    def handle_endtag(self, tag: str) -> None:
        self._is_json = self._is_json and tag != "script"

    def handle_data(self, content: str) -> None:
        if self._is_json:
            lines = json.loads(content)["lines"]
            self.charts[self._title] = {line["name"]: line["points"] for line in lines}
        elif self._open is not None:
            where, step = json.loads(str(self._open["data-at"])), self._open.get("data-step")
            value = float(str(self._open["value"]))
            self.data.append((where, int(step) if step else None, value, content))
            self._open = None
        else:
            self.text.append(content)


def rendered(folder: Path, digest: str = "") -> str:
    return page.render([Collected(folder).refresh()], {str(folder): digest} if digest else None)


def in_browser(html: str, folder: Path) -> tuple[str, str]:
    """The page's document as a browser has it, and what it wrote to its console."""
    path = folder / "page.html"
    path.write_text(html, encoding="utf-8")
    return browser.document(path.as_uri(), folder)


def check_numbers(html: str, folder: Path) -> None:
    """Compare everything on the page that comes from the journal or from evaluation.json with these."""
    entries = list(journal.read(folder / "journal.jsonl"))
    scores = {entry["evaluation"]: entry["scores"] for entry in entries if "evaluation" in entry}
    details = json.loads((folder / "evaluation.json").read_text())
    found = Numbers(html)
    seen = set()
    for where, step, value, shown in found.data:
        if where[0] == "event":
            continue
        at: Any = {"scores": scores.get(step), "evaluation": details}
        for key in where:
            at = at[key]
        assert value == at, where
        assert float(shown.replace(",", "")) == pytest.approx(at, abs=6e-4), where
        seen.add(where[1])
    known = {"AP", "AP50", "AR100", "loss", "per_class", "pascal", "thresholds", "confusion", "examples"}
    assert known <= seen
    steps = [entry for entry in entries if "step" in entry]
    parts = [lines for title, lines in found.charts.items() if title.startswith("Parts of the training loss")]
    known = sorted(name for name in steps[0]["parts"] if "/" not in name)
    assert sorted(name for lines in parts for name in lines) == known
    expected = {
        ("Loss", "training"): [[entry["step"], entry["loss"]] for entry in steps],
        ("Learning rate", "learning rate"): [[entry["step"], entry["lr"]] for entry in steps],
        ("Loss", "validation"): [[step, each["loss"]] for step, each in scores.items()],
    }
    for name in ("AP", "AP50", "AP75"):
        expected["Average precision", name] = [[step, each[name]] for step, each in scores.items()]
    for (title, name), points in expected.items():
        assert found.charts[title][name] == [[x, pytest.approx(y, rel=1e-5)] for x, y in points], title
    curves = found.charts["Precision–recall by class"]
    for class_name, curve in zip(details["classes"], details["pr"], strict=True):
        name = next(name for name in curves if name.startswith(class_name))
        assert [y for _, y in curves[name]] == pytest.approx(curve)


def test_every_number_is_the_journals(trained: Path) -> None:
    check_numbers((trained / "report.html").read_text(encoding="utf-8"), trained)


def test_a_browser_shows_it_without_an_error(trained: Path, tmp_path: Path) -> None:
    document, console = in_browser((trained / "report.html").read_text(encoding="utf-8"), tmp_path)
    assert not console
    check_numbers(document, trained)
    assert document.count('class="tip"') == document.count('<script type="application/json">') > 5


LOOK = """
<script>
addEventListener("load", () => {
  const found = [], values = [];
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument, width = frame.clientWidth;
    if (page.documentElement.scrollWidth > width) found.push(`${width}: the page is wider`);
    for (const each of page.querySelectorAll(".tile b, h1, h3, .legend li, svg text")) {
      const box = each.getBoundingClientRect();
      if (box.left < -1 || box.right > width + 1) found.push(`${width}: cut: ${each.textContent}`);
    }
    for (const chart of page.querySelectorAll("svg")) {
      const boxes = [...chart.querySelectorAll("text")].map((each) => [each, each.getBoundingClientRect()]);
      boxes.forEach(([one, a], at) => boxes.slice(at + 1).forEach(([other, b]) => {
        const over = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const under = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (over > 1 && under > 3) found.push(`${width}: ${one.textContent} over ${other.textContent}`);
      }));
    }
    const plot = page.querySelector('svg[aria-label="Learning rate"]').parentElement;
    const frameOfPlot = plot.getBoundingClientRect(), tip = plot.querySelector(".tip");
    const point = {clientX: frameOfPlot.right - 5, clientY: frameOfPlot.top + 30};
    plot.firstChild.dispatchEvent(new frame.contentWindow.PointerEvent("pointermove", point));
    values.push(tip.hidden ? "hidden" : tip.textContent);
    const table = page.querySelector(".sortable"), column = () => [...table.tBodies[0].rows].map(
      (row) => Number(row.cells[1].querySelector("data").value));
    table.tHead.rows[0].cells[1].click();
    const falling = column();
    table.tHead.rows[0].cells[1].click();
    const rising = falling.filter((each, at) => at && each > falling[at - 1]);
    if (rising.length) found.push(`${width}: not sorted: ${falling}`);
    if (column().reverse().join() !== falling.join()) found.push(`${width}: not turned round`);
    const shown = [...page.querySelectorAll("img, .pane")].filter((each) => each.clientHeight < 20);
    if (shown.length) found.push(`${width}: ${shown.length} images are not shown`);
    const said = [...page.querySelectorAll(".events td:last-child")].at(-1);
    if (width < 480 && said.clientWidth < 0.8 * width) found.push(`${width}: what happened is narrow`);
    const classes = table.parentElement;
    if (classes.scrollWidth > classes.clientWidth) found.push(`${width}: the table of classes is cut`);
    for (const card of page.querySelectorAll(".card")) {
      const room = card.clientWidth - 30, {bottom} = card.getBoundingClientRect();
      const parts = [...card.querySelectorAll("svg, table, dl")].map((each) => each.getBoundingClientRect());
      const blank = bottom - card.lastElementChild.getBoundingClientRect().bottom;
      const narrow = Math.max(...parts.map((box) => box.width)) < 0.9 * Math.min(room, 760);
      if (narrow || blank > 0.5 * card.clientHeight)
        found.push(`${width}: white beside or below ${card.firstChild.textContent}`);
    }
    for (const grid of page.querySelectorAll(".grid")) {
      const ends = [...grid.children].map((each) => each.getBoundingClientRect());
      const rows = Map.groupBy(ends, (box) => Math.round(box.top));
      for (const [top, boxes] of rows) {
        const free = grid.getBoundingClientRect().right - Math.max(...boxes.map((box) => box.right));
        if (free > 1) found.push(`${width}: a gap of ${free} beside the panels at ${top}`);
      }
    }
  }
  document.body.textContent = "looked at" + JSON.stringify([found, values]);
});
</script>
"""


def test_nothing_is_cut_off_on_a_phone_or_a_screen_and_the_pointer_shows_values(trained, tmp_path):
    html = escape((trained / "report.html").read_text(encoding="utf-8"))
    frames = "".join(f'<iframe width="{w}" height="900" srcdoc="{html}"></iframe>' for w in (390, 768, 1400))
    document, _ = in_browser(f"<!DOCTYPE html><body>{LOOK}{frames}</body>", tmp_path)
    problems, values = json.loads(document.partition("looked at")[2].partition("</body>")[0])
    assert problems == []
    last = [entry for entry in journal.read(trained / "journal.jsonl") if "step" in entry][-1]
    shown = [float(value.removeprefix("11learning rate ")) for value in values]
    assert shown == [pytest.approx(last["lr"], rel=1e-3)] * 3


def test_of_few_steps_none_is_smoothed_and_one_evaluation_is_no_curve(run: Path) -> None:
    entries = list(journal.read(run / "journal.jsonl"))
    first = next(entry for entry in entries if "evaluation" in entry)
    kept = [entry for entry in entries if "evaluation" not in entry or entry is first]
    (run / "journal.jsonl").write_bytes(b"".join(map(journal.line, kept)))
    found = Numbers(rendered(run))
    assert "training" in found.charts["Loss"]
    assert not {"Average precision", "Average recall"} & set(found.charts)
    shown = {where[1]: value for where, step, value, _ in found.data if where[0] == "scores" and step}
    assert all(shown[name] == first["scores"][name] for name in ("AP", "AP50", "AR100"))
    steps = [entry for entry in entries if "step" in entry]
    many = [{**steps[0], "step": number, "loss": float(number % 7)} for number in range(1, 61)]
    (run / "journal.jsonl").write_bytes(b"".join(map(journal.line, many)))
    assert {"each step", "training, smoothed"} <= set(Numbers(rendered(run)).charts["Loss"])


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=6))
def test_no_part_of_a_loss_lies_flat_beside_another(ends: list[tuple[float, float]]) -> None:
    lines = [charts.Line(f"part {at}", [(1, one), (2, other)]) for at, (one, other) in enumerate(ends)]
    panels = training.by_scale(lines)
    assert sorted(line.name for panel in panels for line in panel) == [line.name for line in lines]
    for panel in panels:
        values = [y for line in panel for _, y in line.points]
        height = max(values) - min(values)
        for line in panel:
            own = abs(line.points[0][1] - line.points[1][1])
            assert len(panel) == 1 or own >= 0.25 * height


def test_the_claim_names_scores_speed_digest_and_state(trained: Path) -> None:
    html = (trained / "report.html").read_text(encoding="utf-8")
    said, digest = " ".join(Numbers(html).text), str(of_weights(weights_of(trained)))
    for text in ("yolov4-tiny", "finished, 11 steps, best at step", digest, "images/s", "on 2 ranks"):
        assert text in said
    assert "http" not in html.replace("http-equiv", "")  # nothing is loaded from anywhere


def test_runs_side_by_side_say_what_differs(trained: Path, run: Path) -> None:
    recipe = run / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("lr: 0.005", "lr: 0.25"))
    runs = [Collected(trained).refresh(), Collected(run).refresh()]
    html = page.render(runs, {str(trained): "a" * 64, str(run): "a" * 64})
    said = " ".join(Numbers(html).text)
    assert "optim.lr 0.005 0.25" in said
    assert "The weights of shapes and copied are bitwise identical." in said
    assert set(Numbers(html).charts["Training loss, smoothed"]) == {"shapes", "copied"}
    assert html.count('<details class="run">') == 2
    details = json.loads((trained / "evaluation.json").read_text())
    mean = [sum(values) / len(details["pr"]) for values in zip(*details["pr"], strict=True)]
    curves = Numbers(html).charts["Mean precision–recall curve of all classes"]
    assert [y for _, y in curves["shapes"]] == pytest.approx(mean)
    alike = page.render([runs[0], Collected(trained).refresh()])
    assert "The recipes are identical." in alike


def test_a_region_to_ignore_has_no_class(run: Path) -> None:
    details = json.loads((run / "evaluation.json").read_text())
    details["examples"][0] |= {"truth": [[0.1, 0.1, 0.5, 0.5, -1, 2]], "found": []}
    (run / "evaluation.json").write_text(json.dumps(details))
    assert (
        'class="box ignored" style="left:10.00%;top:10.00%;width:40.00%;height:40.00%" title="region to'
        in (rendered(run))
    )


EVIL = '</script><script>alert(1)</script><img src=x onerror="alert(2)">\u202e'


def test_names_from_files_are_only_text(run: Path) -> None:
    details = json.loads((run / "evaluation.json").read_text())
    details["classes"][0] = EVIL
    details["examples"][0]["name"] = EVIL
    details["examples"][1]["jpeg"] = '"><script>alert(3)</script>'
    (run / "evaluation.json").write_text(json.dumps(details))
    with (run / "journal.jsonl").open("a") as file:
        file.write(json.dumps({"event": EVIL, "at": 3, "text": EVIL}) + "\n")
    html = rendered(run, digest=EVIL)
    scripts = html.count('<script type="application/json">') + 1
    assert html.count("<script") == html.count("</script>") == scripts
    assert not any(text in html for text in ("<img", "alert(3)", "\u202e"))


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", '{"step": 11}', '{"step": 11, "thresholds": 3}', '{"step": 11, "pr": [[1]]}',
     '{"step": 11, "examples": [{"kind": "best", "jpeg": "QUJD"}]}', '{"step": 4711, "pr": 1}',
     '{"step": {}}',
     '{"step": 11, "truths": {"a": []}, "confusion": "x", "sizes": []}', '{"step": 11, "examples": [1]}'],
)  # fmt: skip
def test_a_damaged_evaluation_costs_its_panels_alone(run: Path, content: str) -> None:
    (run / "evaluation.json").write_text(content)
    charts = Numbers(rendered(run)).charts
    assert {"Loss", "Average precision", "Step time in ms"} <= set(charts)


@pytest.mark.parametrize(
    "line",
    [{"step": 12, "loss": "x", "parts": 3, "timing": {"seconds": None, "ranks": ["a"]}},
     {"step": 12, "loss": 1e308, "lr": 10**30, "timing": {"seconds": 1e308, "waited": 1e308, "time": 1e308}},
     {"step": 12, "loss": float("nan"), "lr": 1e308, "parts": {"a": None}, "timing": {}},
     {"evaluation": 12, "scores": {"AP": "high", "per_class": {"a": 3}, "confusion": [1]}},
     {"evaluation": 12, "scores": {}}, {"event": 3}, {"event": "resume", "at": "x", "world_size": "2"}],
)  # fmt: skip
def test_odd_lines_of_a_journal_are_no_end_of_the_page(run: Path, line: dict[str, Any]) -> None:
    with (run / "journal.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    assert {"Loss", "Average precision"} <= set(Numbers(rendered(run)).charts)


def chart(html: str, title: str) -> str:
    return html.partition(f'aria-label="{title}"')[2].partition("</svg>")[0]


def marks(svg: str) -> dict[str, float]:
    """The place of the last mark of each kind, as a fraction of the axis."""
    found = re.findall(r'<g class="mark (\w+)"><line x1="([\d.]+)"', svg)
    return {kind: (float(x) - 46) / (420 - 46 - 12) for kind, x in found}


def test_restarts_and_deaths_are_marked_where_they_happened(run: Path) -> None:
    with (run / "journal.jsonl").open("a") as file:
        for entry in (
            {"event": "death", "at": 8, "rank": 1, "text": "rank 1 was killed by SIGKILL"},
            {"event": "resume", "at": 4, "world_size": 3, "reason": "rank 1 was killed by SIGKILL"},
            {"event": "note", "at": 4, "text": "2 images <cannot> be read:\na.jpg\nb.jpg"},
        ):
            file.write(json.dumps(entry) + "\n")
    html = rendered(run)
    assert marks(chart(html, "Loss")) == pytest.approx({"bad": 8 / 11, "start": 4 / 11}, abs=3e-4)
    assert "on 3 ranks; rank 1 was killed by SIGKILL" in " ".join(Numbers(html).text)
    assert "2 images &lt;cannot&gt; be read:<br>a.jpg<br>b.jpg" in html


def test_losses_that_span_decades_are_on_a_logarithmic_axis(run: Path) -> None:
    """A geometric mean is then halfway up."""

    def heights(losses: list[float]) -> list[float]:
        entries = [{"step": step, "loss": loss} for step, loss in enumerate(losses, 1)]
        (run / "journal.jsonl").write_bytes(b"".join(map(journal.line, entries)))
        (line,) = re.findall(r'class="line c0 [^"]*" d="M([^"]+)"', chart(rendered(run), "Loss"))
        return [float(one) for one in re.findall(r"[\d.]+ ([\d.]+)", line)]

    top, middle, low = heights([1000.0, 1000**0.5, 1.0])
    assert middle == pytest.approx((top + low) / 2, abs=0.2)
    top, middle, low = heights([3.0, 2.1, 2.0])
    assert middle == pytest.approx(low + 0.1 * (top - low), abs=0.2)


def test_a_restart_is_a_gap_and_marks_on_the_time_axis(run: Path) -> None:
    """Ten seconds of death and restart after step 6, in a run of eleven steps of a second each."""
    entries: list[dict[str, Any]] = []
    for number in range(1, 12):
        if number == 7:
            entries += [
                {"event": "death", "at": 6, "text": "rank 1 was killed", "timing": {"time": 1007.0}},
                {"event": "resume", "at": 6, "world_size": 2, "timing": {"time": 1015.0}},
            ]
        now = 1000.0 + number + (10 if number > 6 else 0)
        timing = {"seconds": 1.0, "time": now, "waited": 0.25, "network": 0.0}
        ranks = {"ranks": [5.0, 6.0]} if number in (7, 11) else {}
        entries.append({"step": number, "loss": 1.0, "timing": {**timing, **ranks}})
    (run / "journal.jsonl").write_bytes(b"".join(map(journal.line, entries)))
    html = rendered(run)
    found = Numbers(html)
    expected = [*range(1, 7), 6, 16, *range(17, 22)]
    points = found.charts["Step time in ms"]["waiting for images"]
    assert points == [[x, 0 if at in (6, 7) else 250] for at, x in enumerate(expected)]
    assert found.charts["Computing time per rank in ms"]["rank 1"] == [[17, 6], [21, 6]]
    places = marks(chart(html, "Step time in ms"))
    assert places == pytest.approx({"bad": 7 / 21, "start": 15 / 21}, abs=5e-4)
    said = " ".join(found.text)
    assert "seconds since the start" in said and "pauses took 10 s" in said


@pytest.mark.parametrize(
    ("widths", "three", "two"),
    [([], [], []), (["", "", "", ""], [3] * 4, [3] * 4), ([""] * 5, [2, 2, 2, 3, 3], [3, 3, 3, 3, 6]),
     (["", "", "two", ""], [3, 3, 4, 2], [3, 3, 6, 6]), (["all", ""], [6, 6], [6, 6])],
)  # fmt: skip
def test_panels_fill_their_rows(widths: list[str], three: list[int], two: list[int]) -> None:
    html = fill_rows("".join(card("a", "", width=width) for width in widths))
    assert [int(one) for one in re.findall(r"--three:(\d)", html)] == three
    assert [int(one) for one in re.findall(r"--two:(\d)", html)] == two


def test_a_step_says_what_it_waited_for(trained: Path) -> None:
    timings = [entry["timing"] for entry in journal.read(trained / "journal.jsonl") if "step" in entry]
    always = {"seconds", "time", "waited", "network"}
    assert all(always <= set(timing) <= {*always, "memory", "busy"} for timing in timings)
    first, *_ = memory = [timing["memory"] for timing in timings if "memory" in timing]
    assert all(len(ranks) == 2 for ranks in memory)
    assert all(50 < held < 2**20 for held in first)  # MiB of a process with PyTorch: neither KiB nor bytes
    busy = [timing["busy"] for timing in timings if "busy" in timing]
    assert len(busy) == len(memory) and all(0 < share <= 1 for ranks in busy for share in ranks)
    assert "time computing per rank" in (trained / "report.html").read_text(encoding="utf-8")
    assert "memory per rank" in (trained / "report.html").read_text(encoding="utf-8")
    assert all(0 <= timing[name] <= 1 for timing in timings for name in ("waited", "network"))
    assert any(timing["network"] for timing in timings)  # two ranks wait for each other
    times = [timing["time"] for timing in timings]
    assert times == sorted(times)
    areas = Numbers((trained / "report.html").read_text(encoding="utf-8")).charts["Step time in ms"]
    columns = zip(*([y for _, y in line] for line in areas.values()), strict=True)
    total = [sum(column) for column in columns if any(column)]  # all zero: no step was done
    assert total == pytest.approx([1e3 * timing["seconds"] for timing in timings], rel=1e-2)


def test_the_time_of_each_rank_is_a_line(run: Path) -> None:
    entries = list(journal.read(run / "journal.jsonl"))
    for entry in entries:
        if entry.get("step") in (5, 9):
            entry["timing"]["ranks"] = [10.5, 12.25 * entry["step"]]
    (run / "journal.jsonl").write_bytes(b"".join(map(journal.line, entries)))
    ranks = Numbers(rendered(run)).charts["Computing time per rank in ms"]
    first = next(entry["timing"] for entry in entries if "step" in entry)
    began = first["time"] - first["seconds"]
    at = [one["timing"]["time"] - began for one in entries if one.get("step") in (5, 9)]
    x = [pytest.approx(seconds, abs=1e-4) for seconds in at]
    assert ranks == {"rank 0": [[x[0], 10.5], [x[1], 10.5]], "rank 1": [[x[0], 61.25], [x[1], 110.25]]}
