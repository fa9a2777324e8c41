"""How far the shapes in traces tell the FLOPs of operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeCoverage:
    """How far shapes tell the FLOPs of operators."""

    host_ns: int = 0
    """Self time on hosts of calls whose FLOPs are known, or part of those of a call around them."""
    all_host_ns: int = 0
    """Also of the others, but of none that only passes on to operators within."""
    device_ns: int = 0
    """The same on devices."""
    all_device_ns: int = 0
    unknown_calls: int = 0
    calls_without_shapes: int = 0
    """Those among them of which the trace has no shapes."""

    @property
    def ratio(self) -> float | None:
        """Share of the time: on devices where anything ran on one. None where nothing ran."""
        known, everything = (self.device_ns, self.all_device_ns) if self.all_device_ns else (
            self.host_ns, self.all_host_ns)
        return known / everything if everything else None

    @classmethod
    def of(cls, several: Sequence[ShapeCoverage]) -> ShapeCoverage:
        """Of all ranks."""
        return cls(**{one.name: sum(getattr(each, one.name) for each in several) for one in fields(cls)})
