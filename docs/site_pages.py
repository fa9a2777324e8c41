"""Adds pages from outside of docs/ to the site and rewrites links between pages; mkdocs calls these functions."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
OUTSIDE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "NOTICE": "notice.md",
           "benchmarks/RESULTS.md": "benchmarks.md"}
"""File of the repository -> page of the site."""
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of `OUTSIDE`."""
    for path, page in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turns links between files of the repository into links between pages."""
    sources = {page: path for path, page in OUTSIDE.items()}
    folder = posixpath.dirname(sources.get(page.file.src_uri, f"docs/{page.file.src_uri}"))
    return LINK.sub(lambda link: f"]({_page(link[1], folder, page.file.src_uri)}", markdown)


def _page(link: str, folder: str, source: str) -> str:
    path = posixpath.normpath(posixpath.join(folder, link))
    target = OUTSIDE.get(path, path.removeprefix("docs/"))
    return posixpath.relpath(target, posixpath.dirname(source) or ".")
