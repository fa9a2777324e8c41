"""A rank's clock beside the common one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClock:
    """What brings a rank's times to the common clock."""

    offset_ns: int = 0
    drift_ppm: float = 0.0
    reference_ns: int = 0

    def to_common(self, at_ns: Any) -> Any:
        return at_ns + self.offset_ns

    def to_own(self, at_ns: int) -> int:
        return at_ns - self.offset_ns
