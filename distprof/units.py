"""Formats numbers with units for people; an unknown value is a dash."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
    for least, size, unit in ((999.995e6, 1e9, "s"), (999.995e3, 1e6, "ms"), (999.5, 1e3, "us")):  # never "1000.00 ms"
        if abs(ns) >= least:
            return f"{ns / size:.2f} {unit}"
    return f"{ns:.0f} ns"


def size(num_bytes: float | None) -> str:
    """1106944 -> "1.11 MB"; steps of 1000, as bandwidths are."""
    return si(num_bytes, "B")


def percent(ratio: float | None) -> str:
    """0.332 -> "33.2 %"."""
    return UNKNOWN if ratio is None else f"{100 * ratio:.1f} %"


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun: `1 end of an arrow`, `2 ends of an arrow`."""
    word, *rest = noun.split(" of ", 1)
    return f"{number} {word if number == 1 else word + 's'}{''.join(f' of {more}' for more in rest)}"


def numbered(noun: str, numbers: Sequence[int]) -> str:
    """Returns a noun with numbers: `step 3`, `steps 0-2, 5`."""
    return f"{noun}{'s' if len(numbers) > 1 else ''} {spans(numbers)}"


def spans(numbers: Iterable[int]) -> str:
    """Returns numbers as ranges in the given order: [1, 2, 3, 7] is "1-3, 7", and [0, 8, 16, 24] is "0-24 by 8"."""
    every, found, begin = list(numbers), list[str](), 0
    while begin < len(every):
        length = _regular(every, begin)
        first, last = every[begin], every[begin + length - 1]
        stride = every[begin + 1] - first if length > 1 else 1
        found.append(str(first) if length == 1 else f"{first}-{last}" + (f" by {stride}" if stride > 1 else ""))
        begin += length
    return ", ".join(found)



MANY = 4
"""Minimum number of equally spaced numbers for a range; consecutive numbers always form one."""


def _regular(numbers: Sequence[int], begin: int) -> int:
    """Returns how many numbers from index `begin` form a range."""
    end, stride = begin + 1, numbers[begin + 1] - numbers[begin] if begin + 1 < len(numbers) else 0
    while stride > 0 and end < len(numbers) and numbers[end] - numbers[end - 1] == stride:
        end += 1
    return end - begin if end - begin >= MANY or stride == 1 else 1
