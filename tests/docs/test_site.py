"""`make docs` fails for links that lead nowhere, and the site asks no other host for anything."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.jobs import PATIENCE_S, ROOT, clean_environ

pytest.importorskip("material", reason="mkdocs-material, of the extra `docs`, is not installed")
COMMAND = re.search(r"^\t.*\$\(BIN\)/mkdocs ([^#\n]*)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
FROM_ELSEWHERE = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """All that the site is made of."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "benchmarks").mkdir()
    for name in ("mkdocs.yml", "README.md", "CONTRIBUTING.md", "NOTICE", "benchmarks/RESULTS.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def _build(folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "mkdocs", *COMMAND], cwd=folder, env=clean_environ(),
                          timeout=PATIENCE_S, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_the_site_stands_alone(folder):
    done = _build(folder)
    assert done.returncode == 0, done.stderr
    pages = list((folder / "build" / "site").rglob("*.html"))
    assert len(pages) > 30
    assert [found for page in pages for found in FROM_ELSEWHERE.findall(page.read_text())] == []
    assert (folder / "build" / "site" / "search" / "search_index.json").stat().st_size > 100_000
    assert 'href="recording.html#passes"' in (folder / "build" / "site" / "tutorial.html").read_text()


@pytest.mark.long
def test_links_that_lead_nowhere_and_pages_that_are_not_listed_fail(folder):
    said = {"[a](recording.md#nothing)": "does not contain an anchor '#nothing'",
            "[a](nothing.md)": "'nothing.md', but the target is not found",
            "[a](../examples/train_ddp.py)": "'examples/train_ddp.py', but the target is not found"}
    page = folder / "docs" / "limits.md"
    page.write_text("\n\n".join((page.read_text(), *said)))
    (folder / "docs" / "new.md").write_text("# New\n")
    done = _build(folder)
    assert done.returncode == 1 and all(words in done.stderr for words in (*said.values(), "new.md")), done.stderr
    assert done.stderr.count("WARNING ") == 4, "of which one is enough"
