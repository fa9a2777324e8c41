"""Whether workers have installed what the client has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

WHOLE = ("distprof", "isal", "pyarrow", "polars")
"""Packages of which any other version may write other bytes, or read other things."""
SERIES = ("python", "numpy")
"""What has to be of one series, like 3.11: what is pickled by one is not read by another."""


def differing(found: Mapping[str, Any]) -> Iterator[str]:
    """What differs, worker by worker.

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
