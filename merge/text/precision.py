"""Times for people, with no more digits than their uncertainty allows."""

from __future__ import annotations

import math

from distprof.units import UNKNOWN, duration

UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns"))
NEVER_COMPARED = "?"
"""Stands behind what rests on clocks that were never compared."""


def known_to(ns: float | None, uncertainty_ns: int | None) -> str:
    """A time that compares two ranks: no digit beyond what the clocks allow.

    `1.234 ms` known to 0.1 ms is `1.2 ms`; what is smaller than the uncertainty is `< 0.5 ms`.
    """
    if ns is None:
        return UNKNOWN
    if uncertainty_ns is None:
        return f"{duration(ns)} {NEVER_COMPARED}"
    if abs(ns) <= uncertainty_ns and uncertainty_ns:
        return f"< {brief(uncertainty_ns, digits=2)}"
    size, unit = next((one for one in UNITS if abs(ns) >= one[0]), UNITS[-1])
    if unit == "ns":
        return duration(ns)
    places = 2 if not uncertainty_ns else min(max(math.ceil(-math.log10(uncertainty_ns / size)), 0), 2)
    return f"{ns / size:.{places}f} {unit}"


def brief(ns: float, digits: int = 3) -> str:
    """A duration in words: 20812345 -> `20.8 ms`."""
    size, unit = next((one for one in UNITS if abs(ns) >= one[0]), UNITS[-1])
    value = ns / size
    places = max(digits - len(f"{abs(value):.0f}"), 0)
    return f"{value:.{places}f} {unit}" if unit != "ns" else f"{value:.0f} ns"


def some(number: int) -> str:
    """`1 collective`, `2 collectives`."""
    return f"{number} collective{'s' if number != 1 else ''}"
