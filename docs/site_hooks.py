"""What turns the repository's pages into the site; MkDocs calls these functions by their names.

The pages are written to be read in the repository too, so a link is a path in it. Pages beside ``docs/`` (the
README is the site's first one) and source files that a page links to become pages of the site, and links are
rewritten to lead there.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")  # the path of a link or image, without its anchor
EXTERNAL = re.compile(
    r"""<(?:script|img|iframe|source|video)\b[^>]*\bsrc=["']?(?:https?:)?//[^"' >]+"""
    r"""|<link\b(?![^>]*\brel=["']?canonical)[^>]*\bhref=["']?(?:https?:)?//[^"' >]+"""
)
ROLE = re.compile(r":(?:attr|class|data|func|meth|mod|obj):<code>~?\.?([^<]*)</code>")  # of a docstring
FIGURE = re.compile(r'<p><img alt="[^"]*" src="(images/[\w-]+\.svg)"\s*/?></p>')
SCHEMA = "recipe.schema.json"
NAMES = {
    "README.md": "index.md",
    "README.zh-CN.md": "index.zh-CN.md",
    f"src/rankless/recipe/shipped/{SCHEMA}": SCHEMA,
}


def on_config(config: MkDocsConfig) -> None:
    """Take the site's address from ``pyproject.toml``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.site_url = project["urls"]["Documentation"]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies outside ``docs/`` and is linked, with what that links to."""
    waiting = [ROOT / name for name in NAMES]
    waiting += [ROOT / "docs" / file.src_uri for file in files if file.is_documentation_page()]
    seen = set(waiting)
    while waiting:
        page = waiting.pop()
        text = page.read_text(encoding="utf-8")
        if ROOT / "docs" not in page.parents:
            files.append(File.generated(config, _in_site(page), content=_as_page(page, text)))
        if page.suffix == ".md":
            linked = {(page.parent / path).resolve() for path in LINK.findall(text)}
            new = {one for one in linked - seen if one.is_file() and ROOT / "docs" not in one.parents}
            waiting += sorted(new)
            seen |= new
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Have links lead to pages of the site."""
    source = _sources().get(page.file.src_uri, ROOT / "docs" / page.file.src_uri)

    def lead(match: re.Match[str]) -> str:
        target = (source.parent / match[1]).resolve()
        return posixpath.relpath(_in_site(target), posixpath.dirname(page.file.src_uri) or ".")

    return LINK.sub(lead, markdown) if source.suffix == ".md" else markdown


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put SVG into the page, where its colors follow the palette; take Sphinx's roles out of docstrings."""
    html = FIGURE.sub(lambda match: (ROOT / "docs" / match[1]).read_text(encoding="utf-8"), html)
    return ROLE.sub(r"<code>\1</code>", html)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse what a browser would fetch from elsewhere."""
    if found := EXTERNAL.search(output):
        raise PluginError(f"{page.file.src_uri}: needs the network: {found[0]}")
    return output


def on_post_build(config: MkDocsConfig) -> None:
    """Make sure that the pages of Python were made from the source alone."""
    if "torch" in sys.modules:
        raise PluginError("the build has imported torch, which takes seconds")


def _in_site(path: Path) -> str:
    """Where a file of the repository is in the site."""
    name = path.relative_to(ROOT).as_posix()
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    return NAMES.get(name, name if path.suffix == ".md" else f"source/{name}.md")


def _as_page(path: Path, text: str) -> str:
    if path.suffix == ".md" or path.name == SCHEMA:
        return text
    if path.suffix == ".ipynb":
        return "\n\n".join(map(_cell, json.loads(text)["cells"])) + "\n"
    language = {".py": "python", ".yml": "yaml", ".yaml": "yaml"}.get(path.suffix, "text")
    return f"# {path.relative_to(ROOT).as_posix()}\n\n````{language}\n{text}````\n"


def _cell(cell: dict[str, Any]) -> str:
    """A notebook's cell as Markdown; badges, which are images from elsewhere, become links of their text."""
    text = "".join(cell["source"])
    if cell["cell_type"] == "code":
        return f"````python\n{text}\n````"
    return re.sub(r"!\[([^]]*)\]\([^)]*\)", r"\1", text).replace(".ipynb)", ".ipynb.md)")


@cache
def _sources() -> dict[str, Path]:
    """The repository's file of each page that does not lie in ``docs/``, by the page's name in the site."""
    return {_in_site(path): path for path in [*ROOT.glob("*.md"), *ROOT.glob("benchmarks/*.md")]}
