"""Cost of one operator call: MACs, element counts and bytes, never added up."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

OperatorKind = Literal[
    "contraction", "norm", "activation", "pool", "softmax", "loss", "optimizer", "elementwise", "reduction",
    "upsample", "embedding", "random", "copy", "view", "estimate", "other",
]
"""What an operator does. `reduction` includes scans and sorts; `view` neither computes nor moves data (allocation
too); `estimate` has FLOPs that are only roughly known; `other` is not classified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Macs:
    """Multiply-accumulates of one contraction."""

    full: int
    causal: int
    """Without the (query, key) pairs that a causal mask or a window hides; `full` where there is neither."""
    recompute: int = 0
    """Part of `full`: scores that a fused attention backward recomputes."""
    note: str = ""
    """Why the count is an upper bound, or what it is based on besides the shapes."""

    def times(self, factor: Fraction, note: str) -> Macs:
        """So many times as many; what is left over is dropped."""
        return Macs(full=int(self.full * factor), causal=int(self.causal * factor),
                    recompute=int(self.recompute * factor), note=self.note or note)

    @classmethod
    def of(cls, macs: int | Macs) -> Macs:
        """Wraps a plain number, which no mask reduces."""
        return macs if isinstance(macs, Macs) else cls(full=macs, causal=macs)


@dataclass(slots=True, kw_only=True)
class Cost:
    """One call of an operator on the shapes of this rank, or the sum of several."""

    calls: int = 1
    macs: int = 0
    """Multiply-accumulates of contractions: matrix products, convolutions, attention, recurrent layers. Positions
    that an attention mask hides count in full."""
    causal_macs: int = 0
    """The same without the (query, key) pairs that causal attention and its window hide."""
    recompute_macs: int = 0
    """Part of `macs`: scores that a fused attention backward recomputes (1 of its 5 products)."""
    remainder: int = 0
    """FLOPs that 2 x MACs cannot express: 1 if a registered formula returned an odd number."""
    elements: int = 0
    """Elements that a call other than a contraction works on; `operator_kinds.py` selects the tensors."""
    kind: OperatorKind = "other"
    read_bytes: int = 0
    """Bytes read: each input once, broadcast dimensions once, only the gathered rows of a table."""
    write_bytes: int = 0
    """Bytes written: new tensors and inputs changed in place. 0 for views."""
    counted: bool = False
    """True if `macs` come from a formula or the operator is known to be no contraction."""
    estimate_flops: int = 0
    """Rough FLOPs of an FFT, a factorisation or a distance; never part of `flops`."""
    note: str = ""
    """What the count is based on besides the shapes."""

    @property
    def flops(self) -> int:
        """2 per multiply-accumulate of a contraction; nothing else counts."""
        return 2 * self.macs + self.remainder

    @property
    def io_bytes(self) -> int:
        return self.read_bytes + self.write_bytes

    def add(self, other: Cost, times: int = 1) -> None:
        self.calls += times * other.calls  # name by name: this runs often
        self.macs += times * other.macs
        self.remainder += times * other.remainder
        self.causal_macs += times * other.causal_macs
        self.recompute_macs += times * other.recompute_macs
        self.elements += times * other.elements
        self.estimate_flops += times * other.estimate_flops
        self.read_bytes += times * other.read_bytes
        self.write_bytes += times * other.write_bytes
        self.kind, self.counted, self.note = other.kind, other.counted, other.note

