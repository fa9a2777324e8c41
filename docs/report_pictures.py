"""Makes pictures of a report; records the run first if its directory does not exist.

python docs/report_pictures.py RUN FOLDER

RUN is relative to the repository, because its name appears in the pictures.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from picture import FLAGS, ROOT, chromium, distprof, fail

PICTURES: dict[str, tuple[Any, Any, str | None]] = {
    "report.png": ({"width": 1280, "height": 1224}, "light", None),
    "report-dark.png": ({"width": 1280, "height": 1110}, "dark", "modules"),
    "report-phone.png": ({"width": 390, "height": 844}, "light", None),
}
"""File name -> size of the window, colour scheme, and section to scroll to (None: top)."""


def main() -> None:
    if len(sys.argv) != 3:
        sys.stderr.write("usage: python docs/report_pictures.py RUN FOLDER\n")
        sys.exit(2)
    run, folder = Path(sys.argv[1]), Path(sys.argv[2]).resolve()
    if not folder.is_dir():
        fail(f"no such folder: {folder}", "make it first")
    if not (ROOT / run).exists():
        distprof("demo", "--out", str(run))
    take(ROOT / run / "merged" / "report.html", folder)


def take(report: Path, folder: Path) -> None:
    """Writes the pictures of a report."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=chromium(), args=FLAGS) as browser:
        for name, (size, colours, section) in PICTURES.items():
            page = browser.new_page(viewport=size, color_scheme=colours)
            page.goto(report.as_uri() + (f"#{section}" if section else ""))
            page.wait_for_selector("html[data-drawn=yes]")
            if section:
                page.evaluate(f"document.getElementById('{section}').scrollIntoView()")
                page.wait_for_timeout(1000)  # scrolling is smooth
            page.screenshot(path=folder / name)
            page.close()
            sys.stdout.write(f"{folder / name}: {(folder / name).stat().st_size / 1e3:.0f} kB\n")


if __name__ == "__main__":
    main()
