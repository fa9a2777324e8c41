"""Sums over equal operator calls: same module, operator, phase and shapes."""

from __future__ import annotations

from dataclasses import dataclass

from distprof.formulas.cost import Cost
from distprof.model.call_paths import CallPath


@dataclass(frozen=True, slots=True)
class OpKey:
    """Calls with an equal key are summed."""

    path: CallPath
    op: str
    phase: str
    shapes: str
    dtype: str | None = None
    """Element type of the first tensor input, or of the output if there is none."""
    functions: tuple[str, ...] = ()
    """The torch functions that were running, outermost first, if those are recorded."""


@dataclass(slots=True)
class OpSum:
    """Sum of equal calls."""

    calls: int = 0
    flops: int = 0
    macs: int = 0
    causal_macs: int = 0
    recompute_macs: int = 0
    elements: int = 0
    estimate_flops: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    kind: str = "other"
    counted: bool = False
    note: str = ""

    def add(self, other: OpSum) -> None:
        """Adds other calls with the same key."""
        for name in SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.kind, self.counted, self.note = other.kind, other.counted, other.note

    def add_call(self, cost: Cost) -> None:
        """Adds one call."""
        self.calls += 1
        self.flops += cost.flops
        for name in SUMMED[2:]:
            setattr(self, name, getattr(self, name) + getattr(cost, name))
        self.kind, self.counted, self.note = cost.kind, cost.counted, cost.note

    @property
    def io_bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.write_bytes


SUMMED = ("calls", "flops", "macs", "causal_macs", "recompute_macs", "elements", "estimate_flops", "read_bytes",
          "write_bytes")
