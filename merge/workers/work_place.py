"""Checks what a worker on another host needs: the folder of the merge, the traces, and equal packages."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

PROBE = "probe"
WHOLE = ("distprof", "isal", "pyarrow", "polars")
"""Packages that must have the same version, because others may write other bytes or read differently."""
SERIES = ("python", "numpy")
"""Packages that must be of the same series, like 3.11, because pickles are not compatible between series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkPlace:
    """The folder and files that client and workers share."""

    folder: Path | None
    """Where workers write their results; None if these go to the client."""
    token: str
    """Content of the probe file, because another machine may have a folder of the same name."""
    inputs: tuple[tuple[Path, int], ...]
    """Some of the files to read, with their lengths."""

    @classmethod
    def of(cls, folder: Path | None, inputs: Iterable[Path]) -> WorkPlace:
        """Writes the probe file."""
        token, known = os.urandom(16).hex(), list(inputs)
        if folder is not None:
            (folder / PROBE).write_text(token, encoding="ascii")
        return cls(folder=folder, token=token,
                   inputs=tuple((path, path.stat().st_size) for path in dict.fromkeys([*known[:1], *known[-1:]])))

    def lacking(self) -> str | None:
        """Returns which input differs on the host of this process; None if none does."""
        for path, size in self.inputs:
            try:
                found = path.stat().st_size
            except OSError as error:
                return f"{path}: {os.strerror(error.errno or 0)}"
            if found != size:
                return f"another file at {path}: {found} bytes, expected {size}"
        return None

    def not_shared(self) -> str | None:
        """Returns why this process cannot write to the folder; None if it can."""
        return None if self.folder is None else _not_shared(self.folder, self.token)


def _not_shared(folder: Path, token: str) -> str | None:
    mine = folder / f"{PROBE}.{os.urandom(4).hex()}"
    try:
        if (folder / PROBE).read_text(encoding="ascii", errors="replace") != token:
            return f"another folder at {folder}"
        mine.write_text(token, encoding="ascii")
        mine.unlink()
    except OSError as error:
        return f"{folder}: {os.strerror(error.errno or 0)}"
    return None


@lru_cache(maxsize=8)
def lacking_here(place: WorkPlace) -> str | None:
    """Returns `lacking` of this process, checked once."""
    return place.lacking()


@lru_cache(maxsize=8)
def not_shared_here(place: WorkPlace) -> str | None:
    """Returns `not_shared` of this process, checked once."""
    return place.not_shared()


def differing(found: Mapping[str, Any]) -> Iterator[str]:
    """Yields the differences between the versions of each worker and the client.

    Args:
        found: `Client.get_versions` of dask, with the packages of `WHOLE`.
    """
    client = found["client"]["packages"]
    for address, worker in found["workers"].items():
        there = worker["packages"]
        for name in (*SERIES, *WHOLE):
            mine, other = _version(name, client), _version(name, there)
            if mine != other:
                yield f"{name} {other or 'missing'} on {address}, {mine or 'missing'} here"


def _version(name: str, packages: Mapping[str, str | None]) -> str | None:
    found = packages.get(name)
    return ".".join(found.split(".")[:2]) if found is not None and name in SERIES else found
