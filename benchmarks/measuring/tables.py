"""Formats numbers and tables as Markdown; a value that was not measured is a dash."""

from __future__ import annotations

from collections.abc import Sequence


def ratio(value: float | None, base: float | None) -> float | None:
    """Returns value / base; None if one of them is unknown or `base` is 0."""
    return None if value is None or not base else value / base


def number(value: float | None, digits: int) -> str:
    """Returns a number with this many digits after the point; a dash if unknown."""
    return "-" if value is None else f"{value:.{digits}f}"


def megabytes(num_bytes: int | None) -> str:
    """Returns bytes in units of 10^6."""
    return number(None if num_bytes is None else num_bytes / 1e6, 0)


def spread(values: Sequence[float], digits: int) -> str:
    """Returns the median with the minimum and maximum, which show the noise."""
    ordered = sorted(values)
    low, middle, high = (number(ordered[place], digits) for place in (0, len(ordered) // 2, -1))
    return middle if len(ordered) == 1 else f"{middle} ({low} .. {high})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table with aligned columns: the first to the left, all others to the right."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    padded = [[cell.rjust(width) if column else cell.ljust(width)
               for column, (cell, width) in enumerate(zip(line, widths, strict=True))] for line in lines]
    rule = ["-" * width if not column else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (padded[0], rule, *padded[1:]))
