"""The documentation as text for language models: ``llms.txt`` lists the pages, ``llms-full.txt`` holds them.

Every page also lies beside its HTML as Markdown. The format is that of llmstxt.org. MkDocs calls these
functions by their names, after those of ``site_hooks.py``, which have the links lead to pages of the site.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure import StructureItem
from mkdocs.structure.files import Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

_TEXTS: dict[str, str] = {}
_SECTIONS: dict[str, list[Page]] = {}


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> None:
    """Take the sections from the navigation; pages outside of a section form the first one."""
    _TEXTS.clear()
    _SECTIONS.clear()
    for item in nav.items:
        title = "Pages" if isinstance(item, Page) else item.title or ""
        _SECTIONS.setdefault(title, []).extend(_pages([item]))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> None:
    """Keep the page's text, with what the directives of mkdocstrings stand for."""
    handler = config.plugins["mkdocstrings"].get_handler("python")

    def described(directive: re.Match[str]) -> str:
        return "\n\n".join(_described(handler.collect(directive[1], handler.get_options({})), directive[1]))

    _TEXTS[page.file.src_uri] = re.sub(r"^::: (\S+)$", described, markdown, flags=re.MULTILINE)


def on_post_build(config: MkDocsConfig) -> None:
    """Write the files."""
    site = Path(config.site_dir)
    lines = [f"# {config.site_name}", f"> {config.site_description}"]
    for title, pages in _SECTIONS.items():
        lines.append(f"## {title}")
        lines.append("\n".join(_entry(page, config) for page in pages))
    (site / "llms.txt").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    for name, text in _TEXTS.items():
        (site / name).write_text(text, encoding="utf-8")
    whole = [_TEXTS[page.file.src_uri] for pages in _SECTIONS.values() for page in pages]
    (site / "llms-full.txt").write_text("\n\n".join(whole), encoding="utf-8")


def _pages(items: Iterable[StructureItem]) -> Iterator[Page]:
    for item in items:
        if isinstance(item, Page):
            yield item
        else:
            yield from _pages(item.children or ())


def _entry(page: Page, config: MkDocsConfig) -> str:
    """Return a page's line in the list, with its headings."""
    headings = ", ".join(heading.title for top in page.toc for heading in top.children)
    return f"- [{page.title}]({config.site_url}{page.file.src_uri})" + (f": {headings}" if headings else "")


def _described(item: Any, path: str) -> Iterator[str]:
    """Yield signature and docstring of an object as Griffe read it, and of a class's documented members."""
    yield f"### {path}"
    if item.is_function:
        yield f"```python\n{item.signature(name=path.rpartition('.')[2])}\n```"
    if item.docstring:
        yield inspect.cleandoc(item.docstring.value)
    if item.is_class:
        for name, member in item.members.items():
            if member.docstring and not name.startswith("_"):
                yield from _described(member, f"{path}.{name}")
