"""Lines of a script in a table: short names of files, modules, and texts that fit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import PureWindowsPath

LONGEST = 60
"""Characters of a name."""


def cut(text: str, longest: int = LONGEST) -> str:
    """The text, or its begin."""
    return text if len(text) <= longest else f"{text[:longest - 3]}..."


def module_name(path: str | None) -> str:
    """A path of a module in words."""
    return "-" if path is None else "(root)" if path == "" else cut(path)


def file_name(path: str) -> str:
    """The name of a file, wherever the path is from."""
    return _parts(path)[-1]


def _parts(path: str) -> tuple[str, ...]:
    """Folders and name; paths of Windows have both kinds of strokes."""
    return PureWindowsPath(path).parts or (path,)


def short_names(files: Sequence[str]) -> dict[str, str]:
    """The name of each file, with as many folders as tell it from the others."""
    found = {file: file_name(file) for file in files}
    for parts in range(2, 8):
        same: dict[str, list[str]] = defaultdict(list)
        for file, name in found.items():
            same[name].append(file)
        for alike in same.values():
            if len(alike) > 1:
                found |= {file: "/".join(_parts(file)[-parts:]) for file in alike}
    return found
