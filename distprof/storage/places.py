"""Places that a user names, by a local path or a URL; the folders in them; and fetching small objects ahead.

Small objects that will soon be read are fetched in parallel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from distprof.errors import UsageError
from distprof.hidden import PASSWORD_WITH_SLASH, hidden
from distprof.storage.credentials import is_url

if TYPE_CHECKING:
    from distprof.storage.remote_path import RemotePath


LOCAL = ("file", "local")


def place(text: str | os.PathLike[str]) -> Path:
    """Returns the path for a text; for a URL, a path whose content is fetched when it is opened.

    Raises:
        UsageError: Such URLs cannot be read, or not with what is installed.
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
    """Returns the path if it is remote; None for local ones."""
    return cast("RemotePath", path) if type(path).__name__ == "RemotePath" else None  # avoids importing for local ones


def real(path: Path) -> str:
    """Returns a text that is equal for paths to the same place: a local path with links resolved, or the URL."""
    return str(path) if remote(path) is not None else os.path.realpath(path)


def walk(path: Path, on_error: Callable[[OSError], None] | None = None) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yields folders from a path down, with names of subfolders (which the caller may remove) and of files."""
    if (elsewhere := remote(path)) is not None:
        yield from elsewhere.walk()
        return
    for folder, folders, names in os.walk(path, onerror=on_error):
        yield Path(folder), folders, names


@contextmanager
def ahead(paths: Iterable[Path]) -> Iterator[None]:
    """Fetches small objects that are read inside the context in parallel; does nothing for local files."""
    elsewhere = [found for path in paths if (found := remote(path)) is not None]
    if not elsewhere:
        yield
        return
    from distprof.storage.fetching import begin, drop

    began = [one.url for one in elsewhere if one.entry is not None and begin(one.url, one.entry)]
    try:
        yield
    finally:
        for url in began:
            drop(url)
