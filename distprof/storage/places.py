"""What a user names: a local path, or the URL of one that lies elsewhere."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from distprof.errors import UsageError
from distprof.hidden import PASSWORD_WITH_SLASH, hidden

if TYPE_CHECKING:
    from distprof.storage.remote_path import RemotePath

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/+")
LOCAL = ("file", "local")


def is_url(text: str) -> bool:
    """True for `s3://bucket/run` and its like."""
    return _SCHEME.match(text) is not None and "://" in text


def place(text: str | os.PathLike[str]) -> Path:
    """The path of a text; one whose content comes when it is opened, where the text is a URL.

    Raises:
        UsageError: No such URLs can be read, or not with what is installed.
    """
    if isinstance(text, Path) or not is_url(str(text)):
        return Path(text)
    from distprof.storage.remote_path import RemotePath

    scheme, _, rest = str(text).partition("://")
    if scheme.lower() in LOCAL:
        return Path(rest)
    if not rest.strip("/"):
        raise UsageError(f"{text} is not a URL like s3://bucket/run")
    if "@" not in rest.partition("/")[0] and PASSWORD_WITH_SLASH.match(str(text)):
        raise UsageError(f"the password in {hidden(str(text))} contains a slash",
                         hint="write it as %2F")
    return RemotePath.given(f"{scheme.lower()}://{rest}")


def remote(path: os.PathLike[str]) -> RemotePath | None:
    """The path, where it lies elsewhere."""
    if type(path).__name__ != "RemotePath":  # imports nothing for local ones
        return None
    from distprof.storage.remote_path import RemotePath

    return path if isinstance(path, RemotePath) else None


def real(path: Path) -> str:
    """What tells whether two paths lead to the same place: a local one without links, or the URL."""
    return str(path) if remote(path) is not None else os.path.realpath(path)
