"""One line of another counter's total, and the function that lists all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from distprof.counting.counts import Counts

OUTSIDE = "(no torch function)"
"""Stands for the function of operators that no torch function called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLine:
    """All calls of one function by one module."""

    function: str
    """As torch names it: torch.nn.functional.linear."""
    module_path: str | None
    """Innermost module; None outside of every module."""
    flops: int
    """In the unit of the other counter."""
    macs: int
    """Multiply-accumulates the other counter sees."""
    reason: str = ""
    """Why this is not what ran; empty where it is."""


class PeerLines(Protocol):
    """`peer_lines` in the module of each counter."""

    def __call__(self, counts: Counts, *, exact: bool = True) -> Sequence[PeerLine]:
        """The forward part of a counted call as the other counter has it.

        Args:
            counts: A counted call.
            exact: The numbers of the real package. False: those that its convention means.
        """
