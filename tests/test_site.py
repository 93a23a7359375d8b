"""The documentation as a site, served and looked at in a browser."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import tomllib
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from support import browser

ROOT = Path(__file__).parents[1]
LOOK = """<!DOCTYPE html><body><script>
const pages = ["index.html", "recipe.html", "weights.html"], found = [];
let tables = 0;
const look = async (name, width) => {
  const frame = document.createElement("iframe");
  frame.style.width = `${width}px`;
  frame.src = name;
  document.body.append(frame);
  await new Promise((done) => frame.onload = done);
  await new Promise((done) => setTimeout(done, 500));
  const page = frame.contentDocument, at = (each) => each.getBoundingClientRect();
  const say = (what) => found.push(`${name} at ${width}: ${what}`);
  if (page.documentElement.scrollWidth > width) say("is wider than its window");
  const field = page.querySelector(".md-search__input"), {left, right, top, width: wide, height} = at(field);
  if (wide < 120 || height < 20 || left < 0 || right > width || top < 0) say(`a field of ${wide}`);
  if (page.elementFromPoint((left + right) / 2, top + height / 2) !== field) say("the field is covered");
  for (const each of page.querySelectorAll("article svg, article img"))
    if (at(each).right > width + 1) say(`${each.getAttribute("class")} is cut`);
  for (const line of page.querySelectorAll("svg.terminal .line"))
    if (frame.contentWindow.getComputedStyle(line).opacity !== "1") say(`is not seen: ${line.textContent}`);
  for (const each of page.querySelectorAll("article table")) {
    if (at(each).right <= width) continue;
    tables += 1;
    (each.closest(".md-typeset__scrollwrap") ?? each).scrollLeft = 99999;
    const last = each.rows[0].cells[each.rows[0].cells.length - 1];
    if (at(last).right > width + 1) say(`a table is cut: ${each.textContent.slice(0, 40)}`);
  }
};
(async () => {
  for (const width of [390, 768, 1400]) for (const name of pages) await look(name, width);
  document.body.textContent = "looked at" + JSON.stringify([found, tables]);
})();
</script></body>"""


def check_pages_for_language_models(site: Path) -> None:
    """Check that every page is listed as Markdown, whose links lead somewhere, and is in the full text."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = (site / "llms.txt").read_text(encoding="utf-8")
    assert listed.startswith("# Rankless\n\n> ")
    links = re.findall(r"^- \[[^]]+\]\(([^)]+)\)", listed, re.MULTILINE)
    pages = [site / link.removeprefix(project["urls"]["Documentation"]) for link in links]
    in_navigation = re.findall(
        r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(str(page.relative_to(site)) for page in pages) == sorted(in_navigation)
    whole = (site / "llms-full.txt").read_text(encoding="utf-8")
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert text in whole
        for target in re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", text):
            assert (page.parent / target).exists(), f"{page}: {target}"
    assert "### rankless.train\n\n```python\ntrain(recipe: Recipe" in whole
    assert ":::" not in whole


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_every_width_has_a_search_field_whole_pictures_and_tables_that_scroll(tmp_path: Path) -> None:
    """With less motion wanted, the terminal shows its end at once."""
    pytest.importorskip("mkdocs")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    check_pages_for_language_models(tmp_path / "site")
    (tmp_path / "site" / "look.html").write_text(LOOK)
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=str(tmp_path / "site"))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/look.html"
        shown, _ = browser.document(
            url, tmp_path, "--virtual-time-budget=60000", "--force-prefers-reduced-motion"
        )
        server.shutdown()
    found = re.search(r"looked at(.*?)</body>", shown, re.DOTALL)
    assert found is not None
    problems, tables = json.loads(found[1])
    assert problems == []
    assert tables > 5


def test_the_terminal_moves_only_where_motion_is_wanted() -> None:
    """Printed, or in a viewer without animations, every line is there."""
    picture = (ROOT / "docs" / "images" / "terminal.svg").read_text(encoding="utf-8")
    style = re.sub(
        r"@keyframes \w+ {.*}\n", "", picture[picture.index("<style>") : picture.index("</style>")]
    )
    wanted = re.sub(r"@media screen and \(prefers-reduced-motion: no-preference\) {.*}\n", "", style)
    assert wanted != style and "animation" not in wanted and "opacity" not in wanted
