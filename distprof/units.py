"""Numbers as short texts with units for people; an unknown value is a dash."""

from __future__ import annotations

from collections.abc import Iterable

UNKNOWN = "-"
PREFIXES = ("", "K", "M", "G", "T", "P", "E")


def si(value: float | None, unit: str = "") -> str:
    """1057536 -> "1.06 M"; steps of 1000."""
    if value is None:
        return UNKNOWN
    index = 0
    while abs(value) >= 999.995 and index < len(PREFIXES) - 1:
        value, index = value / 1000, index + 1
    text = f"{value:.2f}" if index or value % 1 else f"{value:.0f}"
    return f"{text} {PREFIXES[index]}{unit}".rstrip()


def duration(ns: float | None) -> str:
    """107828494 -> "107.83 ms"."""
    if ns is None:
        return UNKNOWN
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if abs(ns) >= size:
            return f"{ns / size:.2f} {unit}"
    return f"{ns:.0f} ns"


def size(num_bytes: float | None) -> str:
    """1106944 -> "1.11 MB"; steps of 1000, as bandwidths are."""
    return si(num_bytes, "B")


def percent(ratio: float | None) -> str:
    """0.332 -> "33.2 %"."""
    return UNKNOWN if ratio is None else f"{100 * ratio:.1f} %"


def spans(numbers: Iterable[int]) -> str:
    """Sorted numbers as ranges: [1, 2, 3, 7] is "1-3, 7"."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ", ".join("-".join(map(str, span)) for span in found)
