"""Debian's Chromium, driven by playwright, with nothing of its own to fetch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]


def chromium() -> str:
    """The path of the browser; skips the test where there is none."""
    pytest.importorskip("playwright", reason="playwright is not installed")
    found = shutil.which(os.environ.get("CHROMIUM") or "chromium")
    if found is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    return found


@contextmanager
def started_browser() -> Iterator[object]:
    """A browser without a window: playwright's `Browser`."""
    path = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()
