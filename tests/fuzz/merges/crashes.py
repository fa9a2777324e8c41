"""What was found: the folder that shows it, made as small as time allows, with the command that looks at it again."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fuzz.merges.check import GOOD, BrokenError, check
from fuzz.merges.engines import check_engines_of
from fuzz.merges.files import unpacked

AGAIN = "make fuzz-replay FILE={}"
MINIMIZE_S = 20.0
SMALL = b'{"traceEvents": [{"ph": "X", "name": "r0ev1~", "ts": 1, "dur": 1}]}'
"""A trace for rank 0 that is as good as another."""


def judge(folder: Path, *, more: bool = True, engines: bool = True) -> BrokenError | None:
    """What is broken about the merge of a folder; None where all is well."""
    with tempfile.TemporaryDirectory(prefix="distprof-merged-", dir=folder.parent) as out:
        try:
            check(folder, Path(out) / "merged", more=more)
            if engines:
                check_engines_of(folder)
        except BrokenError as error:
            return error
    return None


def keep(folder: Path, broken: BrokenError, crashes: Path) -> Path | None:
    """Copies the folder to `crashes` and makes it smaller; None where such a fault is there already."""
    name = re.sub(r"[^a-zA-Z0-9]+", "-", broken.kind).strip("-")[:60]
    kept = crashes / f"{name}-{hashlib.sha256(broken.kind.encode()).hexdigest()[:6]}"
    if kept.exists():
        return None
    shutil.copytree(folder, kept / "input")
    minimize(kept / "input", broken.kind)
    again = judge(kept / "input") or broken
    (kept / "why.txt").write_text(f"{AGAIN.format(kept / 'input')}\n\n{again}\n", errors="backslashreplace")
    return kept


def minimize(folder: Path, kind: str) -> None:
    """Takes files, then pieces of them, away as long as the same is broken."""
    until = time.monotonic() + MINIMIZE_S

    def still() -> bool:
        return time.monotonic() < until and (found := judge(folder)) is not None and found.kind == kind

    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        path.unlink()
        if not still():
            path.write_bytes(content)
            _unpack(path, still)
    texts = [path for path in folder.rglob("*.json") if path.is_file()]
    for path in sorted(texts, key=lambda path: -path.stat().st_size):
        if GOOD.search(str(path.relative_to(folder))):
            _replace(path, SMALL, still)
        else:
            _shorten(path, still)


def _unpack(path: Path, still: Callable[[], bool]) -> None:
    """The text instead of the compressed file."""
    data = path.read_bytes()
    text, is_whole = unpacked(data)
    plain = path.with_suffix("")
    if path.suffix != ".gz" or text == data or not is_whole or plain.exists():
        return
    path.unlink()
    plain.write_bytes(text)
    if not still():
        plain.unlink()
        path.write_bytes(data)


def _replace(path: Path, new: bytes, still: Callable[[], bool]) -> None:
    old = path.read_bytes()
    path.write_bytes(new)
    if not still():
        path.write_bytes(old)


def _shorten(path: Path, still: Callable[[], bool]) -> None:
    """Without pieces of half its length, then of a quarter, and so on to single bytes."""
    data = path.read_bytes()
    size = max(len(data) // 2, 1)
    while size:
        at, shorter = 0, False
        while at < len(data):
            path.write_bytes(data[:at] + data[at + size:])
            if still():
                data, shorter = data[:at] + data[at + size:], True
            else:
                at += size
        size = size if shorter and size == 1 else size // 2
    path.write_bytes(data)
