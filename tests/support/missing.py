"""Finds packages that a test needs and that are not installed."""

from __future__ import annotations

from importlib.util import find_spec


def missing(*packages: str) -> str:
    """Returns the packages that are not installed as a reason to skip a test; '' if all are."""
    lacking = [name for name in packages if find_spec(name) is None]
    return f"{', '.join(lacking)}: not installed" if lacking else ""
