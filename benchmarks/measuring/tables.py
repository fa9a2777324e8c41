"""Numbers and tables as Markdown; what was not measured is a dash."""

from __future__ import annotations

from collections.abc import Sequence


def ratio(value: float | None, base: float | None) -> float | None:
    """None where one of them is unknown."""
    return None if value is None or not base else value / base


def number(value: float | None, digits: int) -> str:
    """A dash where it is unknown."""
    return "-" if value is None else f"{value:.{digits}f}"


def megabytes(num_bytes: int | None) -> str:
    """10^6 bytes."""
    return number(None if num_bytes is None else num_bytes / 1e6, 0)


def spread(values: Sequence[float], digits: int) -> str:
    """The median, and the least and the most: the noise."""
    ordered = sorted(values)
    low, middle, high = (number(ordered[place], digits) for place in (0, len(ordered) // 2, -1))
    return middle if len(ordered) == 1 else f"{middle} ({low} .. {high})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown that can be read as it is: words to the left, numbers to the right."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    padded = [[cell.rjust(width) if column else cell.ljust(width)
               for column, (cell, width) in enumerate(zip(line, widths, strict=True))] for line in lines]
    rule = ["-" * width if not column else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (padded[0], rule, *padded[1:]))
