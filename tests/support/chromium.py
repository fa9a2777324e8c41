"""A real headless Chromium, driven by playwright; its requests do not leave this machine."""

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
    """Returns the reason why there is no browser; None if there is one."""
    if find_spec("playwright") is None:
        return "playwright is not installed: pip install 'distprof[test]'"
    if executable() is None:
        return "no Chromium: apt-get install chromium, or set CHROMIUM to its path"
    return None


def executable() -> str | None:
    """Returns the path of the browser: the value of CHROMIUM, or the system's Chromium."""
    return shutil.which(os.environ.get("CHROMIUM") or "chromium")


@contextmanager
def chromium(*, more: Sequence[str] = ()) -> Iterator[Any]:
    """Yields a browser, started with additional flags."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, \
            playwright.chromium.launch(executable_path=executable(), args=[*FLAGS, *more]) as browser:
        yield browser
