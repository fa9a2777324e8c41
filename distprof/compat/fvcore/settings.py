"""What a user of an analysis can set."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from distprof.compat.fvcore.handles import Handle
from distprof.peers.fvcore_rules import FREE

CHOICES: Mapping[str, Collection[str]] = {
    "warnings": ("all", "no_tracer_warning", "none"),
    "ancestors": ("owner", "caller"),
}
"""Field of the settings -> what it may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How operators count, for which modules, and what is warned of."""

    handles: Mapping[str, Handle] = field(default_factory=dict)
    """Operator -> what counts it."""
    free: frozenset[str] = FREE
    """Operators that need no handle."""
    ancestors: str = "owner"
    """Modules an operator counts for: the innermost and its owners, or every caller that is running."""
    warnings: str = "no_tracer_warning"
    """Warnings that are shown while the model runs."""
    logs_unsupported: bool = True
    logs_uncalled: bool = True

    def with_handles(self, handles: Mapping[str, Handle | None]) -> Self:
        """More handles; None makes an operator free."""
        kept = {name: handle for name, handle in self.handles.items() if name not in handles}
        added = {name: handle for name, handle in handles.items() if handle is not None}
        return replace(self, handles=kept | added, free=self.free | (handles.keys() - added.keys()))

    def with_choice(self, name: str, value: Any) -> Self:
        """Another value of one of CHOICES.

        Raises:
            ValueError: There is no such value.
        """
        if value not in CHOICES[name]:
            raise ValueError(f"expected one of {', '.join(CHOICES[name])}, found {value!r}")
        return replace(self, **{name: value})
