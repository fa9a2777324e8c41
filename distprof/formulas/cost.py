"""What one operator call costs: contractions, element counts and bytes, kept apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal[
    "contraction", "norm", "activation", "pool", "softmax", "loss", "optimizer", "elementwise", "reduction",
    "upsample", "embedding", "random", "copy", "view", "estimate", "other",
]
"""What an operator does. `reduction` includes scans and sorts; `view` whatever neither computes nor moves data,
allocation too; `estimate` operators whose FLOPs are only roughly known; `other` those nobody classified."""

KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Macs:
    """Multiply-accumulates of one contraction."""

    full: int
    causal: int
    """Only the (query, key) pairs that a causal mask or a window leaves; `full` where there is neither."""
    recompute: int = 0
    """Part of `full`: scores that a fused attention backward computes once more."""
    note: str = ""
    """Why the count is an upper bound, or what it is based on, where that is not plain from the shapes."""

    @classmethod
    def of(cls, macs: int | Macs) -> Macs:
        """A plain number has nothing causal."""
        return macs if isinstance(macs, Macs) else cls(full=macs, causal=macs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One call of an operator, on the shapes of this rank."""

    macs: int = 0
    """Multiply-accumulates of contractions: matrix products, convolutions, attention, recurrent layers. Positions
    that an attention mask hides count in full."""
    causal_macs: int = 0
    """The same, with only the (query, key) pairs that causal attention (and its window) leaves."""
    recompute_macs: int = 0
    """Part of `macs`: what an attention backward spends on computing scores once more (1 of 5 products)."""
    remainder: int = 0
    """1 where a registered formula gave an odd number of FLOPs, which 2 x MACs cannot say."""
    elements: int = 0
    """Elements that a call which is no contraction works on; `elements.py` says which of its tensors count."""
    kind: Kind = "other"
    read_bytes: int = 0
    """Bytes of memory read: each input once, broadcast dimensions once, of a gathered table the rows it takes."""
    write_bytes: int = 0
    """Bytes of memory written: new tensors, and inputs that are written in place. 0 for views."""
    counted: bool = False
    """True where `macs` come from a formula or the operator is known not to contract anything."""
    estimated: bool = False
    """True where `estimate_flops` is all there is."""
    estimate_flops: int = 0
    """Leading term of the FLOPs of an FFT, a factorisation, a distance: never part of `flops`."""
    note: str = ""
    """What the count is based on, where that is not plain from the shapes."""

    @property
    def flops(self) -> int:
        """The headline: 2 per multiply-accumulate of a contraction, nothing else."""
        return 2 * self.macs + self.remainder
