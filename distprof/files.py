"""Writes files whole or not at all: beside their place, synced, then moved there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from distprof.errors import OutputError


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Calls `write` with a temporary path beside `path`, syncs what it wrote and moves it into place."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        write(temporary)
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes a JSON file whole or not at all."""
    write_whole(path, lambda temporary: temporary.write_text(json.dumps(value, indent=1) + "\n"))


def write_text(path: Path, text: str) -> None:
    """Writes a text where a user wants it, and makes the folders above it.

    Raises:
        OutputError: It cannot be written there.
    """
    try:
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}", hint="choose another file") from error


def sync(folder: Path) -> None:
    """Syncs the names in a folder to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
