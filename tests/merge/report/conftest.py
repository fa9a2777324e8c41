"""A browser for the pages of reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distprof.merge.report.page import render
from support.browser import Opened
from support.chromium import chromium, why_not


@pytest.fixture(scope="module")  # playwright starts but one at a time
def browser() -> Iterator[Any]:
    """One for the tests of a file."""
    if why := why_not():
        pytest.skip(why)
    with chromium() as browser:
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
