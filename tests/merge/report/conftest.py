"""A browser for the pages of reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distprof.merge.report.page import render
from support.browser import Opened, started_browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One for all tests."""
    with started_browser() as browser:
        yield browser


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Opens documents as pages, each in a context of its own; all must have been quiet when the test ends."""
    pages: list[Opened] = []

    def open_page(document: dict[str, Any], **context: Any) -> Opened:
        file = tmp_path / "report.html"
        file.write_text(render.page(document), "utf-8")
        pages.append(Opened(browser, file, **context))
        return pages[-1]

    yield open_page
    for one in pages:
        one.close()
