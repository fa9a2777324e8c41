"""Finds what macOS and Windows lack of Python's library, from mypy's stubs, and makes a Python lack it."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

POSIX = ("resource", "fcntl", "pwd", "grp", "termios", "pty", "tty", "syslog", "readline", "curses")
"""Modules that Windows lacks."""
MODULES = ("os", "signal", "select", "socket", "errno", "time", "mmap", "shutil", "threading", "subprocess", "tempfile")
"""Modules that a system may have only in part."""
PRETENDED = Path(__file__).with_name("pretended")
"""Folder on PYTHONPATH that makes a Python pretend to run on another system."""


@dataclass(frozen=True)
class Pretended:
    """What a system lacks, as read by `pretended/sitecustomize.py`."""

    platform: str
    modules: tuple[str, ...]
    lacks: dict[str, list[str]]


@cache
def pretended(platform: str) -> Pretended:
    """Returns what a system (darwin or win32) lacks."""
    lacks = {name: sorted(_names_in(name, "linux") - _names_in(name, platform)) for name in MODULES}
    return Pretended(platform, POSIX if platform == "win32" else (), lacks)


def _names_in(module: str, platform: str) -> set[str]:
    spec = find_spec("mypy")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent / "typeshed" / "stdlib"
    stub = next(path for path in (folder / f"{module}.pyi", folder / module / "__init__.pyi") if path.is_file())
    where = {"sys": SimpleNamespace(platform=platform, version_info=sys.version_info), "TYPE_CHECKING": True}
    return set(_names(ast.parse(stub.read_text("utf-8")).body, where))


def _names(body: list[ast.stmt], where: dict[str, object]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.If):
            holds = eval(compile(ast.Expression(node.test), "stub", "eval"), dict(where))
            yield from _names(node.body if holds else node.orelse, where)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)


def environ_of(platform: str, folder: Path) -> dict[str, str]:
    """Returns environment variables that make a Python and its children pretend to run on a system; `folder` gets a
    file with what it lacks."""
    file = folder / f"{platform}.json"
    file.write_text(json.dumps(asdict(pretended(platform))))
    return {"PRETENDED": str(file), "PYTHONPATH": str(PRETENDED)}
