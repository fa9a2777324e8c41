"""One line of another counter's total."""

from __future__ import annotations

from dataclasses import dataclass

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
