"""Packages that a test needs and this machine lacks."""

from __future__ import annotations

from importlib.util import find_spec


def missing(*packages: str) -> str:
    """Those that cannot be imported, as a reason to skip; '' where all can."""
    lacking = [name for name in packages if find_spec(name) is None]
    return f"{', '.join(lacking)}: not installed" if lacking else ""
