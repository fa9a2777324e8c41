"""Opens report pages in a real Chromium."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.jobs import PATIENCE_S

WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


class Opened:
    """A report drawn in the browser, with its requests and its console messages and errors."""

    def __init__(self, browser: Any, file: Path, **context: Any) -> None:
        self.page = browser.new_context(**context).new_page()
        self.page.set_default_timeout(1000 * PATIENCE_S)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("html[data-drawn=yes]")

    def close(self) -> None:
        """Closes the page; fails if there were errors or messages, or requests for anything but its own file."""
        self.page.context.close()
        assert self.complaints == []
        assert [url for url in self.requests if not url.startswith(("file:", "data:"))] == []

    def unfold(self) -> None:
        """Opens all collapsed sections."""
        self.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
