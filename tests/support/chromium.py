"""A real Chromium, headless, driven by playwright; nothing that it asks for leaves this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]


def why_not() -> str | None:
    """Why there is none, in words."""
    if find_spec("playwright") is None:
        return "playwright is not installed: pip install 'distprof[test]'"
    if executable() is None:
        return "no Chromium: apt-get install chromium, or set CHROMIUM to its path"
    return None


def executable() -> str | None:
    """The browser: what CHROMIUM names, or the system's."""
    return shutil.which(os.environ.get("CHROMIUM") or "chromium")


@contextmanager
def chromium(*, more: Sequence[str] = ()) -> Iterator[Any]:
    """A browser, with more flags."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, \
            playwright.chromium.launch(executable_path=executable(), args=[*FLAGS, *more]) as browser:
        yield browser
