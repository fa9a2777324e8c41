"""Goes through folders, here or elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from distprof.storage.places import remote


def walk(path: Path, on_error: Callable[[OSError], None] | None = None) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Folders from a path down: each with names of folders in it, which the caller may cut, and names of files."""
    if (elsewhere := remote(path)) is not None:
        yield from elsewhere.walk()
        return
    for folder, folders, names in os.walk(path, onerror=on_error):
        yield Path(folder), folders, names
